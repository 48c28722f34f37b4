"""Runs killed and interrupted at random moments: start-up, steps, checkpoints and the end alike.

A run is stopped again and again until it has made all its steps; fifty stops with OOM_FAULTS=all, fewer by default. After each, the
metrics are the uninterrupted run's to the bit as far as they go, no more steps are lost than were made since the last checkpoint, and
--resume continues from there.
"""

import json
import os
import re
import signal
import time

import pytest
from harness.campaign import WHOLE
from harness.program import Run

STEPS, EVERY = 36, 3
STOPS = 50 if WHOLE else 10


class Stopped:
    """One run folder, trained in pieces."""

    def __init__(self, engine, workspace, name, straight, dice):
        self.engine, self.straight, self.dice = engine, straight, dice
        self.config = workspace.config(f"{name}.toml", train={"steps": STEPS}, checkpoint={"every": EVERY}, output={"dir": name})
        self.run = Run(workspace.folder / name)

    def steps_told(self):
        """Losses by step as metrics.jsonl has them; the last line may have been cut off by the end of the process."""
        path = self.run.folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        told = {}
        for number, line in enumerate(lines):
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                assert number == len(lines) - 1, f"metrics.jsonl:{number + 1} is no JSON: {line!r}"
                break
            told[entry["step"]] = entry["loss"]
        return told

    def saved(self) -> int:
        """The step of the newest checkpoint by name; half-written ones have another."""
        names = [path.name for path in self.run.checkpoints() if re.fullmatch(r"step-\d+", path.name)]
        return int(names[-1][5:]) if names else 0

    def piece(self, longest_seconds):
        """Starts or continues, sends one signal or two at a random moment, and checks what is left. Returns the exit status."""
        before = self.saved()
        start = ["--resume"] if before else ["--set", "output.overwrite=true"]
        what = self.dice.choice(["kill", "kill", "term", "int", "twice"])
        moment = self.dice.uniform(0, longest_seconds)
        process = self.engine.start("train", self.config, *start)
        time.sleep(moment)
        process.send_signal({"kill": signal.SIGKILL, "term": signal.SIGTERM, "int": signal.SIGINT, "twice": signal.SIGTERM}[what])
        if what == "twice":
            time.sleep(self.dice.uniform(0, 0.05))
            process.send_signal(signal.SIGINT)
        try:
            code = process.wait(30)
        except Exception:
            process.kill()
            raise
        errors = self.engine.started_errors()
        case = f"{what} after {moment:.3f} s from step {before}: exit status {code}, checkpoint {self.saved()}; stderr ends: {errors[-800:]}"
        print(case.splitlines()[0])
        self.check(case, errors, before, code, what)
        return code

    def check(self, case, errors, before, code, what):
        told, saved = self.steps_told(), self.saved()
        # Before the program has taken over its signals they end it as they end any program.
        expected = {"kill": (0, -signal.SIGKILL), "term": (0, 130, -signal.SIGTERM), "int": (0, 130, -signal.SIGINT), "twice": (0, 130, -signal.SIGTERM, -signal.SIGINT)}
        assert code in expected[what], case
        if code < 0 and what != "kill":
            assert saved == before and not errors, case
        resumed = re.search(r"resume: \S+, step (\d+)", errors)
        assert not resumed or int(resumed[1]) == before, case
        assert all(".tmp-" in line for line in errors.splitlines() if "skipped" in line), case
        assert sorted(told) == list(range(1, len(told) + 1)), case
        assert all(loss == self.straight[step] for step, loss in told.items()), case
        assert saved >= before and len(told) - saved <= EVERY, case
        requested = re.search(r"interrupted after step (\d+)", errors)
        if requested:
            assert code == 130 and saved == int(requested[1]) == max(told), case
        if code == 0:
            assert saved == STEPS, case


def test_stopped_at_random_moments(engine, workspace, dice):
    begin = time.monotonic()
    straight = engine.train(workspace.config("straight.toml", train={"steps": STEPS}, checkpoint={"every": EVERY}, output={"dir": "straight"}))
    seconds = time.monotonic() - begin
    losses = dict(zip(straight.column("step"), straight.column("loss"), strict=True))
    stops = runs = 0
    while stops < STOPS:
        runs += 1
        run = Stopped(engine, workspace, f"run-{runs}", losses, dice)
        while stops < STOPS:
            # A little beyond the end, so that the end is met as well.
            share = (STEPS - run.saved()) / STEPS
            if run.piece(0.6 + 1.05 * share * (seconds - 0.6)) == 0:
                break
            stops += 1
        engine.run("train", run.config, *(["--resume"] if run.saved() else ["--set", "output.overwrite=true"]))
        assert run.steps_told() == losses
        for file in sorted(straight.last_checkpoint().glob("*.safetensors")):
            assert (run.run.last_checkpoint() / file.name).read_bytes() == file.read_bytes(), file.name
    print(f"{stops} stops in {runs} runs")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stops_at_once_before_the_first_step(engine, workspace, number):
    """While weights are loaded nothing has been trained; OOM_FAULT makes the program wait where that is over."""
    process = engine.start("train", workspace.config(engine={"watchdog_seconds": 60}), environment={"OOM_FAULT": "action=stall,step=1"})
    deadline = time.monotonic() + 30
    while "data: " not in engine.started_errors() and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(number)
    time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(10) == 130, engine.started_errors()
    assert "interrupted" in engine.started_errors()


def test_resume_without_a_checkpoint(engine, workspace):
    message = engine.run("train", workspace.config(), "--resume", code=4).err
    assert "no complete checkpoint" in message and "output.overwrite=true" in message


def test_a_log_that_nobody_reads_any_more(engine, workspace):
    """`oom train 2>&1 | tee log` goes on when tee has died."""
    reader, writer = os.pipe()
    process = engine.start("train", workspace.config(), errors=writer)
    os.close(writer)
    os.close(reader)
    assert process.wait(60) == 0
    assert Run(workspace.folder / "run").column("step") == [1, 2, 3]
