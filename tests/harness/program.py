"""Runs the built program and reads what it leaves behind.

The program is $OOM_BINARY (default build/release/bin/oom). Where it, one of its commands or a plugin is not built yet, a test is
skipped with the reason; with OOM_REQUIRE_ENGINE=1 it fails.
"""

import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import time
import tomllib
from dataclasses import dataclass

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 240
# As the program says it of a command, and of a setting; the list of commands that it prints for wrong usage is no such message.
NOT_BUILT = re.compile(r"^.* not built yet(?: in this version|; cure: ).*$", re.M)


def unavailable(reason: str):
    """Ends the test: skipped, or failed when the engine is required."""
    if os.environ.get("OOM_REQUIRE_ENGINE", "0") not in ("", "0"):
        pytest.fail(f"{reason} (OOM_REQUIRE_ENGINE is set)", pytrace=False)
    pytest.skip(reason)


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self):
        """The one JSON object on standard output."""
        return json.loads(self.out)

    @property
    def toml(self):
        return tomllib.loads(self.out)


class Program:
    def __init__(self, folder: pathlib.Path):
        self.folder = pathlib.Path(folder)
        self.binary = pathlib.Path(os.environ.get("OOM_BINARY", REPOSITORY / "build/release/bin/oom")).resolve()

    def require(self, *plugins: str):
        """Asks for the program and for plugins by name. A plugin that the repository has no source of is none to require."""
        if not self.binary.exists():
            unavailable(f"{self.binary} is not built yet")
        folders = [self.binary.parents[1] / "lib/oom/plugins", *map(pathlib.Path, filter(None, os.environ.get("OOM_PLUGIN_PATH", "").split(":")))]
        for plugin in plugins:
            if any((folder / f"liboom_{plugin}.so").exists() for folder in folders):
                continue
            if not any((REPOSITORY / folder / plugin).is_dir() for folder in ("plugins", "plugins/models")):
                pytest.skip(f"plugin {plugin} is not written yet")
            unavailable(f"plugin {plugin} is not built")

    def run(self, *arguments, code=0, environment=None, timeout_seconds=TIMEOUT_SECONDS, largest_file_bytes=None, before=()) -> Outcome:
        """Runs to the end and checks the exit status; `code=None` leaves that to the caller. `largest_file_bytes` lets no file grow
        beyond it, as a full disk would; `before` is a command that runs the program."""
        self.require()
        limit = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file_bytes,) * 2)) if largest_file_bytes else None
        try:
            done = subprocess.run([*before, self.binary, *map(str, arguments)], cwd=self.folder, capture_output=True, text=True,
                                  stdin=subprocess.DEVNULL, timeout=timeout_seconds, env=self._environment(environment), preexec_fn=limit)
        except subprocess.TimeoutExpired as expired:
            pytest.fail(f"oom {' '.join(map(str, arguments))} hung for {timeout_seconds} s; stderr ends: {(expired.stderr or b'')[-2000:]}")
        outcome = Outcome(done.returncode, done.stdout, done.stderr)
        missing = NOT_BUILT.search(outcome.err) if outcome.code == 2 else None
        if missing:
            unavailable(missing[0])
        if code is not None and outcome.code != code:
            pytest.fail(f"oom {' '.join(map(str, arguments))}: exit status {outcome.code} instead of {code}\n"
                        f"stdout: {outcome.out[-2000:]}\nstderr: {outcome.err[-4000:]}", pytrace=False)
        return outcome

    def start(self, *arguments, environment=None, errors=None) -> subprocess.Popen:
        """Starts in the background; its output goes to files started.out and started.err in the folder, or its errors to `errors`."""
        self.require()
        with open(self.folder / "started.out", "w") as out, open(self.folder / "started.err", "w") as err:
            return subprocess.Popen([self.binary, *map(str, arguments)], cwd=self.folder, stdout=out, stderr=errors or err,
                                    stdin=subprocess.DEVNULL, env=self._environment(environment))

    def started_errors(self) -> str:
        return (self.folder / "started.err").read_text()

    def train(self, config: pathlib.Path, *arguments, code=0) -> "Run":
        """Trains and gives the run folder named by the config (or by a --set of it)."""
        self.run("train", config, *arguments, code=code)
        return Run(self.folder / tomllib.loads(config.read_text())["output"]["dir"])

    def export(self, checkpoint: pathlib.Path, folder: pathlib.Path, dtype="fp32") -> pathlib.Path:
        self.run("export", checkpoint, "--out", folder, "--dtype", dtype)
        return folder

    def _environment(self, changes):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "MKL_"))}
        environment["OMP_NUM_THREADS"] = "2"
        environment["OMP_WAIT_POLICY"] = "passive"  # waiting threads that spin starve the others where tests share cores
        environment["XDG_CACHE_HOME"] = str(self.folder / "cache")  # what this machine remembers is none of a test's business
        environment.update(changes or {})
        return environment


class Run:
    """A run folder."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder

    def metrics(self):
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def column(self, name):
        return [line[name] for line in self.metrics()]

    def checkpoints(self):
        return sorted((self.folder / "checkpoints").glob("step-*"))

    def last_checkpoint(self) -> pathlib.Path:
        found = self.checkpoints()
        assert found, f"no checkpoint under {self.folder}"
        return found[-1]


def wait_for_steps(run: Run, steps: int, process: subprocess.Popen, timeout_seconds=60):
    """Waits until a started run has written that many lines of metrics."""
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        path = run.folder / "metrics.jsonl"
        if path.exists() and path.read_text().count("\n") >= steps:
            return
        if process.poll() is not None:
            return
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    pytest.fail(f"no {steps} steps within {timeout_seconds} s")
