"""Where state lives, how weights reach the devices and where gradients are summed: each way against the reference."""

import pytest
from oracle.conftest import training_of
from oracle.models import load_model
from oracle.test_parity import CLIPPED, compare
from oracle.test_precision import check_bf16

NOTHING, EXPERTS_OF_ONE, EXPERTS, ORDINARY, EVERYTHING = (
    {"resident": "none", "resident_ordinary": "none"}, {"resident": [1], "resident_ordinary": "none"}, {"resident": "all", "resident_ordinary": "none"},
    {"resident": 0, "resident_ordinary": "all"}, {"resident": "all", "resident_ordinary": "all"})
KEPT, MADE = {"resident_weights": "cached"}, {"resident_weights": "convert"}
CONVERT = {"weights": "convert"}


def tables(experts, ranks, state, updates="auto", **more):
    return {"engine": {"ranks": ranks, "experts": experts}, "state": state, "train": {"updates": updates}, **more}


# Every residency with every number of ranks, and every pair of the other choices.
@pytest.mark.parametrize("state, experts, ranks, clip_norm, updates", [
    (EXPERTS_OF_ONE | MADE, "local", 1, 0.0, "overlapped"),
    (EXPERTS_OF_ONE | KEPT, "ep", 2, CLIPPED, "deferred"),
    (EXPERTS_OF_ONE | MADE | CONVERT, "local", 4, 0.0, "deferred"),
    (EXPERTS | KEPT, "ep", 1, 0.0, "deferred"),
    (EXPERTS | MADE, "local", 2, CLIPPED, "deferred"),
    (EXPERTS | KEPT | CONVERT, "ep", 4, 0.0, "overlapped"),
    (ORDINARY | MADE, "ep", 1, CLIPPED, "deferred"),
    (ORDINARY | KEPT | CONVERT, "local", 2, 0.0, "overlapped"),
    (ORDINARY | MADE, "ep", 4, 0.0, "overlapped"),
    (EVERYTHING | MADE, "ep", 1, 0.0, "overlapped"),
    (EVERYTHING | KEPT, "local", 2, 0.0, "deferred"),
    (EVERYTHING | MADE, "ep", 2, 0.0, "overlapped"),
    (EVERYTHING | KEPT, "local", 4, CLIPPED, "deferred"),
], ids=str)
def test_residency(oom, oracle, state, experts, ranks, clip_norm, updates):
    oom.require("qwen3_moe", experts)
    compare(oom, oracle, training_of("qwen3_moe", clip_norm=clip_norm), tables=tables(experts, ranks, state, updates))


@pytest.mark.parametrize("experts, ranks, clip_norm, delivery", [("local", 1, 0.0, "shard"), ("local", 2, CLIPPED, "full"), ("local", 4, 0.0, "shard"), ("ep", 2, 0.0, "full")])
def test_weights_made_at_delivery(oom, oracle, experts, ranks, clip_norm, delivery):
    oom.require("qwen3_moe", experts)
    more = {"local": {"delivery": delivery}, "transfer": {"ordinary_delivery": delivery}}
    compare(oom, oracle, training_of("qwen3_moe", clip_norm=clip_norm), tables=tables(experts, ranks, NOTHING | CONVERT, **more))


@pytest.mark.parametrize("experts, ranks, clip_norm, updates", [
    ("local", 1, 0.0, "overlapped"), ("local", 2, 0.0, "overlapped"), ("local", 2, CLIPPED, "deferred"), ("local", 4, 0.0, "deferred"), ("ep", 4, CLIPPED, "deferred")])
def test_reduction_on_the_host(oom, oracle, experts, ranks, clip_norm, updates):
    oom.require("qwen3_moe", experts)
    transfer = {"transfer": {"gradient_reduction": "host"}}
    compare(oom, oracle, training_of("qwen3_moe", clip_norm=clip_norm), tables=tables(experts, ranks, EXPERTS_OF_ONE, updates, **transfer))


@pytest.mark.parametrize("family", ["mixtral", "qwen3_5_moe", "gemma4"])
def test_other_families(oom, oracle, family):
    """Buffers that no update reaches, tied embeddings, experts beside a dense branch."""
    oom.require(family, "local")
    compare(oom, oracle, training_of(family), family=family, tables=tables("local", 2, EVERYTHING | KEPT))


@pytest.mark.parametrize("state, transfer", [(EVERYTHING | MADE, {}), (EXPERTS | KEPT | CONVERT, {}), (NOTHING | CONVERT, {"gradient_reduction": "host"})], ids=str)
@pytest.mark.parametrize("experts", ["local", "ep"])
def test_bf16(oom, oracle, experts, state, transfer):
    oom.require("qwen3_moe", experts)
    check_bf16(oom, oracle, tables(experts, 2, state, transfer=transfer))


@pytest.mark.parametrize("first, then", [
    (({"engine": {"ranks": 2, "experts": "local"}, "state": NOTHING}), ({"engine": {"ranks": 4, "experts": "ep"}, "state": EVERYTHING})),
    (({"engine": {"ranks": 4, "experts": "ep"}, "state": EXPERTS_OF_ONE | KEPT}), ({"engine": {"ranks": 1, "experts": "local"}, "state": NOTHING | CONVERT})),
    (({"engine": {"ranks": 2, "experts": "local"}, "state": EVERYTHING | KEPT}), ({"engine": {"ranks": 2, "experts": "local"}, "state": ORDINARY | CONVERT})),
], ids=["to the GPUs", "from the GPUs", "between"])
def test_resume_under_another_residency(oom, oracle, first, then):
    """A checkpoint knows nothing of where state lived."""
    oom.require("qwen3_moe", "local", "ep")
    training = training_of("qwen3_moe")
    before = oracle.config(oom.folder, training, tables=first)
    oom.run("train", before, "--set", "train.steps=3")
    run = oom.train(oracle.config(oom.folder, training, tables=then), "--resume")
    expected = oracle.expected(training)
    expected.check_metrics(run, training)
    exported, report = load_model(oom.export(run.last_checkpoint(), oom.folder / "exported"), "qwen3_moe")
    assert report == {}
    expected.check_weights(exported)


def test_evaluation(oom, oracle):
    """The forward alone, from state on the devices."""
    oom.require("qwen3_moe", "local", "ep")
    training = training_of("qwen3_moe")
    losses = [oom.run("eval", oracle.config(oom.folder, training, tables=tables(experts, ranks, state)), "--json").json["loss"]
              for experts, ranks, state in (("local", 1, NOTHING), ("ep", 4, EVERYTHING | KEPT), ("local", 2, EVERYTHING | MADE), ("local", 2, NOTHING | CONVERT))]
    assert losses[1:] == pytest.approx([losses[0]] * 3, rel=1e-6)
