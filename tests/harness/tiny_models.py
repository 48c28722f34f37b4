"""Small models of each family, as Hugging Face configurations.

The initial ranges are those with which training is well conditioned: with others, a change of 1e-7 of the weights grows within five
steps beyond every tolerance (routers and sharp attention are discontinuous), and a comparison would show nothing.
tests/oracle/test_reference.py holds them to that.
"""

import json
import os
import pathlib
import sys

import numpy as np
from safetensors.numpy import save_file

TINY_CONFIGS = {
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
        "vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu",
        "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "attention_bias": False,
        "use_sliding_window": False, "decoder_sparse_step": 1, "mlp_only_layers": [], "num_experts": 16,
        "num_experts_per_tok": 4, "norm_topk_prob": True, "router_aux_loss_coef": 0.001, "output_router_logits": False,
        "tie_word_embeddings": False, "initializer_range": 0.08,
    },
    "mixtral": {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
        "vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "hidden_act": "silu", "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
        "rope_theta": 1e6, "sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2,
        "router_aux_loss_coef": 0.02, "output_router_logits": False, "router_jitter_noise": 0.0,
        "tie_word_embeddings": False, "initializer_range": 0.08,
    },
    "qwen3_5_moe": {
        "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text",
        "vocab_size": 160, "hidden_size": 64, "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4, "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48, "hidden_act": "silu", "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                            "mrope_section": [2, 1, 1], "mrope_interleaved": True},
        "attention_bias": False, "router_aux_loss_coef": 0.001, "output_router_logits": False,
        "tie_word_embeddings": False, "initializer_range": 0.04,
    },
    "gemma4": {
        "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text",
        "vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 6,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_global_key_value_heads": 1,
        "global_head_dim": 32, "attention_k_eq_v": True, "sliding_window": 8, "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6, "max_position_embeddings": 256, "final_logit_softcapping": 30.0,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}},
        "enable_moe_block": True, "num_experts": 16, "top_k_experts": 4, "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 160, "num_kv_shared_layers": 0, "use_double_wide_mlp": False,
        "use_bidirectional_attention": None, "tie_word_embeddings": True, "pad_token_id": 0, "initializer_range": 0.3,
    },
}

# A family of a plugin outside this tree: the file of its small config.json, called as the plugin is (docs/writing_a_model.md).
if "OOM_FAMILY" in os.environ:
    _path = pathlib.Path(os.environ["OOM_FAMILY"])
    TINY_CONFIGS[_path.stem] = json.loads(_path.read_text())

# Families whose training has a router auxiliary loss.
AUXILIARY_LOSS = {family for family, config in TINY_CONFIGS.items() if "router_aux_loss_coef" in config}


def write_model_config(folder: pathlib.Path, family="qwen3_moe", **changes) -> pathlib.Path:
    """A model folder with config.json alone, enough for weights = "random"."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**TINY_CONFIGS[family], **changes}, indent=1))
    return folder


def qwen3_moe_tensors(seed=0, **changes) -> dict:
    """Random weights of the tiny Qwen3-MoE model under their names on disk, one expert at a time."""
    config = {**TINY_CONFIGS["qwen3_moe"], **changes}
    generator = np.random.default_rng(seed)

    def tensor(*shape):
        return (0.08 * generator.standard_normal(shape)).astype(np.float32)

    hidden, vocabulary, head = config["hidden_size"], config["vocab_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    tensors = {"model.embed_tokens.weight": tensor(vocabulary, hidden), "lm_head.weight": tensor(vocabulary, hidden),
               "model.norm.weight": 1 + tensor(hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{name}.weight"] = 1 + tensor(hidden)
        for name in ("q_norm", "k_norm"):
            tensors[f"{prefix}.self_attn.{name}.weight"] = 1 + tensor(head)
        for name, shape in (("q_proj", (queries, hidden)), ("k_proj", (keys, hidden)), ("v_proj", (keys, hidden)), ("o_proj", (hidden, queries))):
            tensors[f"{prefix}.self_attn.{name}.weight"] = tensor(*shape)
        tensors[f"{prefix}.mlp.gate.weight"] = tensor(config["num_experts"], hidden)
        for expert in range(config["num_experts"]):
            for name in ("gate_proj", "up_proj"):
                tensors[f"{prefix}.mlp.experts.{expert}.{name}.weight"] = tensor(config["moe_intermediate_size"], hidden)
            tensors[f"{prefix}.mlp.experts.{expert}.down_proj.weight"] = tensor(hidden, config["moe_intermediate_size"])
    return tensors


def write_model(folder: pathlib.Path, tensors: dict, **changes) -> pathlib.Path:
    """A Qwen3-MoE folder with config.json and one file of weights."""
    write_model_config(folder, **changes)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


if __name__ == "__main__":
    for name in TINY_CONFIGS:
        write_model_config(pathlib.Path(sys.argv[1]) / name, name)
