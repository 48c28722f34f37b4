"""Qwen3.5-MoE beyond what every family is held to: ranks, left-over tiles of the delta rule, variants of the configuration, and its files."""

import json

import pytest
import torch
from harness.run_config import EXPERTS
from harness.tiny_models import TINY_CONFIGS
from oracle.conftest import frozen, training_of
from oracle.test_parity import CLIPPED, compare
from safetensors.torch import load_file, save_file

FAMILY = "qwen3_5_moe"


@pytest.mark.parametrize("experts, ranks", [("local", 1), ("local", 4), ("ep", 1), ("ep", 4)])
def test_ranks(oom, oracle, experts, ranks):
    oom.require(FAMILY, experts)
    training = training_of(FAMILY, clip_norm=CLIPPED, router_aux_loss=0.1)
    compare(oom, oracle, training, family=FAMILY, tables={"engine": {"ranks": ranks, "experts": experts}})


@pytest.mark.parametrize("length", [1, 3, 63, 64, 65, 130])
def test_sequences_that_end_within_a_tile(oom, oracle, length):
    """The delta rule works on tiles of 64 tokens. With one token a sequence nothing reaches the decays: eps keeps AdamW from following rounding, which
    differs between processors."""
    oom.require(FAMILY, EXPERTS)
    training = training_of(FAMILY, sequence_length=length, global_batch=4, steps=3, eps=1e-3 if length < 4 else 1e-5)
    compare(oom, oracle, training, family=FAMILY, tables={"engine": {"ranks": 2}})


@pytest.mark.parametrize("changes", [
    (("linear_num_value_heads", 8),),
    (("linear_num_key_heads", 4),),
    (("linear_conv_kernel_dim", 2),),
    (("layer_types", ("full_attention", "linear_attention", "full_attention", "linear_attention")),),
    (("tie_word_embeddings", True),),
], ids=lambda changes: f"{changes[0][0]}")
def test_variants(oom, oracle, changes):
    oom.require(FAMILY, EXPERTS)
    compare(oom, oracle, training_of(FAMILY, eps=1e-5), family=FAMILY, changes=changes, tables={"engine": {"ranks": 2}})


@pytest.mark.parametrize("ranks", [1, 4])
def test_isolated_documents(oom, oracle, ranks):
    """Of documents of one or two tokens hardly anything reaches the decays: eps keeps AdamW from following rounding (the reference's own losses, its
    weights perturbed by 1e-7, differ by 3e-5 with 1e-8, and by 2e-7 with this one)."""
    oom.require(FAMILY, "ep")
    training = training_of(FAMILY, documents="isolated", sequence_length=96, router_aux_loss=0.1, eps=1e-5)
    compare(oom, oracle, training, family=FAMILY, tables={"engine": {"ranks": ranks, "experts": "ep"}})


@pytest.mark.parametrize("documents", ["joined", "isolated"])
@pytest.mark.parametrize("policy", [
    dict(gdn_chunk=64), dict(gdn_chunk=384),
    dict(gdn_chunk=128, attention_head_group=1, moe_chunk=100, keep_attention="all", keep_boundaries="3+1", regenerate_cap=1)],
    ids=["slices", "batches", "everything"])
def test_slices_of_a_sequence(oom, oracle, policy, documents):
    """States and convolution contexts go from slice to slice, and their gradients back."""
    oom.require(FAMILY, EXPERTS)
    training = training_of(FAMILY, sequence_length=192, global_batch=4, steps=3, documents=documents)
    compare(oom, oracle, training, family=FAMILY, tables={"engine": {"ranks": 2}, "offload": policy})


