"""`oom calibrate`: short runs, a file, and plans made with it."""

import resource
import shutil
import tomllib

import pytest
from harness.program import Program
from harness.workspace import Workspace


def cpu_seconds():
    """Processor time of all programs that have run."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def calibrate(engine, workspace):
    config = workspace.config(data={"sequence_length": 128})
    engine.run("calibrate", config, "--out", "calibration.toml")
    return config, workspace.folder / "calibration.toml"


@pytest.fixture(scope="module")
def calibration_folder(tmp_path_factory):
    """Where `oom calibrate` ran once for all tests that only read what it made."""
    folder = tmp_path_factory.mktemp("calibration")
    calibrate(Program(folder), Workspace(folder))
    return folder


@pytest.fixture
def calibrated(engine, workspace, calibration_folder):
    """A config, and the calibration that was made for it, beside the cache that holds it too: the test's own to change."""
    config = workspace.config(data={"sequence_length": 128})
    shutil.copytree(calibration_folder / "cache", workspace.folder / "cache")
    return config, shutil.copy(calibration_folder / "calibration.toml", workspace.folder / "calibration.toml")


def test_writes_rates_and_a_profile_of_each_strategy(engine, workspace, calibrated):
    config, path = calibrated
    calibration = tomllib.loads(path.read_text())
    assert calibration["device"] == "cpu" and "cores of" in calibration["machine"]
    assert all(rate > 0 for rate in calibration["rates"].values())
    assert {profile["experts"] for profile in calibration["profile"]} == {"local"}
    for profile in calibration["profile"]:
        assert "hidden" in profile["geometry"] and profile["compute"] == "fp32"
        assert any("mixer" in kind or "attention" in kind for kind in profile["kinds"])
        assert all(value >= 0 for terms in profile["kinds"].values() for value in terms.values())
    cached = list((workspace.folder / "cache/oom").glob("calibration-*.toml"))
    assert len(cached) == 1 and cached[0].read_text() == path.read_text()


def test_exchanges_between_ranks_have_costs_of_their_own(engine, workspace):
    config = workspace.config(data={"sequence_length": 128}, train={"global_batch": 4}, engine={"experts": "ep", "ranks": 2})
    path = workspace.folder / "calibration.toml"
    engine.run("calibrate", config, "--out", path)
    (profile,) = tomllib.loads(path.read_text())["profile"]
    for kind in ("experts_dispatch", "experts_return"):
        assert any(seconds > 0 for seconds in profile["kinds"][kind].values())
    assert not {"weights_in", "gradient_out", "update"} & set(profile["kinds"])  # what draws on links or memory that others use too


def test_runs_shapes_and_the_plan_of_the_whole_model(engine, workspace):
    config = workspace.config(data={"sequence_length": 128}, train={"global_batch": 4}, engine={"experts": "ep"}, ep={"routing_chunk": "auto"})
    log = engine.run("calibrate", config).err
    assert log.count("calibrate: ep, 3 layers, 4 x 128 tokens") == 2  # as configured, and as the whole model's plan
    assert "2 x 128 tokens" in log and "4 x 64 tokens" in log and "was not run" not in log


def test_runs_that_do_not_fit_are_told(engine, workspace):
    """The first one too, when others follow: what was measured is then less than was asked for."""
    config = workspace.config(data={"sequence_length": 512}, train={"global_batch": 32}, engine={"experts": "local"})
    needed = sum(node["peak_bytes"] for node in engine.run("plan", config, "--json").json["host"])
    refused, fits = 0, needed
    while fits - refused > needed // 64:
        middle = (refused + fits) // 2
        if engine.run("plan", config, "--json", "--set", f"budget.host={middle}", code=None).code == 0:
            fits = middle
        else:
            refused = middle
    log = engine.run("calibrate", config, "--set", f"budget.host={refused}").err
    assert "calibrate: local was not run with its batch and sequence length: " in log and "calibrate: local, 3 layers, 16 x 512 tokens" in log


def test_prediction_is_near_the_measured_step(engine, workspace, calibrated):
    config, path = calibrated
    analytic = engine.run("plan", config, "--json", environment={"XDG_CACHE_HOME": "empty"}).json["predicted_step_seconds"]
    predicted = engine.run("plan", config, "--json").json["predicted_step_seconds"]  # the cached calibration
    assert predicted == engine.run("plan", config, "--json", "--set", f"engine.calibration={path}", environment={"XDG_CACHE_HOME": "empty"}).json["predicted_step_seconds"]
    assert predicted != analytic
    marks = [cpu_seconds()]
    for steps in (10, 60):
        run = engine.train(config, "--set", f"train.steps={steps}", "--set", "output.overwrite=true")
        marks.append(cpu_seconds())
    busy = (marks[2] - 2 * marks[1] + marks[0]) / 50 / 2  # of a step, on each of two ranks: less than the step takes, and the same however busy the machine is
    assert busy / 4 < predicted < sorted(run.column("step_seconds"))[30] * 4  # analytic costs know nothing of it


