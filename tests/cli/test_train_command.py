"""`oom train`: what a run leaves behind, and when it refuses to start."""

import fcntl
import re
import tomllib

import pytest
from harness.megatron import write_corpus
from harness.program import Run
from harness.run_config import EXPERTS
from harness.tiny_models import write_model_config
from harness.workspace import GLOBAL_BATCH, SEQUENCE_LENGTH, documents


@pytest.mark.parametrize("arguments", [[], ["trian"], ["train"], ["train", "a.toml", "b.toml"], ["train", "--no-such-option"]])
def test_wrong_usage(oom, arguments):
    assert oom.run(*arguments, code=2).err.strip()


def test_help(oom):
    text = oom.run("--help").out
    assert all(command in text for command in
               ("train", "plan", "calibrate", "compare", "eval", "export", "config", "inspect", "doctor", "report"))


def test_run_folder(engine, workspace):
    config = workspace.config()
    run = engine.train(config)
    resolved = tomllib.loads((run.folder / "config.toml").read_text())
    assert resolved == engine.run("config", config).toml
    assert tomllib.loads((run.folder / "plan.toml").read_text())
    assert [checkpoint.name for checkpoint in run.checkpoints()] == ["step-000003"]


def test_metrics(engine, workspace):
    run = engine.train(workspace.config())
    lines = run.metrics()
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert line["loss"] == pytest.approx(5.1, abs=0.5)  # ln 160 = 5.08
        assert line["aux_loss"] == 0.0 and line["learning_rate"] == pytest.approx(1e-3)
        assert line["grad_norm"] > 0 and line["step_seconds"] > 0
        assert line["tokens"] == GLOBAL_BATCH * SEQUENCE_LENGTH
        assert len(line["gpu_peak_bytes"]) == 2 and all(isinstance(bytes_, int) for bytes_ in line["gpu_peak_bytes"])
        assert line["host_bytes"] > 0


def test_results_and_logs_are_apart(engine, workspace):
    config = workspace.config()
    assert engine.run("eval", config, "--json").json.keys() >= {"loss", "tokens"}


def test_same_plan_same_bits(engine, workspace):
    config = workspace.config()
    first = engine.train(config)
    engine.run("train", config, "--set", "output.dir=second")
    assert Run(engine.folder / "second").column("loss") == first.column("loss")


def test_recorded_plan_can_be_executed(engine, workspace):
    first = engine.train(workspace.config())
    engine.run("train", workspace.config("again.toml", engine={"plan": "run/plan.toml"}, output={"dir": "second"}))
    assert Run(engine.folder / "second").column("loss") == first.column("loss")


def test_random_weights_are_independent_of_ranks(engine, workspace):
    losses = [engine.train(workspace.config(f"{ranks}.toml", engine={"ranks": ranks}, output={"dir": f"run-{ranks}"})).column("loss")
              for ranks in (1, 2, 4)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5) and losses[2] == pytest.approx(losses[0], rel=1e-5)


def test_seed_matters(engine, workspace):
    losses = [engine.train(workspace.config(f"{seed}.toml", model={"seed": seed}, output={"dir": f"run-{seed}"})).column("loss")
              for seed in (1, 2)]
    assert losses[0] != losses[1]


def test_shuffling_changes_the_order(engine, workspace):
    shuffled = engine.train(workspace.config("shuffled.toml", data={"shuffle_seed": 1}, output={"dir": "shuffled"}))
    assert shuffled.column("loss") != engine.train(workspace.config()).column("loss")


def test_text(engine, workspace):
    (workspace.folder / "text").mkdir()
    (workspace.folder / "text/a.txt").write_text("Grüße! The quick brown fox jumps over the lazy dog.\n" * 20)
    (workspace.folder / "text/b.txt").write_text("Pack my box with five dozen liquor jugs.\n" * 20)
    write_model_config(workspace.folder / "bytes", vocab_size=256)
    run = engine.train(workspace.config(model={"path": "bytes"}, data={"format": "text", "path": "text"}, train={"steps": 2}))
    assert len(run.metrics()) == 2


def test_text_needs_256_tokens(engine, workspace):
    (workspace.folder / "a.txt").write_text("The quick brown fox. " * 100)
    message = engine.run("train", workspace.config(data={"format": "text", "path": "a.txt"}), code=2).err
    assert "160" in message and "256" in message


