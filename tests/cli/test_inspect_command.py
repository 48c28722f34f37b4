"""`oom inspect`: what a file or folder is and holds."""

import pytest
from harness.tiny_models import qwen3_moe_tensors, write_model


def test_model_folder(engine, workspace):
    write_model(workspace.folder / "loaded", qwen3_moe_tensors())
    text = engine.run("inspect", "loaded").out
    assert "qwen3_moe" in text and "392832" in text.replace(",", "").replace("'", "")


def test_checkpoint_and_plan(engine, workspace):
    run = engine.train(workspace.config())
    text = engine.run("inspect", run.last_checkpoint()).out
    assert "3" in text and "392832" in text.replace(",", "").replace("'", "")
    assert "ep" in engine.run("inspect", run.folder / "plan.toml").out


def test_plugin(engine):
    text = engine.run("inspect", engine.binary.parents[1] / "lib/oom/plugins/liboom_ep.so").out
    assert "ep" in text and "expert" in text


@pytest.mark.parametrize("name", ["nowhere", "rubbish.so", "rubbish.toml"])
def test_unreadable(engine, workspace, name):
    if name != "nowhere":
        (workspace.folder / name).write_bytes(b"\x7fELF\x00\xff rubbish = = \n" * 3)
    assert name in engine.run("inspect", name, code=4).err
