"""A run that was stopped and resumed is the run that was not stopped: equal to the last bit on the CPU device."""

import pytest
import torch
from harness.program import Run
from harness.run_config import EXPERTS
from oracle.conftest import training_of
from oracle.models import load_model


def train_and_export(oom, config, name, *, stop_after=None, resume_with=()):
    if stop_after:
        oom.run("train", config, "--set", f"train.steps={stop_after}", "--set", f"output.dir={name}")
    arguments = ["--set", f"output.dir={name}", *resume_with] + (["--resume"] if stop_after else [])
    oom.run("train", config, *arguments)
    run = Run(oom.folder / name)
    folder = oom.export(run.last_checkpoint(), oom.folder / f"{name}-exported")
    return run, load_model(folder, "qwen3_moe")[0]


@pytest.mark.parametrize("experts, ranks, train", [
    (experts, ranks, train) for experts in ("local", "ep")
    for ranks, train in ((1, {}), (2, {"updates": "overlapped"}), (2, {"updates": "deferred"}), (2, {"updates": "deferred", "clip_norm": 0.5}))])
def test_equal_to_the_bit(oom, oracle, experts, ranks, train):
    oom.require("qwen3_moe", experts)
    config = oracle.config(oom.folder, training_of("qwen3_moe"), corpus="short", tables={
        "engine": {"ranks": ranks, "experts": experts}, "train": train, "data": {"shuffle_seed": 7}})
    straight, weights = train_and_export(oom, config, "straight")
    resumed, weights_resumed = train_and_export(oom, config, "resumed", stop_after=3)
    for column in ("step", "loss", "grad_norm", "learning_rate"):
        assert resumed.column(column) == straight.column(column), column
    for (name, weight), (_, other) in zip(weights.named_parameters(), weights_resumed.named_parameters(), strict=True):
        assert torch.equal(weight, other), name


def overrides(table, settings):
    return [argument for key, value in settings.items() for argument in ("--set", f"{table}.{key}={value}")]


def check_resumed(oom, oracle, before, resume_with):
    training = training_of("qwen3_moe")
    config = oracle.config(oom.folder, training, tables=before)
    resumed, weights = train_and_export(oom, config, "resumed", stop_after=3, resume_with=resume_with)
    straight, _ = train_and_export(oom, config, "straight")
    assert resumed.column("loss") == pytest.approx(straight.column("loss"), rel=1e-5)
    expected = oracle.expected(training)
    expected.check_metrics(resumed, training)
    expected.check_weights(weights)


@pytest.mark.parametrize("before, after", [
    ({"ranks": 1}, {"ranks": 2}), ({"ranks": 2}, {"ranks": 1}), ({"ranks": 2}, {"ranks": 4}),
    ({"ranks": 2}, {"experts": "ep"}), ({"ranks": 4, "experts": "ep"}, {"ranks": 2, "experts": "local"}), ({"ranks": 2, "experts": "ep"}, {"ranks": 4})], ids=str)
def test_under_another_layout(oom, oracle, before, after):
    """A checkpoint knows no ranks and no strategy: losses are the uninterrupted run's, 1e-5, and the oracle's."""
    for engine in (before, after):
        oom.require("qwen3_moe", engine.get("experts", EXPERTS))
    check_resumed(oom, oracle, {"engine": before}, overrides("engine", after))


@pytest.mark.parametrize("before, after", [({"resident": "none", "resident_ordinary": "none"}, {"resident": "all", "resident_ordinary": "all"}),
                                           ({"resident": 2, "weights": "convert"}, {"resident": "none", "weights": "cached"})], ids=str)
def test_with_state_elsewhere(oom, oracle, before, after):
    """Nor does it know where state lived."""
    oom.require("qwen3_moe", EXPERTS)
    check_resumed(oom, oracle, {"engine": {"ranks": 2}, "state": before}, overrides("state", after))


def test_under_another_budget(oom, oracle):
    """From a generous machine to one that has no byte more than the run needs, and one NUMA node's worth stated."""
    oom.require("qwen3_moe", EXPERTS)
    training = training_of("qwen3_moe")
    # State and activations stay as they are: the planner would otherwise make room by moving or regenerating them.
    config = oracle.config(oom.folder, training, tables={"engine": {"ranks": 2}, "train": {"updates": "deferred"}, "budget": {"host": "8GiB", "gpu": "4GiB", "headroom": "1MiB"},
                                                         "state": {"resident": "none", "resident_ordinary": "none", "weights": "cached"},
                                                         "offload": {"keep_boundaries": "all", "boundaries_on_gpu": "none", "keep_attention": "none", "attention_head_group": 0, "moe_chunk": 1 << 20, "gdn_chunk": 1 << 20,
                                                                     "sub_batch": training.global_batch // 2, "buffers": 3}})
    straight, _ = train_and_export(oom, config, "straight")
    needed = oom.run("plan", config, "--json", "--set", "train.updates=overlapped").json
    tight = {"gpu": max(gpu["peak_bytes"] for gpu in needed["gpu"]) + (1 << 20), "host": f"[{needed['host'][0]['peak_bytes']}]"}
    # What the generous run took does not fit there: the plan is another one.
    assert oom.run("plan", config, "--json", *overrides("budget", tight), code=3).json["fits"] is False
    resumed, weights = train_and_export(oom, config, "resumed", stop_after=3, resume_with=[*overrides("budget", tight), "--set", "train.updates=overlapped"])
    assert resumed.column("loss") == pytest.approx(straight.column("loss"), rel=1e-5)
    oracle.expected(training).check_weights(weights)
