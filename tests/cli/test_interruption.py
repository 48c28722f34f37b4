"""Signals: a run stops with a checkpoint and status 130, and goes on as if nothing had happened."""

import signal

import pytest
from harness.program import Run, wait_for_steps

STEPS = 400  # some seconds: enough for a signal to arrive in between


@pytest.fixture
def long_run(workspace):
    return workspace.config(train={"steps": STEPS})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stops_with_a_checkpoint(engine, workspace, long_run, number):
    process, run = engine.start("train", long_run), Run(workspace.folder / "run")
    wait_for_steps(run, 2, process)
    process.send_signal(number)
    assert process.wait(60) == 130, engine.started_errors()
    done = run.column("step")[-1]
    assert 2 <= done < STEPS
    assert run.last_checkpoint().name == f"step-{done:06d}"
    engine.run("train", long_run, "--resume", "--set", f"train.steps={done + 3}")
    straight = engine.train(workspace.config("straight.toml", train={"steps": done + 3}, output={"dir": "straight"}))
    assert run.column("loss") == straight.column("loss")


def test_second_signal_stops_at_once_and_damages_nothing(engine, workspace):
    config = workspace.config(train={"steps": STEPS}, checkpoint={"every": 5})
    process, run = engine.start("train", config), Run(workspace.folder / "run")
    wait_for_steps(run, 7, process)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, engine.started_errors()
    done = run.column("step")[-1]
    engine.run("train", config, "--resume", "--set", f"train.steps={done + 2}")
    straight = engine.train(workspace.config("straight.toml", train={"steps": done + 2}, output={"dir": "straight"}))
    by_step = {line["step"]: line["loss"] for line in run.metrics()}
    assert [by_step[step] for step in range(1, done + 3)] == straight.column("loss")


def test_kill_loses_only_the_steps_since_the_checkpoint(engine, workspace):
    config = workspace.config(train={"steps": STEPS}, checkpoint={"every": 5})
    process, run = engine.start("train", config), Run(workspace.folder / "run")
    wait_for_steps(run, 12, process)
    process.kill()
    process.wait(60)
    done = run.column("step")[-1]
    engine.run("train", config, "--resume", "--set", f"train.steps={done + 3}")
    straight = engine.train(workspace.config("straight.toml", train={"steps": done + 3}, output={"dir": "straight"}))
    by_step = {line["step"]: line["loss"] for line in run.metrics()}
    assert [by_step[step] for step in range(1, done + 4)] == straight.column("loss")
