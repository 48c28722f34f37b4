"""`oom export`: a Hugging Face folder out of a checkpoint."""

import json

import pytest
from harness.tiny_models import qwen3_moe_tensors
from safetensors import safe_open


def tensors_in(folder):
    names = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "numpy") as file:
            names.update({name: (file.get_slice(name).get_shape(), file.get_slice(name).get_dtype()) for name in file.keys()})
    return names


@pytest.mark.parametrize("dtype, written", [("bf16", "BF16"), ("fp32", "F32"), (None, "BF16")])
def test_names_shapes_and_dtypes(engine, workspace, dtype, written):
    run = engine.train(workspace.config(train={"steps": 1}))
    engine.run("export", run.last_checkpoint(), "--out", "out", *(["--dtype", dtype] if dtype else []))
    found = tensors_in(workspace.folder / "out")
    wanted = {name: list(tensor.shape) for name, tensor in qwen3_moe_tensors().items()}
    assert {name: shape for name, (shape, _) in found.items()} == wanted
    assert {dtype for _, dtype in found.values()} == {written}
    config = json.loads((workspace.folder / "out/config.json").read_text())
    original = json.loads((workspace.folder / "model/config.json").read_text())
    assert {key: config.get(key) for key in ("model_type", "hidden_size", "head_dim", "architectures")} == \
        {key: original[key] for key in ("model_type", "hidden_size", "head_dim", "architectures")}


def test_what_was_exported_can_be_trained(engine, workspace):
    run = engine.train(workspace.config())
    engine.run("export", run.last_checkpoint(), "--out", "out", "--dtype", "fp32")
    again = engine.train(workspace.config("again.toml", model={"path": "out", "weights": "load"}, output={"dir": "again"}))
    assert again.column("loss")[0] != run.column("loss")[0]


@pytest.mark.parametrize("arguments", [["run/checkpoints/step-000001"], ["run/checkpoints/step-000001", "--out", "o", "--dtype", "fp8"]])
def test_wrong_usage(oom, arguments):
    oom.run("export", *arguments, code=2)


@pytest.mark.parametrize("what", ["nowhere", "model"])
def test_no_checkpoint(engine, workspace, what):
    assert what in engine.run("export", what, "--out", "out", code=4).err
    assert not (workspace.folder / "out").exists()
