"""`oom inspect`: what a file or folder is and holds."""

import json
import resource
import time
import tomllib

import numpy as np
import pytest
from harness.program import REPOSITORY
from harness.run_config import EXPERTS
from harness.tiny_models import qwen3_moe_tensors, write_model

TINY_PARAMETERS = "392,832"


def test_config_json_alone(engine, workspace):
    for path in ("model", "model/config.json"):
        text = engine.run("inspect", path).out
        assert "qwen3_moe" in text and TINY_PARAMETERS in text and "none here" in text


PUBLISHED = {
    "mixtral-8x7b": ("mixtral", 46_702_792_704, 12_879_925_248, {"full_attention + moe": 32}, {"experts": 45_097_156_608, "attention": 1_342_177_280, "router": 1_048_576}),
    "qwen3-30b-a3b": ("qwen3_moe", 30_532_122_624, 3_353_032_704, {"full_attention + moe": 48}, {"experts": 48 * 128 * 3 * 2048 * 768}),
    # 30 of them are buffers, one a layer.
    "gemma4-26b-a4b": ("gemma4", 25_233_141_790, 3_822_530_590, {"sliding_attention + moe": 25, "full_attention + moe": 5}, {"experts": 30 * 128 * 3 * 2816 * 704}),
    "qwen3.6-35b-a3b": ("qwen3_5_moe", 34_660_610_688, 3_454_988_928, {"linear_attention + moe": 30, "full_attention + moe": 10}, {
        "embedding": 508_559_360, "head": 508_559_360, "gated_deltanet": 1_011_553_920, "attention": 272_634_880, "router": 20_971_520,
        "experts": 32_212_254_720, "shared_expert": 125_829_120, "shared_gate": 81_920, "norms": 165_888}),
    "qwen3.5-122b-a10b": ("qwen3_5_moe", 122_111_526_912, 9_771_288_576, {"linear_attention + moe": 36, "full_attention + moe": 12}, {
        "embedding": 762_839_040, "head": 762_839_040, "gated_deltanet": 3_186_828_288, "attention": 943_724_544, "router": 37_748_736,
        "experts": 115_964_116_992, "shared_expert": 452_984_832, "shared_gate": 147_456, "norms": 297_984}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_size(oom, name):
    """The public parameter counts of a model, from its configuration alone: soon, and in little memory."""
    family, total, active, layers, roles = PUBLISHED[name]
    oom.require(family)
    folder = REPOSITORY / "configs/models" / name
    started = time.monotonic()
    found = oom.run("inspect", folder, "--json").json
    assert time.monotonic() - started < 20  # a second; the bound leaves room for a machine that is busy otherwise
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 1 << 20  # KiB: far below the weights' size
    assert found["parameters"] == total and found["active_parameters"] == active
    assert found["state_bytes"] == 12 * total
    assert found["layers"] == layers
    assert sum(role["parameters"] for role in found["roles"].values()) == total
    assert {role: found["roles"][role]["parameters"] for role in roles} == roles
    text = oom.run("inspect", folder).out
    assert f"{total:,}" in text and f"{active:,}" in text


def test_weights(engine, workspace):
    write_model(workspace.folder / "loaded", qwen3_moe_tensors())
    text = engine.run("inspect", "loaded").out
    assert TINY_PARAMETERS in text and "F32" in text and "an expert at a time" in text
    weights = engine.run("inspect", "loaded", "--json").json["weights"]
    assert weights["files"] == 1 and weights["tensors"] == len(qwen3_moe_tensors()) and weights["dtypes"] == {"F32": 4 * 392832}


def test_weights_with_faults(engine, workspace):
    """What can be said is said; then the faults, all of them."""
    tensors = qwen3_moe_tensors()
    del tensors["model.norm.weight"]
    tensors["model.surplus.weight"] = np.ones(3, np.float32)
    write_model(workspace.folder / "loaded", tensors)
    outcome = engine.run("inspect", "loaded", code=4)
    assert TINY_PARAMETERS in outcome.out
    assert "model.norm.weight" in outcome.err and "model.surplus.weight" in outcome.err


def test_checkpoint(engine, workspace):
    run = engine.train(workspace.config())
    found = engine.run("inspect", run.last_checkpoint(), "--json").json
    assert found["kind"] == "checkpoint" and found["step"] == 3 and found["parameters"] == 392832 and found["verified"] is True
    assert found["bytes"] == sum(path.stat().st_size for path in run.last_checkpoint().iterdir() if path.name != "manifest.json")
    text = engine.run("inspect", run.last_checkpoint()).out
    assert TINY_PARAMETERS in text and "learning_rate = 0.001" in text


def test_damaged_checkpoint(engine, workspace):
    """A byte of the last tensor, which no header holds."""
    newest = engine.train(workspace.config()).last_checkpoint()
    largest = max(newest.iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[-5] ^= 1
    largest.write_bytes(data)
    assert largest.name in engine.run("inspect", newest, code=4).err


def test_plan(engine, workspace):
    engine.run("plan", workspace.config(), "--out", "plan.toml")
    assert EXPERTS in engine.run("inspect", "plan.toml").out
    found = engine.run("inspect", "plan.toml", "--json").json
    assert found["kind"] == "plan" and found["ranks"] == 2 and found["experts"] == EXPERTS
    assert tomllib.loads(found["toml"]) == tomllib.loads((workspace.folder / "plan.toml").read_text())


def test_plan_with_a_fault(engine, workspace):
    engine.run("plan", workspace.config(), "--out", "plan.toml")
    plan = workspace.folder / "plan.toml"
    plan.write_text(plan.read_text().replace("ranks = 2", "ranks = 0"))
    message = engine.run("inspect", "plan.toml", code=4).err
    assert "plan.toml:" in message and "ranks" in message


@pytest.mark.parametrize("name, kind", [(EXPERTS, "expert strategy"), ("qwen3_moe", "model adapter"), ("offload", "activation strategy")])
def test_plugin(engine, name, kind):
    path = engine.binary.parents[1] / f"lib/oom/plugins/liboom_{name}.so"
    text = engine.run("inspect", path).out
    assert name in text and kind in text and "2.11.0" in text
    assert engine.run("inspect", path, "--json").json["usable"] is True


def test_unusable_plugin(engine, workspace):
    """A library, but no plugin: what it is, then why not."""
    core = engine.binary.parents[1] / "lib/liboom_core.so"
    outcome = engine.run("inspect", core, code=4)
    assert "no plugin" in outcome.err or "not a plugin" in outcome.err
    assert "libtorch" in outcome.out


@pytest.mark.parametrize("name", ["nowhere", "rubbish.so", "rubbish.toml", "rubbish.json", "rubbish.txt", "folder"])
def test_unreadable(engine, workspace, name):
    if name == "folder":
        (workspace.folder / name).mkdir()
    elif name != "nowhere":
        (workspace.folder / name).write_bytes(b"\x7fELF\x00\xff rubbish = = \n" * 3)
    assert name in engine.run("inspect", name, code=4).err


def test_stdout_carries_only_results(engine, workspace):
    for arguments in (["inspect", "model", "--json"], ["plan", workspace.config(), "--json"], ["eval", workspace.config(), "--json"]):
        outcome = engine.run(*arguments)
        assert json.loads(outcome.out)
        assert "plugin:" not in outcome.err  # loading is no news
