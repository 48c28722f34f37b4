"""Makes tiny Hugging Face models with random weights, and reads exported ones."""

import pathlib

import torch
import transformers
from harness.tiny_models import TINY_CONFIGS
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe

# Of transformers' two forms of the delta rule the recurrence by tokens: in FP32 the chunk form makes the gradient of a decay as the difference of sums
# that are far larger, and AdamW follows the rounding where the decay is strong.
modeling_qwen3_5_moe.torch_chunk_gated_delta_rule = modeling_qwen3_5_moe.torch_recurrent_gated_delta_rule

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

FAMILY_SEEDS = {"qwen3_moe": 2, "mixtral": 4, "qwen3_5_moe": 2, "gemma4": 2}  # without a near tie of two experts on these data
FAMILY_LEARNING_RATES = {"gemma4": 1e-4}


def make_model(family: str, seed: int = 0, shape=None, **changes):
    """A model of the family. Nothing in it has its constant initial value: a forgotten scale or a missing 1 + w shows.

    `shape` (model -> None) may alter the weights.
    """
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(**{**TINY_CONFIGS[family], **changes})
    model = getattr(transformers, TINY_CONFIGS[family]["architectures"][0])(config).float()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        scalars = [buffer for name, buffer in model.named_buffers() if name.endswith("layer_scalar")]
        for tensor in [*model.parameters(), *scalars]:
            if tensor.min() == tensor.max():
                tensor.add_(0.2 * torch.randn(tensor.shape, generator=generator))
        if shape:
            shape(model)
    return pinned(model)


def load_model(folder: pathlib.Path, family: str):
    """A model in FP32 out of a folder, and what the loader had to say: missing, unexpected, mismatched keys."""
    model_class = getattr(transformers, TINY_CONFIGS[family]["architectures"][0])
    model, report = model_class.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    return pinned(model), {kind: sorted(map(str, keys)) for kind, keys in report.items() if keys}


def pinned(model):
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")
    return model


def force_routing(model, favoured=(), shunned=()):
    """Makes every token choose the favoured experts and none the shunned ones, in every layer.

    The first hidden channel is made large and positive for every token, and the routers read it.
    """
    model.model.embed_tokens.weight[:, 0] = 4.0
    for layer in model.model.layers:
        if hasattr(layer, "router"):  # Gemma4: neither half of a layer touches the channel
            router = layer.router.proj.weight
            layer.router.scale[0] = 4.0
            layer.post_attention_layernorm.weight[0] = 0.0
            layer.post_feedforward_layernorm.weight[0] = 0.0
        else:
            router = layer.mlp.gate.weight
            layer.post_attention_layernorm.weight[0] = 1.0
        router[:, 0] = 0.0
        for expert in favoured:
            router[expert, 0] = 4.0
        for expert in shunned:
            router[expert, 0] = -4.0
