"""Expert parallelism against the reference, and against local execution: ranks, chunks, rounds, skewed routers, order of updates."""

import pytest
from harness.run_config import merged
from oracle.conftest import training_of
from oracle.test_parity import CLIPPED, compare
from oracle.test_routing import EXTREMES

WHOLE = "auto"


def ep_tables(ranks, chunk=WHOLE, rows="auto", **train):
    return {"engine": {"ranks": ranks, "experts": "ep"}, "ep": {"routing_chunk": chunk, "receive_rows": rows}, "train": train}


@pytest.mark.parametrize("clip_norm, updates", [(0.0, "overlapped"), (0.0, "deferred"), (CLIPPED, "deferred")])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_and_updates(oom, oracle, ranks, clip_norm, updates):
    oom.require("qwen3_moe", "ep")
    compare(oom, oracle, training_of("qwen3_moe", clip_norm=clip_norm, router_aux_loss=0.1), tables=ep_tables(ranks, updates=updates))


# 64 to 256 tokens a rank with 4 choices each; an even share of a chunk of 7 is 28 rows.
@pytest.mark.parametrize("ranks, chunk, rows", [
    (1, 7, "auto"), (2, 7, "auto"), (4, 64, "auto"), (2, 64, 100), (4, 7, 5), (4, WHOLE, 300), (8, WHOLE, 64), (2, WHOLE, 1 << 40)])
def test_chunks_and_rounds(oom, oracle, ranks, chunk, rows):
    oom.require("qwen3_moe", "ep")
    compare(oom, oracle, training_of("qwen3_moe"), tables=ep_tables(ranks, chunk, rows, updates="overlapped"))


@pytest.mark.parametrize("ranks, chunk, rows", [(2, 64, "auto"), (4, 7, 6), (4, WHOLE, 40)])
@pytest.mark.parametrize("routing", EXTREMES)
def test_skewed_routing(oom, oracle, routing, ranks, chunk, rows):
    """One owner takes every row, the others none; experts and whole ranks without tokens."""
    oom.require("qwen3_moe", "ep")
    compare(oom, oracle, training_of("qwen3_moe", clip_norm=CLIPPED), routing=routing, changes=EXTREMES[routing], tables=ep_tables(ranks, chunk, rows))


RESIDENT_AND_RETAINED = {"resident": "all", "retain": "all"}


@pytest.mark.parametrize("ranks, chunk, clip_norm, places", [
    *((ranks, chunk, clip_norm, {}) for ranks, chunk in ((2, 7), (2, 64), (2, WHOLE), (4, 7), (4, WHOLE)) for clip_norm in (0.0, CLIPPED)),
    (2, 64, CLIPPED, RESIDENT_AND_RETAINED), (4, 7, 0.0, RESIDENT_AND_RETAINED)])
def test_a_rank_without_tokens(oom, oracle, ranks, chunk, clip_norm, places):
    """An owner whose experts nobody chooses takes part in every exchange, and its experts decay all the same."""
    oom.require("qwen3_moe", "ep")
    routing = {2: "nothing for the second of two ranks", 4: "nothing for the second of four ranks"}[ranks]
    tables = retaining(ep_tables(ranks, chunk), **{"retain": "none", **places})
    compare(oom, oracle, training_of("qwen3_moe", clip_norm=clip_norm, steps=3), routing=routing, tables=tables)


@pytest.mark.parametrize("ranks, clip_norm, places", [
    *((ranks, clip_norm, {}) for ranks in (1, 2, 4) for clip_norm in (0.0, CLIPPED)), (2, 0.0, RESIDENT_AND_RETAINED), (4, CLIPPED, RESIDENT_AND_RETAINED)])
def test_one_token_a_rank(oom, oracle, ranks, clip_norm, places):
    """One token in total on one rank; most owners have no rows. A sequence of one token has nothing to attend to but itself: eps keeps AdamW from following the
    rounding of gradients that are zero."""
    oom.require("qwen3_moe", "ep")
    training = training_of("qwen3_moe", sequence_length=1, global_batch=ranks, clip_norm=clip_norm, steps=3, eps=1e-4)
    compare(oom, oracle, training, tables=retaining(ep_tables(ranks, 7), **{"retain": "none", **places}))


@pytest.mark.parametrize("family", ["mixtral", "qwen3_5_moe", "gemma4"])
def test_other_families_in_rounds(oom, oracle, family):
    oom.require(family, "ep")
    compare(oom, oracle, training_of(family), family=family, tables=ep_tables(2, 24, 50))


