"""Fixtures of all Python tests, and the exit status that tells ctest that nothing ran."""

import pytest

from harness.program import Program
from harness.run_config import EXPERTS
from harness.workspace import Workspace

ALL_SKIPPED = 77  # ctest's SKIP_RETURN_CODE, see cmake/OomPytest.cmake


@pytest.fixture
def oom(tmp_path, request):
    """The built program, run in a folder of the test's own. A mark `plugin` names plugins that a case needs."""
    program = Program(tmp_path)
    for mark in request.node.iter_markers("plugin"):
        program.require(*mark.args)
    return program


@pytest.fixture
def workspace(tmp_path):
    """What the small run reads, in a folder of the test's own."""
    return Workspace(tmp_path)


@pytest.fixture
def engine(oom):
    """The program, with what the small run needs."""
    oom.require("qwen3_moe", EXPERTS, "offload", "selector")
    return oom


def pytest_sessionfinish(session, exitstatus):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    counts = {outcome: len(reporter.stats.get(outcome, [])) for outcome in ("passed", "failed", "error", "skipped")}
    if exitstatus == 0 and counts["skipped"] and not (counts["passed"] or counts["failed"] or counts["error"]):
        session.exitstatus = ALL_SKIPPED