class TestOutputFolder:
    def test_with_a_run_is_refused(self, engine, workspace):
        config = workspace.config()
        before = engine.train(config).column("loss")
        message = engine.run("train", config, code=2).err
        assert "run" in message and "--resume" in message and "output.overwrite" in message
        assert Run(engine.folder / "run").column("loss") == before

    def test_can_be_overwritten(self, engine, workspace):
        config = workspace.config()
        first = engine.train(config)
        engine.run("train", config, "--set", "output.overwrite=true", "--set", "train.steps=2")
        assert first.column("step") == [1, 2]
        assert [checkpoint.name for checkpoint in first.checkpoints()] == ["step-000002"]


class TestCheckpoints:
    def test_every_and_keep(self, engine, workspace):
        run = engine.train(workspace.config(checkpoint={"every": 1, "keep": 2}, train={"steps": 5}))
        assert [checkpoint.name for checkpoint in run.checkpoints()] == ["step-000004", "step-000005"]

    def test_none_at_end(self, engine, workspace):
        assert engine.train(workspace.config(checkpoint={"at_end": False})).checkpoints() == []

    def test_resume_goes_on_to_the_total(self, engine, workspace):
        config = workspace.config()
        run = engine.train(config)
        engine.run("train", config, "--resume", "--set", "train.steps=5")
        assert run.column("step") == [1, 2, 3, 4, 5]


    def test_a_run_is_replaced_only_by_one_that_starts(self, engine, workspace):
        config = workspace.config()
        run = engine.train(config)
        engine.run("train", config, "--set", "output.overwrite=true", "--set", "data.path=/nonexistent", code=4)
        assert [checkpoint.name for checkpoint in run.checkpoints()] == ["step-000003"]
        assert run.column("step") == [1, 2, 3]

    def test_a_failed_resume_leaves_the_resolved_config(self, engine, workspace):
        config = workspace.config()
        run = engine.train(config)
        before = (run.folder / "config.toml").read_text()
        engine.run("train", config, "--resume", "--set", "train.steps=5", "--set", "data.path=/nonexistent", code=4)
        assert (run.folder / "config.toml").read_text() == before

    def test_resume_wants_the_batch_of_the_checkpoint(self, engine, workspace):
        config = workspace.config()
        engine.train(config)
        message = engine.run("train", config, "--resume", "--set", "train.steps=5", "--set", f"train.global_batch={2 * GLOBAL_BATCH}", code=2).err
        assert "train.global_batch" in message and str(GLOBAL_BATCH) in message

    @pytest.mark.parametrize("key, now, before", [
        ("train.betas", "[0.8, 0.95]", "[0.9, 0.999]"), ("train.learning_rate", "0.5", "0.001"), ("train.router_aux_loss", "0.1", "left out"), ("model.seed", "9", "3"),
        ("data.mask", '"none"', '"auto"'), ("precision.gradients", '"bf16"', "left out")])
    def test_resume_tells_what_differs(self, engine, workspace, key, now, before):
        config = workspace.config()
        engine.train(config)
        lines = [line for line in engine.run("train", config, "--resume", "--set", "train.steps=4", "--set", f"{key}={now}").err.splitlines() if "step-000003" in line and "now" in line]
        assert len(lines) == 1 and f"{key}: {now} now, {before} in" in lines[0], lines

    def test_resume_with_nothing_changed_warns_of_nothing(self, engine, workspace):
        config = workspace.config()
        engine.train(config)
        assert " now, " not in engine.run("train", config, "--resume", "--set", "train.steps=4", "--set", "engine.ranks=1", "--set", "checkpoint.keep=5").err

    def test_resume_with_moved_data_is_told(self, engine, workspace):
        config = workspace.config()
        run = engine.train(config)
        for suffix in (".bin", ".idx"):
            (workspace.folder / f"corpus{suffix}").rename(workspace.folder / f"moved{suffix}")
        assert 'data.path: "moved" now, "corpus" in' in engine.run("train", config, "--resume", "--set", "train.steps=4", "--set", "data.path=moved").err
        assert run.column("step") == [1, 2, 3, 4]

    @pytest.mark.parametrize("key, now, before", [("data.sequence_length", "16", "32"), ("data.shuffle_seed", "5", "left out"), ("data.path", "other", "tokens"), ("eval.holdout_samples", "2", "samples")])
    def test_resume_refuses_another_position(self, engine, workspace, key, now, before):
        """Otherwise samples would be read twice or not at all."""
        write_corpus(workspace.folder / "other", documents(seed=8))
        config = workspace.config()
        run = engine.train(config)
        arguments = ["train", config, "--resume", "--set", "train.steps=4", "--set", f"{key}={now}"]
        message = engine.run(*arguments, code=2).err
        assert "step-000003" in message or "the checkpoint's" in message, message
        assert before in message and "data.allow_change" in message, message
        assert run.column("step") == [1, 2, 3]
        message = engine.run(*arguments, "--set", "data.allow_change=true").err
        assert "samples may come twice or not at all" in message
        assert run.column("step") == [1, 2, 3, 4]

    def test_one_process_at_a_time(self, engine, workspace):
        config = workspace.config()
        run = engine.train(config)
        with open(run.folder / ".lock", "w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            assert "another oom process" in engine.run("train", config, "--resume", "--set", "train.steps=5", code=2).err


def test_more_ranks_than_a_machine_has(engine, workspace):
    assert "engine.ranks" in engine.run("plan", workspace.config(), "--set", "engine.ranks=1024", "--set", "train.global_batch=1024", code=2).err


@pytest.mark.parametrize("family, key, value", [
    *[(family, *fault) for family in ("qwen3_moe", "mixtral", "qwen3_5_moe") for fault in [
        ("hidden_size", 1 << 62), ("num_hidden_layers", 10**9), ("num_hidden_layers", 0), ("rms_norm_eps", -1.0), ("rope_theta", 0), ("rope_theta", -1e4), ("initializer_range", -0.02),
        ("max_position_embeddings", 0), ("rope_parameters.rope_theta", 0), ("rope_parameters.factor", 0)]],
    *[("gemma4", key, value) for key, value in [("rms_norm_eps", 0), ("initializer_range", -0.02), ("max_position_embeddings", -1)]],
    ("qwen3_moe", "mlp_only_layers", [3]), ("qwen3_moe", "mlp_only_layers", [-1]), ("qwen3_moe", "mlp_only_layers", [1, 1]), ("mixtral", "sliding_window", -1)])
def test_values_that_no_model_has(engine, workspace, family, key, value):
    engine.require(family)
    outer, _, inner = key.partition(".")
    change = {outer: {"rope_type": "yarn", "factor": 2.0, inner: value} if inner else value}
    folder = write_model_config(workspace.folder / "absurd", family, **change)
    message = engine.run("plan", workspace.config(model={"path": str(folder)}), code=4).err
    wrong = value[0] if isinstance(value, list) else value
    assert re.search(rf"absurd/config.json: {re.escape(key)}: must .*; got {re.escape(str(wrong).removesuffix('.0'))}", message), message


def test_divergence(engine, workspace):
    """Weights of 1e30 make the second step's loss infinite."""
    message = engine.run("train", workspace.config(train={"learning_rate": 1e30, "updates": "deferred"}), code=6).err
    assert "step 2" in message and "rank" in message and "no checkpoint yet" in message
    assert Run(engine.folder / "run").checkpoints() == []


@pytest.mark.parametrize("updates", ["overlapped", "deferred"])
def test_divergence_leaves_the_last_checkpoint_good(engine, workspace, updates):
    """Step 3 is trained at a rate that makes step 4 diverge; from the checkpoint of step 2 all goes on as if that had never been."""
    config = workspace.config(train={"steps": 2, "updates": updates})
    run = engine.train(config)
    message = engine.run("train", config, "--resume", "--set", "train.steps=6", "--set", "train.learning_rate=1e30", code=6).err
    assert "step 4" in message and "rank" in message and "last checkpoint is good" in message and "step-000002" in message
    assert [checkpoint.name for checkpoint in run.checkpoints()] == ["step-000002"]
    engine.run("train", config, "--resume", "--set", "train.steps=4")
    straight = engine.train(workspace.config("straight.toml", train={"steps": 4, "updates": updates}, output={"dir": "straight"}))
    by_step = {line["step"]: line["loss"] for line in run.metrics()}
    assert [by_step[step] for step in range(1, 5)] == straight.column("loss")


def test_home_folder(engine, workspace):
    """A path that begins with ~ means the home folder in every key."""
    home = {"HOME": str(workspace.folder)}
    config = workspace.config(model={"path": "~/model"}, data={"path": "~/corpus"}, eval={"every": 2, "path": "~/corpus"}, output={"dir": "~/home-run"})
    engine.run("plan", config, "--out", "plan.toml", environment=home)
    engine.run("train", config, "--set", "engine.plan=~/plan.toml", "--set", 'engine.plugin_path=["~/plugins"]', environment=home)
    assert Run(workspace.folder / "home-run").column("step") == [1, 2, 3]
    assert not (workspace.folder / "~").exists()


def test_missing_plugin_is_named_with_the_places(engine, workspace):
    message = engine.run("train", workspace.config(engine={"experts": "fast_ep"}), code=None)
    assert message.code in (2, 4)
    assert "fast_ep" in message.err and "liboom_fast_ep.so" in message.err and EXPERTS in message.err
