"""Weights in every layout that transformers writes come in equal, and what goes out loads without complaint."""

import json

import pytest
import torch
from harness.run_config import EXPERTS
from harness.tiny_models import TINY_CONFIGS
from oracle.conftest import training_of
from oracle.models import load_model

LAYOUTS = [(False, "5GB"), (False, "200KB"), (True, "5GB"), (True, "200KB")]


@pytest.mark.parametrize("family", TINY_CONFIGS)
def test_layouts_come_in_equal(oom, oracle, family):
    """One file or shards, an expert at a time or fused."""
    oom.require(family, EXPERTS)
    losses = []
    for fused, shard_size in LAYOUTS:
        config = oracle.config(oom.folder, training_of(family, steps=2), family,
                               model_folder=oracle.model_folder(family, fused=fused, shard_size=shard_size),
                               tables={"output": {"dir": f"run-{fused}-{shard_size}"}, "checkpoint": {"at_end": False}})
        losses.append(oom.train(config).column("loss"))
    assert losses == [losses[0]] * len(losses)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("family", TINY_CONFIGS)
def test_export_gives_back_what_came_in(oom, oracle, family, dtype):
    """A rate of 0 leaves every weight as it was: what leaves is what came, rounded once at most."""
    oom.require(family, EXPERTS)
    training = training_of(family, steps=1, learning_rate=0.0)
    run = oom.train(oracle.config(oom.folder, training, family, tables={"engine": {"ranks": 2}}))
    folder = oom.export(run.last_checkpoint(), oom.folder / "exported", dtype)
    exported, report = load_model(folder, family)
    assert report == {}
    for (name, tensor), (_, original) in zip(exported.state_dict().items(), oracle.model(family).state_dict().items(), strict=True):
        wanted = original if dtype == "fp32" else original.bfloat16().float()
        assert torch.equal(tensor, wanted), name


def test_export_is_complete(oom, oracle):
    oom.require("qwen3_moe", EXPERTS)
    run = oom.train(oracle.config(oom.folder, training_of("qwen3_moe", steps=1)))
    folder = oom.export(run.last_checkpoint(), oom.folder / "exported", "bf16")
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["Qwen3MoeForCausalLM"] and config["model_type"] == "qwen3_moe"
    assert config.get("dtype", config.get("torch_dtype")) == "bfloat16"
    index = folder / "model.safetensors.index.json"
    if index.exists():
        assert {folder / name for name in json.loads(index.read_text())["weight_map"].values()} == set(folder.glob("*.safetensors"))