@pytest.mark.parametrize("factor", [2.0, 4.0, 8.0])
def test_yarn(oom, oracle, factor):
    """The engine is told the factor; the reference has it in its configuration."""
    oom.require(FAMILY, EXPERTS)
    original = TINY_CONFIGS[FAMILY]["max_position_embeddings"]
    rope = {**TINY_CONFIGS[FAMILY]["rope_parameters"], "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    changes = frozen({"rope_parameters": rope})
    training = training_of(FAMILY, sequence_length=130, global_batch=4)
    expected = oracle.expected(training, FAMILY, changes=changes)
    run = oom.train(oracle.config(oom.folder, training, FAMILY, tables={"model": {"yarn_factor": factor}, "engine": {"ranks": 2}}))
    expected.check_metrics(run, training)
    plain = oracle.expected(training, FAMILY).result.losses
    assert run.column("loss") != pytest.approx(plain, rel=1e-5), "the factor had no effect"


def conditional_generation_folder(oracle, folder, fused):
    """A checkpoint as published: BF16, the text model inside a vision model, tensors of parts that are not trained beside it."""
    config = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "tie_word_embeddings": False,
              "image_token_id": 150, "video_token_id": 151, "vision_start_token_id": 152, "vision_end_token_id": 153, "dtype": "bfloat16",
              "text_config": {**TINY_CONFIGS[FAMILY], "mtp_num_hidden_layers": 1, "mamba_ssm_dtype": "float32", "attn_output_gate": True},
              "vision_config": {"model_type": "qwen3_5_moe", "depth": 1, "hidden_size": 8}}
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for name, tensor in load_file(oracle.model_folder(FAMILY, fused=fused) / "model.safetensors").items():
        tensors[name.replace("model.", "model.language_model.", 1) if name.startswith("model.layers") or name.startswith("model.embed") or name == "model.norm.weight"
                else name] = tensor.bfloat16().contiguous()
    for name, shape in (("model.visual.patch_embed.proj.weight", (8, 3, 2, 4, 4)), ("model.visual.blocks.0.attn.qkv.bias", (24,)), ("mtp.fc.weight", (64, 128)),
                        ("mtp.layers.0.mlp.experts.gate_up_proj", (2, 8, 64)), ("mtp.layers.0.mlp.experts.3.down_proj.weight", (64, 4))):
        tensors[name] = torch.randn(shape, generator=generator).bfloat16()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


def test_published_checkpoints_go_round(oom, oracle):
    """Names and bytes of every tensor, those of vision and multi-token prediction included."""
    oom.require(FAMILY, EXPERTS)
    tensors = conditional_generation_folder(oracle, oom.folder / "published", fused=True)
    assert "model.language_model.layers.0.mlp.experts.gate_up_proj" in tensors and "model.language_model.layers.3.self_attn.q_proj.weight" in tensors
    training = training_of(FAMILY, steps=1, learning_rate=0.0)
    run = oom.train(oracle.config(oom.folder, training, FAMILY, model_folder=oom.folder / "published", tables={"engine": {"ranks": 2}}))
    exported = load_file(oom.export(run.last_checkpoint(), oom.folder / "exported", "bf16") / "model.safetensors")
    assert exported.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert exported[name].dtype == tensor.dtype and torch.equal(exported[name].view(torch.int16), tensor.view(torch.int16)), name
    written = json.loads((oom.folder / "exported/config.json").read_text())
    assert written["text_config"]["layer_types"] == TINY_CONFIGS[FAMILY]["layer_types"] and written["dtype"] == "bfloat16"


def test_layouts_and_prefixes_come_in_equal(oom, oracle):
    oom.require(FAMILY, EXPERTS)
    training, losses = training_of(FAMILY, steps=2), []
    for fused in (True, False):
        folder = oom.folder / f"published-{fused}"
        conditional_generation_folder(oracle, folder, fused)
        config = oracle.config(oom.folder, training, FAMILY, model_folder=folder, tables={"output": {"dir": f"run-{fused}"}})
        losses.append(oom.train(config).column("loss"))
    assert losses[0] == losses[1]


@pytest.mark.parametrize("changes, named", [
    ({"layer_types": ["linear_attention"] * 3 + ["sliding_attention"]}, "layer_types"),
    ({"layer_types": ["linear_attention"] * 3}, "layer_types"),
    ({"attn_output_gate": False}, "attn_output_gate"),
    ({"linear_conv_kernel_dim": 5}, "linear_conv_kernel_dim"),
    ({"linear_num_key_heads": 3}, "linear_num_key_heads"),
    ({"mlp_only_layers": [1]}, "mlp_only_layers"),
    ({"hidden_act": "gelu"}, "hidden_act"),
    ({"gate_temperature": 2.0}, "gate_temperature"),
    ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e7}}, "rope_type"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.1}}, "partial_rotary_factor"),
])
def test_what_is_not_understood_is_refused_by_name(oom, changes, named):
    oom.require(FAMILY)
    (oom.folder / "config.json").write_text(json.dumps({**TINY_CONFIGS[FAMILY], **changes}))
    outcome = oom.run("inspect", oom.folder / "config.json", code=4)
    assert named in outcome.err and "config.json" in outcome.err
