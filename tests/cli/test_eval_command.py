"""`oom eval`: the mean loss over every sample once."""

import pytest
from harness.workspace import GLOBAL_BATCH, SEQUENCE_LENGTH, documents
from harness.megatron import write_corpus


@pytest.fixture
def one_batch(workspace):
    """Token files that hold the samples of one step, and a tail too short to be one."""
    tokens = [token for document in documents(seed=5) for token in document]
    write_corpus(workspace.folder / "corpus", [tokens[:GLOBAL_BATCH * SEQUENCE_LENGTH + SEQUENCE_LENGTH // 2]])
    return workspace


@pytest.mark.parametrize("ranks", [1, 2])
def test_equals_the_first_step_loss(engine, one_batch, ranks):
    config = one_batch.config(engine={"ranks": ranks}, train={"steps": 1})
    answer = engine.run("eval", config, "--json").json
    assert answer["tokens"] == GLOBAL_BATCH * SEQUENCE_LENGTH
    assert answer["loss"] == pytest.approx(engine.train(config).column("loss")[0], rel=1e-5)


def test_samples_limits(engine, workspace):
    answer = engine.run("eval", workspace.config(), "--json", "--set", "eval.samples=4").json
    assert answer["tokens"] == 4 * SEQUENCE_LENGTH


def test_changes_nothing(engine, workspace):
    config = workspace.config()
    first = engine.run("eval", config, "--json").json
    assert engine.run("eval", config, "--json").json == first
    assert not (workspace.folder / "run").exists()


@pytest.mark.parametrize("variable, value", [("OMP_THREAD_LIMIT", "1"), ("OMP_DYNAMIC", "true")])
def test_fewer_threads_than_wanted_give_the_same_loss(engine, workspace, variable, value):
    """Schedulers of shared machines limit threads; oneDNN's products were wrong with fewer than it expected."""
    config = workspace.config(engine={"ranks": 1})
    wanted, limited = (engine.run("eval", config, "--json", environment=environment).json["loss"] for environment in ({}, {variable: value}))
    assert limited == pytest.approx(wanted, rel=1e-6)
