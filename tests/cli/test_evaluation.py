"""Evaluation during training: held-out data, figures beside the steps, best checkpoints, and training that does not notice."""

import json
import signal
import time
import tomllib

import numpy as np
import pytest
from harness.megatron import write_corpus
from harness.program import Run
from harness.tiny_models import write_model_config
from harness.workspace import GLOBAL_BATCH, SEQUENCE_LENGTH, documents


@pytest.fixture
def held_out(workspace):
    """Seven samples, which no global batch divides."""
    tokens = [token for document in documents(seed=9) for token in document][:7 * SEQUENCE_LENGTH + 5]
    write_corpus(workspace.folder / "held", [tokens])
    return workspace


def evaluated(run):
    return {line["step"]: line["eval_loss"] for line in run.metrics() if "eval_loss" in line}


def bits_of(checkpoint):
    """Every tensor file of a checkpoint."""
    return {path.name: path.read_bytes() for path in checkpoint.glob("*.safetensors")}


STATES = [{}, {"weights": "convert"}, {"resident": "all", "resident_ordinary": "all"}, {"resident": 1}]


@pytest.mark.parametrize("experts", ["local", pytest.param("ep", marks=pytest.mark.plugin("ep"))])
@pytest.mark.parametrize("train, state", [({"updates": "overlapped"}, {}), ({"clip_norm": 0.5}, {}), *(({"updates": "deferred"}, state) for state in STATES)], ids=str)
def test_training_does_not_notice(engine, held_out, experts, train, state):
    """Losses, norms and the final state are those of a run without evaluation, to the last bit."""
    changes = {"engine": {"experts": experts}, "train": {"steps": 5, **train}, "data": {"shuffle_seed": 1}, "state": state}
    plain = engine.train(held_out.config(**changes))
    run = engine.train(held_out.config("evaluated.toml", **changes, eval={"every": 2, "path": "held"}, output={"dir": "evaluated"}))
    assert sorted(evaluated(run)) == [2, 4]
    for column in ("step", "loss", "aux_loss", "grad_norm", "learning_rate", "tokens"):
        assert run.column(column) == plain.column(column), column
    assert bits_of(run.last_checkpoint()) == bits_of(plain.last_checkpoint())


@pytest.mark.parametrize("updates", ["overlapped", "deferred"])
def test_is_the_loss_of_the_state_that_the_step_left(engine, held_out, updates):
    """`oom eval` of the exported checkpoint finds the same loss on the same samples."""
    config = held_out.config(train={"updates": updates}, eval={"every": 3, "path": "held"})
    run = engine.train(config)
    line = run.metrics()[-1]
    assert line["eval_tokens"] == 7 * SEQUENCE_LENGTH and line["eval_seconds"] > 0
    engine.run("export", run.last_checkpoint(), "--out", "out", "--dtype", "fp32")
    answer = engine.run("eval", held_out.config("again.toml", model={"path": "out", "weights": "load"}, eval={"path": "held"}), "--json").json
    assert answer["tokens"] == line["eval_tokens"]
    assert answer["loss"] == pytest.approx(line["eval_loss"], rel=1e-6)
    assert json.loads((run.last_checkpoint() / "evaluation.json").read_text()) == {"loss": line["eval_loss"], "tokens": line["eval_tokens"]}


def test_progress_shows_it(engine, held_out):
    err = engine.run("train", held_out.config(eval={"every": 2, "path": "held", "samples": 3})).err
    assert any("step 2/3" in line and "eval " in line for line in err.splitlines()), err


def test_held_out_tail_is_not_trained_on(engine, workspace):
    """The tail evaluated is the tail of the data, and training reads what a corpus without it holds."""
    tokens = [token for document in documents() for token in document]
    samples = (len(tokens) - 1) // SEQUENCE_LENGTH
    hold = 5
    kept = (samples - hold) * SEQUENCE_LENGTH
    write_corpus(workspace.folder / "corpus", [tokens])
    write_corpus(workspace.folder / "head", [tokens[:kept + 1]])
    write_corpus(workspace.folder / "tail", [tokens[kept:]])
    steps = samples // GLOBAL_BATCH + 2  # into the next epoch
    run = engine.train(workspace.config(train={"steps": steps}, data={"shuffle_seed": 4}, eval={"every": steps, "holdout_samples": hold}))
    other = engine.train(workspace.config("other.toml", train={"steps": steps}, data={"shuffle_seed": 4, "path": "head"}, eval={"every": steps, "path": "tail"}, output={"dir": "other"}))
    assert run.column("loss") == other.column("loss")
    assert evaluated(run) == evaluated(other) and run.metrics()[-1]["eval_tokens"] == hold * SEQUENCE_LENGTH
    answer = engine.run("eval", workspace.config("eval.toml", eval={"holdout_samples": hold}), "--json").json
    assert answer["tokens"] == hold * SEQUENCE_LENGTH


