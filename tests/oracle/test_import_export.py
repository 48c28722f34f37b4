"""Weights in every layout that transformers writes come in equal, and what goes out loads without complaint."""

import copy
import json
import shutil

import pytest
import torch
from harness.run_config import EXPERTS
from harness.tiny_models import TINY_CONFIGS
from oracle.conftest import training_of
from oracle.models import load_model
from safetensors import safe_open
from safetensors.torch import save_file

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


def stored(folder):
    """Every tensor of a folder as it is stored: name -> type, shape, bytes."""
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                tensor = file.get_tensor(name)
                found[name] = (str(tensor.dtype), list(tensor.shape), tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return found


# What published checkpoints of a family hold besides the text model, under names that transformers' text-only files do not have.
CARRIED = {
    "qwen3_5_moe": {"model.visual.blocks.0.attn.qkv.weight": torch.bfloat16, "model.visual.pos_embed.weight": torch.float32, "mtp.fc.weight": torch.bfloat16, "mtp.layers.0.mlp.experts.gate_up_proj": torch.bfloat16},
    "gemma4": {"model.vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight": torch.bfloat16, "model.embed_vision.embedding_projection.weight": torch.bfloat16},
}


def rewrite(folder, change):
    """Writes a folder's weights anew, as one file, after `change` of the name -> tensor map."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            tensors.update({name: file.get_tensor(name) for name in file.keys()})
        path.unlink()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    save_file(change(tensors), folder / "model.safetensors", metadata={"format": "pt"})


def as_published(tensors, family):
    """The text model under `model.language_model.`, and beside it what is not trained."""
    renamed = {name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: tensor for name, tensor in tensors.items()}
    generator = torch.Generator().manual_seed(11)
    return {**renamed, **{name: torch.randn(6, 10, generator=generator).to(dtype) for name, dtype in CARRIED[family].items()}}


def with_fp32_norms(tensors):
    """Some checkpoints keep a few small tensors in FP32, with values that BF16 does not have."""
    return {name: tensor.float() * (1 + 1e-4) if tensor.dim() == 1 else tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("fused, shard_size", LAYOUTS)
@pytest.mark.parametrize("form", ["plain", "fp32 norms", "published"])
@pytest.mark.parametrize("family", TINY_CONFIGS)
def test_bf16_files_come_back_to_the_byte(oom, oracle, family, form, fused, shard_size):
    """Names, types, shapes and bytes: whatever the layout, a training without a learning rate writes what it read."""
    if form == "published" and (family not in CARRIED or shard_size != "5GB"):
        pytest.skip("published with the text model alone" if family not in CARRIED else "one file is enough")
    oom.require(family, EXPERTS)
    folder = oom.folder / "model"
    copy.deepcopy(oracle.model(family)).bfloat16().save_pretrained(folder, save_original_format=not fused, max_shard_size=shard_size)
    if form != "plain":
        rewrite(folder, with_fp32_norms if form == "fp32 norms" else lambda tensors: as_published(tensors, family))
    run = oom.train(oracle.config(oom.folder, training_of(family, steps=1, learning_rate=0.0), family, model_folder=folder))
    exported = oom.export(run.last_checkpoint(), oom.folder / "exported", "bf16")
    before, after = stored(folder), stored(exported)
    assert after.keys() == before.keys()
    assert [name for name in before if after[name] != before[name]] == []
    assert json.loads((exported / "config.json").read_text()) == json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("family", CARRIED)
def test_what_is_carried_through_must_be_there(oom, oracle, family):
    oom.require(family, EXPERTS)
    folder = oom.folder / "model"
    copy.deepcopy(oracle.model(family)).bfloat16().save_pretrained(folder)
    rewrite(folder, lambda tensors: as_published(tensors, family))
    run = oom.train(oracle.config(oom.folder, training_of(family, steps=1), family, model_folder=folder))
    shutil.move(folder, oom.folder / "elsewhere")
    message = oom.run("export", run.last_checkpoint(), "--out", "exported", code=4).err
    assert any(name in message for name in CARRIED[family]) and not (oom.folder / "exported").exists(), message


def test_layout_is_known_without_the_model(oom, oracle):
    """The checkpoint knows in which layout the model came."""
    oom.require("qwen3_moe", EXPERTS)
    folder = oom.folder / "model"
    oracle.model().save_pretrained(folder, save_original_format=False)
    run = oom.train(oracle.config(oom.folder, training_of("qwen3_moe", steps=1), model_folder=folder))
    resumed = oracle.config(oom.folder, training_of("qwen3_moe", steps=2), model_folder=folder)
    oom.run("train", resumed, "--resume")
    names = stored(folder).keys()
    shutil.rmtree(folder)
    assert any(name.endswith("experts.gate_up_proj") for name in names)
    assert stored(oom.export(run.last_checkpoint(), oom.folder / "exported", "fp32")).keys() == names


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
