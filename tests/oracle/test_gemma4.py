"""Gemma4 against the reference: what other families do not have, and every way to train it."""

import json

import pytest
import torch
import transformers
from harness.run_config import EXPERTS
from harness.tiny_models import TINY_CONFIGS
from oracle.agreement import Expected
from oracle.conftest import ROUTING, training_of
from oracle.corpora import CORPORA, MIXED
from oracle.reference import train
from oracle.test_parity import CLIPPED, compare
from safetensors import safe_open
from safetensors.torch import load_file, save_file

WAYS = [(experts, ranks) for experts in ("local", "ep") for ranks in (1, 2, 4)]


@pytest.mark.parametrize("experts, ranks", WAYS)
def test_ways_to_train(oom, oracle, experts, ranks):
    oom.require("gemma4", experts)
    compare(oom, oracle, training_of("gemma4", clip_norm=CLIPPED), family="gemma4", tables={"engine": {"ranks": ranks, "experts": experts}})


@pytest.mark.parametrize("experts, ranks", [("local", 1), ("local", 4), ("ep", 4)])
def test_isolated_documents(oom, oracle, experts, ranks):
    oom.require("gemma4", experts)
    compare(oom, oracle, training_of("gemma4", documents="isolated"), family="gemma4", tables={"engine": {"ranks": ranks, "experts": experts}})


@pytest.mark.parametrize("length", [1, 7, 8, 9, 33])
def test_lengths_around_the_window(oom, oracle, length):
    """The sliding window is 8 tokens."""
    oom.require("gemma4", EXPERTS)
    compare(oom, oracle, training_of("gemma4", sequence_length=length, steps=3, eps=1e-4), family="gemma4", tables={"engine": {"ranks": 2}})


@pytest.mark.parametrize("changes", [
    (("attention_k_eq_v", False),), (("final_logit_softcapping", None),), (("tie_word_embeddings", False),), (("sliding_window", 3),),
    (("layer_types", ("full_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention")),)],
    ids=lambda changes: changes[0][0])
def test_variants(oom, oracle, changes):
    oom.require("gemma4", EXPERTS)
    compare(oom, oracle, training_of("gemma4"), family="gemma4", changes=changes, tables={"engine": {"ranks": 2}})


@pytest.mark.parametrize("experts, ranks", [("local", 2), ("ep", 4)])
def test_experts_without_tokens(oom, oracle, experts, ranks):
    oom.require("gemma4", experts)
    compare(oom, oracle, training_of("gemma4"), family="gemma4", routing="experts without tokens", tables={"engine": {"ranks": ranks, "experts": experts}})


def test_padding_token(oom, oracle, monkeypatch):
    """Its look-ups give the embedding no gradient; as a target, the tied head does.

    Its row is zero at first, where norms have slopes of 1000: it is given values here.
    """
    oom.require("gemma4", EXPERTS)

    def fill(model):
        model.model.embed_tokens.weight[0] = 0.3 * torch.randn(64, generator=torch.Generator().manual_seed(5))

    monkeypatch.setitem(ROUTING, "a padding row of values", fill)
    monkeypatch.setitem(CORPORA, "padded", [[token if place % 5 else 0 for place, token in enumerate(document)] for document in MIXED])
    compare(oom, oracle, training_of("gemma4"), family="gemma4", routing="a padding row of values", corpus="padded", tables={"engine": {"ranks": 2}})


def test_window_matters(oracle):
    """The reference itself differs between windows on these data: the tests above would notice."""
    training = training_of("gemma4", steps=1)
    narrow, wide = (train(oracle.model("gemma4", "", changes), MIXED, training).losses for changes in ((), (("sliding_window", 64),)))
    assert abs(narrow[0] - wide[0]) > 1e-3 * wide[0]


@pytest.fixture(scope="module")
def whole_model(tmp_path_factory):
    """A multimodal checkpoint: the text model under model.language_model. beside a vision tower."""
    torch.manual_seed(0)
    vision = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=16, patch_size=4, position_embedding_size=16)
    config = transformers.Gemma4Config(text_config={**TINY_CONFIGS["gemma4"]}, vision_config=vision)
    model = transformers.Gemma4ForConditionalGeneration(config).bfloat16()
    folder = tmp_path_factory.mktemp("gemma4") / "whole"
    model.save_pretrained(folder)
    return folder


def tensors_of(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            tensors.update({name: file.get_tensor(name) for name in file.keys()})
    return tensors


def test_multimodal_checkpoint_comes_back_byte_for_byte(oom, oracle, whole_model):
    """Vision tensors are carried through; the text model's keep the checkpoint's own names."""
    oom.require("gemma4", EXPERTS)
    before = tensors_of(whole_model)
    assert any(name.startswith("model.vision_tower.") for name in before) and any(name.startswith("model.language_model.") for name in before)
    config = oracle.config(oom.folder, training_of("gemma4", steps=1, learning_rate=0.0), "gemma4", model_folder=whole_model)
    folder = oom.export(oom.train(config).last_checkpoint(), oom.folder / "exported", "bf16")
    after = tensors_of(folder)
    assert after.keys() == before.keys()
    for name, tensor in before.items():
        assert torch.equal(after[name].view(torch.uint8), tensor.view(torch.uint8)), name
    assert json.loads((folder / "config.json").read_text())["text_config"]["num_experts"] == 16
    reloaded, report = transformers.Gemma4ForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())


