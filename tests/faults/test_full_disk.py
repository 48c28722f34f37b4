"""A disk that fills up: the message names the file and the cure, the last checkpoint stays good, and the run goes on when there is room.

Where root may mount one, the disk is a small tmpfs in a mount namespace of its own; files that must not grow (RLIMIT_FSIZE) stand for
one everywhere.
"""

import subprocess

import pytest
from harness.program import Run

MIB = 1 << 20
CHECKPOINT_FILE_BYTES = 1_500_000  # about what each of the small model's three state files takes


def assert_names(message, *words):
    last = [line for line in message.splitlines() if " error " in line]
    assert len(last) == 1 and all(word in last[0] for word in words), message


@pytest.fixture
def disk(engine):
    """Runs a shell script with a tmpfs of so many bytes at ./disk, which is gone afterwards."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root")

    def run(script, size_bytes, code=0, options=""):
        (engine.folder / "disk").mkdir(exist_ok=True)
        whole = f"mount -t tmpfs -o size={size_bytes}{options} tmpfs disk && {{\n{script}\n}}"
        done = subprocess.run(["unshare", "--mount", "bash", "-c", whole], cwd=engine.folder, capture_output=True, text=True, timeout=120,
                              env=engine._environment({"OOM": str(engine.binary)}))
        assert done.returncode == code, done.stderr[-3000:]
        return done

    return run


def test_no_room_from_the_start(disk, workspace):
    """Admission counts the checkpoints that are to be kept."""
    config = workspace.config(output={"dir": "disk/run"}, checkpoint={"every": 1, "keep": 2})
    assert_names(disk(f"$OOM train {config.name}", 6 * MIB, code=3).stderr, "output.dir", "3 checkpoints", "has 6.00 MiB", "checkpoint.keep")


def test_full_when_a_checkpoint_is_due(disk, workspace):
    config = workspace.config(output={"dir": "disk/run"}, train={"steps": 400}, checkpoint={"every": 2, "keep": 1})
    straight = workspace.config("straight.toml", output={"dir": "straight"}, train={"steps": 6})
    script = f"""
        $OOM train {config.name} 2>first.err &
        until [ -e disk/run/checkpoints/step-000002 ]; do sleep 0.01; done
        head -c 1G /dev/zero >disk/filler 2>/dev/null
        wait $!; echo $? >first.code
        ls disk/run/checkpoints >first.list
        rm disk/filler
        newest=$(ls disk/run/checkpoints | grep -x 'step-[0-9]*' | tail -1)
        steps=$((10#${{newest#step-}} + 3))
        $OOM train {config.name} --resume --set train.steps=$steps
        cp disk/run/metrics.jsonl resumed.jsonl
        $OOM train {straight.name} --set train.steps=$steps
    """
    disk(script, 24 * MIB)
    message = (workspace.folder / "first.err").read_text()
    assert (workspace.folder / "first.code").read_text().strip() == "4", message
    assert_names(message, "disk/run/", "free", "--resume")
    assert "step-" in (workspace.folder / "first.list").read_text()
    (workspace.folder / "run").mkdir()
    (workspace.folder / "resumed.jsonl").rename(workspace.folder / "run/metrics.jsonl")
    assert Run(workspace.folder / "run").column("loss") == Run(workspace.folder / "straight").column("loss")


def test_no_inode_for_a_checkpoint(disk, workspace):
    """Bytes are free, and yet no file can be made."""
    config = workspace.config(output={"dir": "disk/run"}, train={"steps": 400}, checkpoint={"every": 2, "keep": 1})
    script = f"""
        $OOM train {config.name} 2>first.err &
        until [ -e disk/run/checkpoints/step-000002 ]; do sleep 0.01; done
        mkdir disk/filler; i=0; while : >disk/filler/$((i++)); do :; done 2>/dev/null
        wait $!; echo $? >first.code
        rm -r disk/filler
        newest=$(ls disk/run/checkpoints | grep -x 'step-[0-9]*' | tail -1)
        $OOM train {config.name} --resume --set train.steps=$((10#${{newest#step-}} + 2))
    """
    disk(script, 64 * MIB, options=",nr_inodes=60")
    message = (workspace.folder / "first.err").read_text()
    assert (workspace.folder / "first.code").read_text().strip() == "4", message
    assert_names(message, "disk/run/", "No space left on device", "--resume")


def test_a_checkpoint_that_cannot_be_finished(engine, workspace):
    config = workspace.config(train={"steps": 4}, checkpoint={"every": 1, "keep": 4})
    engine.train(config, "--set", "train.steps=2")
    run = Run(workspace.folder / "run")
    outcome = engine.run("train", config, "--resume", code=4, largest_file_bytes=CHECKPOINT_FILE_BYTES // 2)
    assert_names(outcome.err, "run/checkpoints/step-000003.tmp-", ".safetensors", "File too large", "step-000002", "--resume")
    assert [path.name for path in run.checkpoints()] == ["step-000001", "step-000002"]
    engine.run("train", config, "--resume")
    straight = engine.train(workspace.config("straight.toml", train={"steps": 4}, output={"dir": "straight"}))
    assert run.column("loss") == straight.column("loss")


def test_metrics(engine, workspace):
    config = workspace.config(train={"steps": 200}, checkpoint={"at_end": False}, output={"tensorboard": False})
    outcome = engine.run("train", config, code=4, largest_file_bytes=30_000)
    assert_names(outcome.err, "run/metrics.jsonl", "disk")
    told = Run(workspace.folder / "run").folder.joinpath("metrics.jsonl").read_text().splitlines()
    assert 20 < len(told) < 200


@pytest.mark.parametrize("file, settings, limit", [("config.toml", {}, 400), ("trace.json", {"output": {"trace_steps": [1]}}, 30_000)])
def test_other_files_of_a_run(engine, workspace, file, settings, limit):
    outcome = engine.run("train", workspace.config(checkpoint={"at_end": False}, **settings), code=4, largest_file_bytes=limit)
    assert_names(outcome.err, f"run/{file}", "disk")


def test_export(engine, workspace):
    checkpoint = engine.train(workspace.config()).last_checkpoint()
    outcome = engine.run("export", checkpoint, "--out", "exported", code=4, largest_file_bytes=CHECKPOINT_FILE_BYTES // 8)
    assert_names(outcome.err, "exported/model.safetensors", "File too large", "disk")
    assert not (workspace.folder / "exported/config.json").exists()
    engine.export(checkpoint, "exported")
    assert (workspace.folder / "exported/model.safetensors").exists()


def test_a_plan(engine, workspace):
    outcome = engine.run("plan", workspace.config(), "--out", "made.toml", code=4, largest_file_bytes=300)
    assert_names(outcome.err, "made.toml", "disk")


@pytest.mark.parametrize("arguments", [["config", "run.toml"], ["plan", "run.toml", "--json"], ["inspect", "model"]], ids=" ".join)
def test_standard_output(engine, workspace, arguments):
    """A result that was not told is no success."""
    workspace.config()
    outcome = engine.run(*arguments, code=None, before=["bash", "-c", "exec \"$@\" >/dev/full", "bash"])
    assert outcome.code == 4, outcome
    assert_names(outcome.err, "standard output", "disk")