def test_agrees_with_local(oom, oracle):
    """To the last digits that a change of the order of summation leaves, and closer than to the reference."""
    oom.require("qwen3_moe", "ep", "local")
    training = training_of("qwen3_moe", clip_norm=CLIPPED)
    losses = []
    for experts in ("ep", "local"):
        folder = oom.folder / experts
        folder.mkdir()
        tables = {"engine": {"ranks": 4, "experts": experts}, "output": {"dir": str(folder / "run")}}
        losses.append(oom.train(oracle.config(folder, training, tables=tables)).column("loss"))
    assert losses[0] == pytest.approx(losses[1], rel=2e-6)


def test_evaluation(oom, oracle):
    """The forward alone, before any step."""
    oom.require("qwen3_moe", "ep", "local")
    training = training_of("qwen3_moe")
    losses = [oom.run("eval", oracle.config(oom.folder, training, tables=tables), "--json").json["loss"]
              for tables in (ep_tables(4, 7, 9), {"engine": {"ranks": 1, "experts": "local"}})]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_plan_file(oom, oracle):
    """A plan is executed as it stands; chunks and rounds may be edited in it."""
    oom.require("qwen3_moe", "ep")
    training = training_of("qwen3_moe")
    config = oracle.config(oom.folder, training, tables=ep_tables(2, 24, 50))
    losses = oom.train(config).column("loss")
    oom.run("plan", config, "--out", "plan.toml")
    planned = oracle.config(oom.folder, training, tables={"engine": {"ranks": 2, "experts": "ep", "plan": "plan.toml"}, "output": {"dir": "planned"}})
    assert oom.train(planned).column("loss") == losses
    plan = oom.folder / "plan.toml"
    assert "routing_chunk = 24" in plan.read_text()
    plan.write_text(plan.read_text().replace("routing_chunk = 24", "routing_chunk = 5"))
    edited = oracle.config(oom.folder, training, tables={"engine": {"ranks": 2, "experts": "ep", "plan": "plan.toml"}, "output": {"dir": "edited"}})
    assert oom.train(edited).column("loss") == pytest.approx(losses, rel=1e-5)


def test_ranks_must_divide_the_experts(oom, oracle):
    oom.require("qwen3_moe", "ep")
    training = training_of("qwen3_moe", global_batch=6)
    outcome = oom.run("train", oracle.config(oom.folder, training, tables=ep_tables(3)), code=2)
    assert "engine.ranks" in outcome.err and "1, 2, 4, 8" in outcome.err and "run.toml" in outcome.err


def retaining(tables, retain, attention="none", rows="auto", resident="none"):
    return merged(tables, {"ep": {"retain": retain, "retain_attention": attention, "retain_rows": rows}, "state": {"resident": resident}})


# tests/unit/plugins/ep/combinations_test.cpp compares all residencies and retentions of each of these with each other, to the bit.
@pytest.mark.parametrize("ranks, chunk, clip_norm, resident, retain", [
    (2, 7, 0.0, "none", [0, 2]), (2, 7, CLIPPED, [1], "all"), (2, 64, 0.0, "all", "none"), (2, 64, CLIPPED, "none", "all"), (2, WHOLE, 0.0, [1], "none"), (2, WHOLE, CLIPPED, "all", [0, 2]),
    (4, 7, 0.0, "all", "all"), (4, 7, CLIPPED, "none", "none"), (4, 64, 0.0, [1], [0, 2]), (4, 64, CLIPPED, "all", "none"), (4, WHOLE, 0.0, "none", "all"), (4, WHOLE, CLIPPED, [1], [0, 2])])
def test_combinations(oom, oracle, ranks, chunk, clip_norm, resident, retain):
    """128 or 256 tokens a rank: chunks of 64 are chunks."""
    oom.require("qwen3_moe", "ep")
    training = training_of("qwen3_moe", global_batch=16, clip_norm=clip_norm, steps=3)
    compare(oom, oracle, training, tables=retaining(ep_tables(ranks, chunk), retain, resident=resident))


# What is retained changes no bit (tests/unit/plugins/ep/retained_run_test.cpp); here is that there is no common mistake. The model has 3 layers.
@pytest.mark.parametrize("ranks, chunk, resident, retain, attention, clip_norm", [
    (2, WHOLE, "none", "all", "none", CLIPPED), (4, 7, [1], "all", "all", 0.0), (2, 64, "all", [0, 2], [1, 2], CLIPPED), (4, WHOLE, "all", 1, "all", 0.0),
    (1, 64, "none", "all", [1], CLIPPED)])