def test_prefixes_come_in_equal(oom, oracle):
    """The text model alone, under either prefix, an expert at a time or fused."""
    oom.require("gemma4", EXPERTS)
    source = oracle.model_folder("gemma4", fused=True)
    tensors = load_file(source / "model.safetensors")
    nested = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    split = {}
    for name, tensor in tensors.items():
        stem, _, last = name.rpartition(".")
        if last == "gate_up_proj":
            for expert, both in enumerate(tensor):
                split[f"{stem}.{expert}.gate_proj.weight"], split[f"{stem}.{expert}.up_proj.weight"] = (half.clone() for half in both.chunk(2))
        elif last == "down_proj":
            split.update({f"{stem}.{expert}.down_proj.weight": matrix.clone() for expert, matrix in enumerate(tensor)})
        else:
            split[name] = tensor
    losses = []
    for number, layout in enumerate((tensors, nested, split)):
        folder = oom.folder / f"layout-{number}"
        folder.mkdir()
        (folder / "config.json").write_bytes((source / "config.json").read_bytes())
        save_file(layout, folder / "model.safetensors", metadata={"format": "pt"})
        config = oracle.config(oom.folder, training_of("gemma4", steps=1), "gemma4", model_folder=folder,
                               tables={"output": {"dir": f"run-{number}"}, "checkpoint": {"at_end": False}})
        losses.append(oom.train(config).column("loss"))
    assert losses == [losses[0]] * 3


@pytest.mark.parametrize("changes, named", [
    ({"hidden_size_per_layer_input": 16}, "hidden_size_per_layer_input"), ({"num_kv_shared_layers": 2}, "num_kv_shared_layers"),
    ({"use_double_wide_mlp": True}, "use_double_wide_mlp"), ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
    ({"enable_moe_block": False}, "enable_moe_block"), ({"attention_bias": True}, "attention_bias"), ({"hidden_activation": "silu"}, "hidden_activation"),
    ({"layer_types": ["full_attention"] * 5 + ["sliding_attention"]}, "layer_types"), ({"attention_chunk": 5}, "attention_chunk"),
    ({"per_layer_config": {"5": {"head_dim": 32, "rope": 1}}}, "per_layer_config.5.rope"), ({"per_layer_config": {"7": {"head_dim": 32}}}, "per_layer_config.7"),
    ({"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 2.0}}}, "rope_type"), ({"top_k_experts": 17}, "top_k_experts")])
def test_what_is_not_understood_is_refused_by_name(oom, changes, named):
    oom.require("gemma4")
    folder = oom.folder / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**TINY_CONFIGS["gemma4"], **changes}))
    assert named in oom.run("inspect", folder, code=4).err


def test_layers_described_one_by_one(oom):
    """per_layer_config, as transformers from 5.16 on writes it, says the same as the two global keys."""
    oom.require("gemma4")
    tiny = TINY_CONFIGS["gemma4"]
    rewritten = {key: value for key, value in tiny.items() if key not in ("global_head_dim", "num_global_key_value_heads")}
    found = []
    for name, config in (("global", tiny), ("each", {**rewritten, "per_layer_config": {"5": {"head_dim": 32, "num_key_value_heads": 1}}})):
        folder = oom.folder / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        found.append(oom.run("inspect", folder, "--json").json["roles"])
    assert found[0] == found[1]


def test_yarn_is_refused(oom, oracle):
    oom.require("gemma4", EXPERTS)
    config = oracle.config(oom.folder, training_of("gemma4"), "gemma4")
    assert "yarn_factor" in oom.run("train", config, "--set", "model.yarn_factor=2.0", code=2).err


def test_bf16(oom, oracle):
    """The bound of test_precision.py. Every token takes every expert: with fewer, rounding to BF16 turns some token's choice, and the reference's own losses then
    differ from those in FP32 by as much as the bound."""
    oom.require("gemma4", EXPERTS)
    training, changes = training_of("gemma4", compute="bf16"), (("top_k_experts", 16),)
    expected: Expected = oracle.expected(training, "gemma4", changes=changes)
    run = oom.train(oracle.config(oom.folder, training, "gemma4", changes=changes, tables={"engine": {"ranks": 2}}))
    assert run.column("loss") == pytest.approx(expected.result.losses, rel=5e-3)
    assert run.column("grad_norm") == pytest.approx(expected.result.gradient_norms, rel=0.05)
