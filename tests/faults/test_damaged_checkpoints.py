"""Every file of a checkpoint, flipped, cut, lengthened or gone: --resume names it and takes the one before, to the bit."""

import shutil
import struct

import pytest
from harness.campaign import selection
from harness.program import Program, Run
from harness.run_config import EXPERTS
from harness.workspace import Workspace

STEPS = 4
KEPT = 3


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with the checkpoints of steps 1 to 3, and the program; `.losses` are those of all steps."""
    folder = tmp_path_factory.mktemp("trained")
    engine, workspace = Program(folder), Workspace(folder)
    engine.require("qwen3_moe", EXPERTS, "offload", "selector")
    engine.train(workspace.config(train={"steps": KEPT}, checkpoint={"every": 1, "keep": KEPT}))
    straight = engine.train(workspace.config("straight.toml", train={"steps": STEPS}, output={"dir": "straight"}))
    return Trained(engine, workspace, straight)


class Trained:
    def __init__(self, engine, workspace, straight):
        self.engine, self.folder, self.straight = engine, workspace.folder, straight
        self.config = workspace.config(train={"steps": STEPS}, checkpoint={"every": 1, "keep": KEPT})
        self.newest = Run(self.folder / "run").last_checkpoint()

    def copy(self, name) -> Run:
        shutil.copytree(self.folder / "run", self.folder / name)
        return Run(self.folder / name)

    def resume(self, run, code=0):
        return self.engine.run("train", self.config, "--resume", "--set", f"output.dir={run.folder.name}", code=code)


def offsets(path) -> list:
    """The first byte, the last, and between them both sides of what has a meaning of its own."""
    size = path.stat().st_size
    chosen = {0, 1, 7, size // 3, size // 2, size - 2, size - 1}
    if path.suffix == ".safetensors":
        data_begin = 8 + struct.unpack("<Q", path.read_bytes()[:8])[0]
        chosen |= {8, data_begin // 2, data_begin - 1, data_begin, data_begin + 1}
    return sorted(offset for offset in chosen if 0 <= offset < size)


def damages(checkpoint) -> list:
    """(file, what, offset) for all files of a checkpoint."""
    cases = []
    for path in sorted(checkpoint.iterdir()):
        cases += [(path.name, what, offset) for offset in offsets(path) for what in ("flip", "cut")]
        if path.name == "manifest.json":
            cases.pop()  # without its last newline it says what it said
        cases += [(path.name, "lengthen", 0), (path.name, "remove", 0), (path.name, "folder", 0)]
    return cases


def damage(path, what, offset):
    data = bytearray(path.read_bytes())
    offset = min(offset, len(data) - 1)  # texts of older checkpoints may be a digit shorter
    if what == "flip":
        data[offset] ^= 0x10
    elif what == "cut":
        del data[offset:]
    elif what == "lengthen":
        data += b"\0"
    path.unlink()
    if what == "folder":
        path.mkdir()
    elif what != "remove":
        path.write_bytes(data)


def test_named_and_skipped(trained, dice):
    cases = selection(damages(trained.newest), 14, dice)
    dice.shuffle(cases)
    assert len({name for name, _, _ in damages(trained.newest)}) >= 6, "master, m, v, state, config and manifest"
    # Two at once: the newest checkpoint and the one before.
    for number, pair in enumerate(zip(cases[::2], cases[1::2] + cases[:1], strict=False)):
        run = trained.copy(f"damaged-{number}")
        names = []
        for checkpoint, (file, what, offset) in zip(reversed(run.checkpoints()), pair, strict=False):
            damage(checkpoint / file, what, offset)
            names.append((checkpoint.name, file))
        outcome = trained.resume(run)
        skipped = [line for line in outcome.err.splitlines() if "resume: skipped" in line]
        for (checkpoint, file), line in zip(names, skipped, strict=True):
            assert checkpoint in line and file in line, (pair, outcome.err)
        assert "step-000001, step 1\n" in outcome.err, (pair, outcome.err)
        assert run.column("loss") == trained.straight.column("loss"), pair
        for file in sorted(trained.straight.last_checkpoint().glob("*.safetensors")):
            assert (run.last_checkpoint() / file.name).read_bytes() == file.read_bytes(), (pair, file.name)
        shutil.rmtree(run.folder)


def test_none_left(trained, dice):
    run = trained.copy("none-left")
    for checkpoint in run.checkpoints():
        damage(checkpoint / (case := dice.choice(damages(trained.newest)))[0], *case[1:])
    outcome = trained.resume(run, code=4)
    assert all(f"skipped {run.folder.name}/checkpoints/{checkpoint.name}: " in outcome.err for checkpoint in run.checkpoints()), outcome.err
    assert "no complete checkpoint" in outcome.err
    assert not (run.folder / "checkpoints/step-000004").exists()