def test_retained(oom, oracle, ranks, chunk, resident, retain, attention, clip_norm):
    oom.require("qwen3_moe", "ep")
    tables = retaining(ep_tables(ranks, chunk), retain, attention, resident=resident)
    compare(oom, oracle, training_of("qwen3_moe", clip_norm=clip_norm, router_aux_loss=0.1), tables=tables)


# 64 or 128 tokens a rank: an owner that every token chooses has 256 rows and keeps some rounds of them, or none; the others have none at all.
@pytest.mark.parametrize("ranks, chunk, rows, kept", [(4, WHOLE, 40, 100), (2, 64, "auto", 70)])
@pytest.mark.parametrize("routing", EXTREMES)
def test_retained_with_skewed_routing(oom, oracle, routing, ranks, chunk, rows, kept):
    oom.require("qwen3_moe", "ep")
    tables = retaining(ep_tables(ranks, chunk, rows), "all", [1], kept, resident=[2])
    compare(oom, oracle, training_of("qwen3_moe", clip_norm=CLIPPED), routing=routing, changes=EXTREMES[routing], tables=tables)


@pytest.mark.parametrize("family", ["qwen3_5_moe", "gemma4"])
def test_retained_in_other_families(oom, oracle, family):
    oom.require(family, "ep")
    compare(oom, oracle, training_of(family), family=family, tables=retaining(ep_tables(2, 24, 50), "all", "all", rows=60))


def test_retained_agrees_with_local(oom, oracle):
    oom.require("qwen3_moe", "ep", "local")
    training = training_of("qwen3_moe", clip_norm=CLIPPED)
    losses = []
    for name, tables in {"ep": retaining(ep_tables(4, 7), "all", "all"), "local": {"engine": {"ranks": 4, "experts": "local"}}}.items():
        folder = oom.folder / name
        folder.mkdir()
        losses.append(oom.train(oracle.config(folder, training, tables=merged(tables, {"output": {"dir": str(folder / "run")}}))).column("loss"))
    assert losses[0] == pytest.approx(losses[1], rel=2e-6)


def test_retained_layers_in_a_plan_file(oom, oracle):
    """A plan lists them in one place, for every expert strategy."""
    oom.require("qwen3_moe", "ep", "local")
    training = training_of("qwen3_moe")
    losses = {}
    for experts in ("ep", "local"):
        config = oracle.config(oom.folder, training, tables={"engine": {"ranks": 2, "experts": experts}, "output": {"dir": experts}})
        losses[experts] = oom.train(config).column("loss")
        oom.run("plan", config, "--out", f"{experts}.toml")

    def edited(experts, *edits, code=0):
        text = (oom.folder / f"{experts}.toml").read_text()
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        (oom.folder / "edited.toml").write_text(text)
        tables = {"engine": {"ranks": 2, "experts": experts, "plan": "edited.toml"}, "output": {"dir": f"run{len(list(oom.folder.iterdir()))}"}}
        config = oracle.config(oom.folder, training, tables=tables)
        return oom.run("train", config, code=code).err if code else oom.train(config).column("loss")

    lists = [("retained_feed_forward = []", "retained_feed_forward = [0, 1]"), ("retained_attention = []", "retained_attention = [1, 2]")]
    for experts in ("ep", "local"):
        assert edited(experts, *lists) == losses[experts]
    outcome = edited("local", ("retained_attention = []", "retained_attention = [1, 9]"), code=4)
    assert "edited.toml: state.retained_attention" in outcome and "layers 0 to 2" in outcome and "9" in outcome
    outcome = edited("ep", ('retain = "auto"', "retain = [0]"), code=4)
    assert "ep" in outcome and "state.retained_feed_forward" in outcome
    outcome = edited("local", lists[1], ("attention_head_group = 0", "attention_head_group = 1"), code=4)
    assert "edited.toml: settings.offload" in outcome and "attention_head_group" in outcome and "[1, 2]" in outcome and "cure: 0" in outcome


@pytest.mark.parametrize("tables, words", [
    ({"ep": {"retain": [3]}}, ["run.toml", "ep.retain", "layers 0 to 2"]),
    ({"ep": {"retain_attention": 1}, "offload": {"attention_head_group": 2}}, ["run.toml", "offload.attention_head_group", "[0]", "got 2", "cure: 0"])])
def test_what_cannot_be_retained(oom, oracle, tables, words):
    oom.require("qwen3_moe", "ep")
    outcome = oom.run("train", oracle.config(oom.folder, training_of("qwen3_moe"), tables=merged({"engine": {"experts": "ep"}}, tables)), code=2)
    assert all(word in outcome.err for word in words), outcome.err
