"""Expert parallelism against the reference, and against local execution: ranks, chunks, rounds, skewed routers, order of updates."""

import subprocess

import pytest
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


@pytest.mark.parametrize("key, value", [("retain", "all"), ("retain", 1), ("retain_attention", [0])])
def test_what_is_not_built_is_refused(oom, oracle, key, value):
    oom.require("qwen3_moe", "ep")
    config = oracle.config(oom.folder, training_of("qwen3_moe"), tables={"engine": {"experts": "ep"}, "ep": {key: value}})
    # Not by oom.run, which takes "not built yet" for a command that is missing.
    outcome = subprocess.run([oom.binary, "train", config], cwd=oom.folder, capture_output=True, text=True)
    assert outcome.returncode == 2 and f"ep.{key}" in outcome.stderr and "not built yet" in outcome.stderr
