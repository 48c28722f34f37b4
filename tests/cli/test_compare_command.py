"""`oom compare` and `oom train` with experts = "auto": each path configured, run briefly, the faster one installed."""

import json
import re
import tomllib

import pytest
from harness.tiny_models import write_model_config

pytestmark = pytest.mark.plugin("ep", "local")


def deep(workspace, **changes):
    """A model of nine layers, so that one and two units of four are cut from it."""
    write_model_config(workspace.folder / "model", num_hidden_layers=9)
    return workspace.config(engine={"experts": "auto"}, **changes)


def test_table_and_plan(engine, workspace):
    outcome = engine.run("compare", deep(workspace), "--out", "chosen.toml")
    assert "the fastest in short runs" in outcome.out and "extrapolated" in outcome.out
    rows = [line.replace("*", " ").split() for line in outcome.out.splitlines() if line.strip().startswith(("* ", "ep ", "local "))]
    measured = {row[0]: float(row[2]) for row in rows[-2:]}
    assert set(measured) == {"ep", "local"}
    chosen = tomllib.loads((workspace.folder / "chosen.toml").read_text())["experts"]
    assert outcome.out.startswith(f"{chosen} with offload") and chosen == min(measured, key=measured.get)
    assert outcome.err.count("compare: ep, 4 layers") == 1 and outcome.err.count("compare: local, 8 layers") == 1
    # What short runs took, extended to all layers, stands beside what was predicted, and below each row its plan.
    assert "extrapolated [GiB]" in outcome.out
    lines = outcome.out.splitlines()
    below = [lines[at + 1] for at, line in enumerate(lines) if line.startswith(("  * ep ", "    ep ", "  * local ", "    local "))]
    assert all(len(row) == 9 for row in rows[-2:]) and len(below) == 2
    assert all(re.match(r"      (as configured: \S|[a-z_]+(\.[a-z_]+)? \S)", line) for line in below), below
    run = engine.train(deep(workspace), "--set", "engine.plan=chosen.toml", "--set", f"engine.experts={chosen}")
    assert run.metrics()


def test_train_compares_once(engine, workspace):
    config = deep(workspace)
    first = engine.run("train", config)
    assert "compare: ep, 8 layers" in first.err
    second = engine.run("train", config, "--set", "output.overwrite=true", "--set", "train.steps=2", "--set", "train.learning_rate=0.5")
    assert "compare:" not in second.err and "earlier comparison" in second.err
    # Another workload is another question.
    third = engine.run("train", config, "--set", "output.overwrite=true", "--set", "data.sequence_length=16")
    assert "compare: ep, 8 layers" in third.err


def test_where_nothing_is_calibrated_short_runs_come_first(engine, workspace):
    """The search goes over what they cost; a calibration makes them needless."""
    config = deep(workspace)
    outcome = engine.run("compare", config, "--out", "chosen.toml")
    assert "nothing is calibrated for ep and local" in outcome.err
    assert all(outcome.err.count(f"calibrate: {experts}, 4 layers") == 1 for experts in ("ep", "local"))
    assert "costs: short runs of this comparison" in outcome.out
    chosen = tomllib.loads((workspace.folder / "chosen.toml").read_text())
    assert chosen["calibration"] == "short runs of this comparison"
    analytic = engine.run("plan", config, "--json", "--set", f"engine.experts={chosen['experts']}").json["predicted_step_seconds"]
    assert chosen["predicted"]["step_seconds"] != analytic
    engine.run("calibrate", config)
    outcome = engine.run("compare", config)
    assert "calibrate" not in outcome.err.replace("calibrated on", "") and "short runs of this comparison" not in outcome.out
    assert f"costs: {workspace.folder / 'cache'}" in outcome.out


def test_one_path_needs_no_run(engine, workspace):
    outcome = engine.run("compare", workspace.config(engine={"experts": "local"}))
    assert "the only candidate that fits" in outcome.out and "compare:" not in outcome.err


class TestNothingIsMeasuredForWhatIsRefused:
    """Neither the machine nor a short run, where nothing is calibrated: the refusal is all that is said."""

    def refused(self, engine, config, code, *more):
        message = engine.run("compare", config, *more, code=code).err
        assert "calibrate: " not in message and "nothing is calibrated" not in message, message
        return message

    def test_budgets(self, engine, workspace):
        assert "budget" in self.refused(engine, deep(workspace, budget={"host": "1MiB"}), 3).lower()

    def test_budgets_that_a_short_run_would_keep(self, engine, workspace):
        config = deep(workspace)
        budget = engine.run("plan", config, "--json", "--set", "engine.experts=local", "--set", "model.layers=4").json["host"][0]["peak_bytes"]
        self.refused(engine, config, 3, "--set", f"budget.host={budget}")

    def test_settings(self, engine, workspace):
        config = deep(workspace)
        message = self.refused(engine, config, 2, "--set", "offload.keep_attention=[77]")
        assert "keep_attention" in message

    def test_calibrate(self, engine, workspace):
        config = workspace.config(engine={"experts": "ep", "ranks": 3}, train={"global_batch": 3})
        message = engine.run("calibrate", config, code=2).err
        assert "must divide" in message and "calibrate: " not in message


class TestLayers:
    """model.layers: a model of the first layers alone."""

    def test_trains_and_exports_a_smaller_model(self, engine, workspace):
        config = deep(workspace, model={"layers": 3})
        run = engine.train(config, "--set", "engine.experts=local")
        engine.run("export", run.last_checkpoint(), "--out", "exported")
        exported = json.loads((workspace.folder / "exported/config.json").read_text())
        assert exported["num_hidden_layers"] == 3

    def test_loaded_weights_are_refused(self, engine, workspace):
        message = engine.run("plan", workspace.config(model={"layers": 1, "weights": "load"}), code=2).err
        assert "model.layers" in message and "random" in message

    def test_more_than_there_are(self, engine, workspace):
        assert "cut to 99 layers" in engine.run("plan", workspace.config(model={"layers": 99}), code=4).err
