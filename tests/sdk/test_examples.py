"""The example plugins, built outside this tree: each trains, and strategies that only arrange the work differently learn the same."""

import json
import os
import pathlib

import pytest
from harness.program import Run, unavailable

TINY_FAMILY = {"model_type": "tiny_family", "hidden_size": 48, "vocab_size": 160, "num_hidden_layers": 3, "num_attention_heads": 3, "head_dim": 16,
               "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
STEPS = 3


@pytest.fixture
def train(engine, workspace):
    """Trains the small run with changes to its tables, with the examples' folder in plugin_path; gives the run and its log."""
    folder = os.environ.get("OOM_EXAMPLE_PLUGINS")
    if not folder or not pathlib.Path(folder, "liboom_whole_bank.so").exists():
        unavailable("the example plugins are not built yet (OOM_EXAMPLE_PLUGINS names their folder)")

    def run(name, engine_table=None, **tables):
        config = workspace.config(f"{name}.toml", engine={"plugin_path": [folder], **(engine_table or {})}, output={"dir": name}, train={"steps": STEPS}, **tables)
        outcome = engine.run("train", config)
        return Run(workspace.folder / name), outcome.err

    (workspace.folder / "tiny_family").mkdir()
    (workspace.folder / "tiny_family/config.json").write_text(json.dumps(TINY_FAMILY))
    return run


def assert_same_learning(run, straight):
    for column in ("loss", "grad_norm"):
        assert run.column(column) == pytest.approx(straight.column(column), rel=1e-5), column


def test_expert_strategy(train):
    straight, _ = train("straight")
    run, _ = train("whole-bank", {"experts": "whole_bank"})
    assert_same_learning(run, straight)
    assert 'experts = "whole_bank"' in (run.folder / "plan.toml").read_text()


def test_activation_strategy(train):
    straight, _ = train("straight")
    run, _ = train("on-device", {"activations": "on_device"})
    assert_same_learning(run, straight)


def test_selector(train):
    _, log = train("selected", {"experts": "auto", "selector": "least_memory"}, least_memory={"slower_percent": 40})
    assert "least_memory: chose" in log and "at most 40 % slower" in log


def test_a_wrong_setting_is_told_with_its_place(train, engine, workspace):
    config = workspace.config(engine={"plugin_path": [os.environ["OOM_EXAMPLE_PLUGINS"]]}, least_memory={"slower_percent": -1})
    assert "run.toml:" in (message := engine.run("train", config, code=2).err) and "least_memory.slower_percent" in message


def test_model_adapter(train, engine, workspace):
    model = {"path": "tiny_family", "weights": "random", "seed": 5}
    straight, _ = train("straight", model=model)
    losses = straight.column("loss")
    assert losses[-1] < losses[0]
    exported = workspace.folder / "exported"
    # `oom export` has no config: the folder of a family's plugin is found through the environment.
    engine.run("export", straight.last_checkpoint(), "--out", exported, "--dtype", "fp32", environment={"OOM_PLUGIN_PATH": os.environ["OOM_EXAMPLE_PLUGINS"]})
    again, _ = train("again", model={"path": "exported", "weights": "load"})
    assert again.column("loss")[0] < losses[0]


def test_a_model_adapter_bounds_what_it_reads(train, engine, workspace):
    for key, value in (("hidden_size", 0), ("num_experts", -1), ("num_experts_per_tok", 7), ("head_dim", 15), ("bonus", 1)):
        (workspace.folder / "tiny_family/config.json").write_text(json.dumps({**TINY_FAMILY, key: value}))
        config = workspace.config("bad.toml", engine={"plugin_path": [os.environ["OOM_EXAMPLE_PLUGINS"]]}, model={"path": "tiny_family", "weights": "random"})
        message = engine.run("train", config, code=4).err
        assert "config.json" in message and key in message


def test_all_of_them_together(train):
    engine_table = {"experts": "auto", "activations": "on_device", "selector": "least_memory"}
    model = {"path": "tiny_family", "weights": "random", "seed": 5}
    run, _ = train("together", engine_table, model=model)
    straight, _ = train("straight", model=model)
    assert_same_learning(run, straight)