def test_another_machine_is_refused(engine, workspace, calibrated):
    config, path = calibrated
    other = workspace.folder / "other.toml"
    other.write_text(path.read_text().replace("cores of", "cores of another"))
    message = engine.run("plan", config, "--set", f"engine.calibration={other}", code=4).err
    assert "another machine" in message and "other.toml" in message and "engine.calibration" in message


def test_another_geometry_keeps_the_rates_alone(engine, workspace, calibrated):
    """And says so, kind by kind."""
    config, path = calibrated
    other = workspace.folder / "other.toml"
    other.write_text(path.read_text().replace("hidden", "concealed"))
    with_kinds = engine.run("plan", config, "--json")
    without = engine.run("plan", config, "--json", "--set", f"engine.calibration={other}")
    assert without.json["predicted_step_seconds"] != with_kinds.json["predicted_step_seconds"]
    assert "priced analytically" not in with_kinds.err
    (warning,) = [line for line in without.err.splitlines() if "priced analytically" in line]
    assert "other.toml" in warning and "oom calibrate" in warning
    profile = tomllib.loads(path.read_text())["profile"][0]
    named = set(warning.split("priced analytically: ")[1].split(". ")[0].split(", "))
    assert named and named <= set(profile["kinds"])


def test_what_is_known_is_not_measured_again(engine, workspace, calibrated):
    config, path = calibrated
    again = engine.run("calibrate", config, "--out", "copy.toml")
    assert "already calibrated" in again.out and "--again" in again.out and "calibrate:" not in again.err
    assert (workspace.folder / "copy.toml").read_text() == path.read_text()
    # Another strategy, and another model: what is there stays.
    engine.run("calibrate", config, "--set", 'engine.experts="ep"', "--out", "both.toml")
    both = tomllib.loads((workspace.folder / "both.toml").read_text())
    assert {profile["experts"] for profile in both["profile"]} == {"ep", "local"}
    assert [profile for profile in both["profile"] if profile["experts"] == "local"] == tomllib.loads(path.read_text())["profile"]
    anew = engine.run("calibrate", config, "--again", "--out", "anew.toml")
    assert "calibrate: local, 3 layers" in anew.err and "already" not in anew.out
    assert [profile["experts"] for profile in tomllib.loads((workspace.folder / "anew.toml").read_text())["profile"]] == ["ep", "local"]


def test_tiny_models_take_seconds(engine, workspace):
    begin = cpu_seconds()
    engine.run("calibrate", workspace.config(data={"sequence_length": 128}, engine={"experts": "auto"}))
    assert cpu_seconds() - begin < 60


def test_damaged_file(engine, workspace):
    (workspace.folder / "bad.toml").write_text("version = 1\nmachine = 3\n")
    message = engine.run("plan", workspace.config(), "--set", "engine.calibration=bad.toml", code=4).err
    assert "bad.toml:2" in message and "machine" in message


def test_missing_file(engine, workspace):
    assert "nowhere.toml" in engine.run("plan", workspace.config(), "--set", "engine.calibration=nowhere.toml", code=4).err


def test_budgets_hold_for_short_runs(engine, workspace):
    assert "budget" in engine.run("calibrate", workspace.config(budget={"host": "1MiB"}), code=3).err.lower()


def test_plan_made_with_another_calibration_is_refused(engine, workspace, calibrated):
    config, path = calibrated
    engine.run("plan", config, "--out", "plan.toml")
    assert tomllib.loads((workspace.folder / "plan.toml").read_text())["calibration_checksum"]
    stated = ("--set", "engine.plan=plan.toml", "--set", "train.steps=1")
    path.write_text("# the same rates elsewhere\n" + path.read_text())
    engine.run("plan", config, *stated, "--set", f"engine.calibration={path}", environment={"XDG_CACHE_HOME": "empty"})
    message = engine.run("train", config, *stated, environment={"XDG_CACHE_HOME": "empty"}, code=4).err  # analytic
    assert "plan.toml" in message and "calibration" in message and "analytic" in message and "engine.allow_plan_mismatch=true" in message
    path.write_text(path.read_text().replace("host_dram_bytes = ", "host_dram_bytes = 1"))
    message = engine.run("train", config, *stated, "--set", f"engine.calibration={path}", code=4).err
    assert "calibration.toml" in message
    message = engine.run("train", config, *stated, "--set", f"engine.calibration={path}", "--set", "engine.allow_plan_mismatch=true").err
    assert "calibration" in message and "allow_plan_mismatch" in message
