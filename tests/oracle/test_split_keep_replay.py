"""Split, Keep and Replay against the reference: every axis once and all of them together, in each family, under both expert strategies.

Every setting beside every other is compared with the uncut run, in less time, by tests/unit/plugins/offload.
"""

import itertools

import pytest
from harness.tiny_models import TINY_CONFIGS
from oracle.conftest import training_of
from oracle.test_parity import CLIPPED, compare

LAYERS = {"qwen3_5_moe": 8, "gemma4": 6}  # whole patterns; the others have 5
POLICIES = {
    "heads one by one": dict(attention_head_group=1),
    "heads in twos, kept": dict(attention_head_group=2, keep_attention="all"),
    "slices of one token": dict(moe_chunk=1),
    "slices of 33 tokens": dict(moe_chunk=33),
    "sub-batches": dict(sub_batch=1),
    "batches of attention, some kept": dict(attention_batch=64, keep_attention=[3]),
    "one boundary in two": dict(keep_boundaries="1+1", regenerate_cap=1),
    "one boundary in four, kept": dict(keep_boundaries="3+1", keep_attention="all", regenerate_cap=2),
    "a set of boundaries on the GPU": dict(keep_boundaries=[0, 2], boundaries_on_gpu=[2], regenerate_cap=3),
    "everything": dict(attention_head_group=1, moe_chunk=33, sub_batch=1, keep_attention="all", keep_boundaries="3+1", regenerate_cap=1, buffers=2),
}


def policy_tables(policy, ranks=1, experts="local", **data):
    return {"engine": {"ranks": ranks, "experts": experts}, "offload": POLICIES[policy], "data": data}


def changes_of(family):
    layers = LAYERS.get(family, 5)
    changes = [("num_hidden_layers", layers)]
    if "layer_types" in TINY_CONFIGS[family]:
        types = TINY_CONFIGS[family]["layer_types"]
        changes.append(("layer_types", tuple(types * layers)[:layers]))
    return tuple(changes)


WAYS = [("local", 1), ("local", 2), ("ep", 2)]


@pytest.mark.parametrize("policy, way", [*zip(POLICIES, itertools.cycle(WAYS)), *(("everything", way) for way in WAYS[1:])])
def test_qwen3_moe(oom, oracle, policy, way):
    experts, ranks = way
    oom.require("qwen3_moe", experts)
    compare(oom, oracle, training_of("qwen3_moe", router_aux_loss=0.1), changes=changes_of("qwen3_moe"), tables=policy_tables(policy, ranks, experts))


@pytest.mark.parametrize("policy", ["one boundary in four, kept", "everything"])
@pytest.mark.parametrize("family", [family for family in TINY_CONFIGS if family != "qwen3_moe"])
def test_other_families(oom, oracle, family, policy):
    oom.require(family, "local")
    compare(oom, oracle, training_of(family), family=family, changes=changes_of(family), tables=policy_tables(policy, 2))


# Windows reach back seven tokens: slices shorter and longer than that, with a rest and without.
WINDOWS = {
    "slices of 5 tokens": dict(attention_chunk=5),
    "slices of 16 tokens, kept": dict(attention_chunk=16, keep_attention="all"),
    "everything": dict(attention_chunk=12, attention_head_group=1, moe_chunk=33, sub_batch=1, keep_attention=[1, 5], keep_boundaries="5+1", regenerate_cap=2, buffers=2),
}


@pytest.mark.parametrize("policy", WINDOWS)
def test_windows_in_slices(oom, oracle, policy):
    """Keys and values of a window's context go from slice to slice, and their gradients back."""
    oom.require("gemma4", "local")
    compare(oom, oracle, training_of("gemma4", eps=1e-6), family="gemma4", tables={"engine": {"ranks": 2}, "offload": WINDOWS[policy]})


def test_isolated_documents(oom, oracle):
    oom.require("qwen3_moe", "local")
    compare(oom, oracle, training_of("qwen3_moe", documents="isolated", steps=3), changes=changes_of("qwen3_moe"), tables=policy_tables("everything", 2))


def test_clipping_with_everything(oom, oracle):
    oom.require("qwen3_moe", "local")
    training = training_of("qwen3_moe", clip_norm=CLIPPED)
    compare(oom, oracle, training, changes=changes_of("qwen3_moe"), tables=policy_tables("everything", 2))


def test_plan_file(oom, oracle):
    """A plan's settings are executed as they stand, edited ones too; what cannot be used is refused with its key."""
    oom.require("qwen3_moe", "local")
    training, changes = training_of("qwen3_moe"), changes_of("qwen3_moe")
    stated = dict(keep_boundaries="3+1", boundaries_on_gpu="none", keep_attention="none", attention_head_group=0)  # what is edited below, not left to the planner
    config = oracle.config(oom.folder, training, changes=changes, tables={"offload": stated})
    losses = oom.train(config).column("loss")
    oom.run("plan", config, "--out", "plan.toml")
    plan = oom.folder / "plan.toml"
    assert "keep_boundaries = [0, 4]" in plan.read_text()

    def planned(name, code=0, **edits):
        text = plan.read_text()
        for old, new in edits.values():
            assert old in text
            text = text.replace(old, new)
        (oom.folder / f"{name}.toml").write_text(text)
        tables = {"engine": {"plan": f"{name}.toml"}, "output": {"dir": f"run-{name}"}}
        config = oracle.config(oom.folder, training, changes=changes, tables=tables)
        return oom.run("train", config, code=code) if code else oom.train(config).column("loss")

    assert planned("same") == losses
    assert planned("moved", boundaries=("boundaries_on_gpu = []", "boundaries_on_gpu = [4]"), keep=("keep_attention = []", "keep_attention = [1]")) == losses
    assert planned("cut", heads=("attention_head_group = 0", "attention_head_group = 1")) == pytest.approx(losses, rel=1e-5)
    outcome = planned("wrong", code=4, keep=("boundaries_on_gpu = []", "boundaries_on_gpu = [3]"))
    assert "wrong.toml" in outcome.err and "boundaries_on_gpu" in outcome.err and "[0, 4]" in outcome.err


@pytest.mark.parametrize("key, value, words", [
    ("keep_attention", [9], ["offload.keep_attention", "9", "layers 0 to 4"]),
    ("boundaries_on_gpu", [1], ["offload.boundaries_on_gpu", "layer 1"]),
    ("attention_batch", 31, ["offload.attention_batch", "31", "32 tokens"]),
    ("keep_boundaries", "9+1", ["offload.keep_boundaries", "9+1", "5 layers"]),
    ("attention_chunk", 16, ["offload.attention_chunk", "sliding window", "attention_head_group"]),
])
def test_what_cannot_be_used(oom, oracle, key, value, words):
    oom.require("qwen3_moe", "local")
    policy = {key: value, **({"keep_boundaries": "1+1"} if key == "boundaries_on_gpu" else {})}
    config = oracle.config(oom.folder, training_of("qwen3_moe"), changes=changes_of("qwen3_moe"), tables={"engine": {"experts": "auto"}, "offload": policy})
    outcome = oom.run("train", config, code=2)
    assert "run.toml:" in outcome.err and all(word in outcome.err for word in words)
    assert outcome.err.count(words[0]) == 1  # told once, though every expert strategy is tried