def test_nothing_left_to_train_on(engine, workspace):
    message = engine.run("train", workspace.config(eval={"every": 1, "holdout_samples": 10**6}), code=4).err
    assert "corpus" in message and "eval.holdout_samples" in message


def test_text_is_held_out_too(engine, workspace):
    (workspace.folder / "a.txt").write_text("The quick brown fox. " * 100)
    write_model_config(workspace.folder / "bytes", vocab_size=256)
    run = engine.train(workspace.config(model={"path": "bytes"}, eval={"every": 1, "path": "a.txt", "format": "text"}))
    assert len(evaluated(run)) == 3


def test_an_interruption_does_not_wait_for_it(engine, workspace):
    """SIGINT within an evaluation that takes many seconds: the step is kept and checkpointed, without a result."""
    generator = np.random.default_rng(1)
    write_corpus(workspace.folder / "held", [generator.integers(1, 160, 30_000 * SEQUENCE_LENGTH + 1)])
    process = engine.start("train", workspace.config(eval={"every": 1, "path": "held"}, checkpoint={"keep_best": 1}))
    deadline = time.monotonic() + 60
    while not (workspace.folder / "run/config.toml").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(1.5)  # a step takes milliseconds
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130, engine.started_errors()
    run = Run(workspace.folder / "run")
    assert run.column("step") == [1] and evaluated(run) == {}
    assert [checkpoint.name for checkpoint in run.checkpoints()] == ["step-000001"]
    assert not (run.last_checkpoint() / "evaluation.json").exists()


class TestBest:
    TABLES = {"train": {"steps": 6, "learning_rate": 0.03}, "checkpoint": {"every": 1, "keep": 1, "keep_best": 2}, "eval": {"path": "held"}}

    @staticmethod
    def best_of(losses, count):
        return sorted(losses, key=lambda step: (losses[step], -step))[:count]

    def check(self, run):
        losses = evaluated(run)
        best = self.best_of(losses, 2)
        assert {checkpoint.name for checkpoint in run.checkpoints()} == {f"step-{step:06}" for step in {*best, max(losses)}}
        link = run.folder / "checkpoints/best"
        assert link.is_symlink() and link.resolve().name == f"step-{best[0]:06}"
        return best

    def test_are_kept_beside_the_newest(self, engine, held_out):
        """At this rate the loss on other random tokens falls and rises."""
        run = engine.train(held_out.config(**self.TABLES))
        assert sorted(evaluated(run)) == [1, 2, 3, 4, 5, 6]
        best = self.check(run)
        assert best[0] != 6, "the last one is the best: this run shows nothing"
        engine.run("export", run.folder / "checkpoints/best", "--out", "out")
        engine.run("export", run.folder / f"checkpoints/step-{best[0]:06}", "--out", "same")
        assert (engine.folder / "out/model.safetensors").read_bytes() == (engine.folder / "same/model.safetensors").read_bytes()
        found = engine.run("inspect", run.folder / "checkpoints/best", "--json").json
        assert found["step"] == best[0] and found["evaluation"]["loss"] == evaluated(run)[best[0]]

    def test_outlive_a_resumed_run(self, engine, held_out):
        config = held_out.config(**self.TABLES)
        engine.run("train", config, "--set", "train.steps=4")
        engine.run("train", config, "--resume", "--set", "train.steps=7")
        run = Run(engine.folder / "run")
        assert sorted(evaluated(run)) == [1, 2, 3, 4, 5, 6, 7]
        self.check(run)
        # Without keep_best none is the best any more.
        engine.run("train", config, "--resume", "--set", "train.steps=8", "--set", "checkpoint.keep_best=0")
        assert not (run.folder / "checkpoints/best").is_symlink()
        assert [checkpoint.name for checkpoint in run.checkpoints()] == ["step-000008"]

    def test_need_held_out_data(self, engine, workspace):
        assert "checkpoint.keep_best" in engine.run("train", workspace.config(checkpoint={"keep_best": 1}), code=2).err


def test_resolved_config_knows_the_keys(oom, workspace):
    resolved = tomllib.loads(oom.run("config", workspace.config()).out)
    assert resolved["eval"]["every"] == 0 and resolved["eval"]["holdout_samples"] == 0 and resolved["checkpoint"]["keep_best"] == 0
