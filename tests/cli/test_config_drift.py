"""config.json files of one model as different versions of transformers wrote them: read alike, to the last bit of the loss."""

import json

import pytest
from harness.tiny_models import TINY_CONFIGS
from harness.workspace import Workspace

YARN = {"factor": 2.0, "original_max_position_embeddings": 16}
GONE = None
PAIRS = {
    "experts by their other name": ("qwen3_moe", {}, {"num_experts": GONE, "num_local_experts": 16}),
    "experts by their other name, Qwen3.5": ("qwen3_5_moe", {}, {"num_experts": GONE, "num_local_experts": 16}),
    "experts by their other name, Mixtral": ("mixtral", {}, {"num_local_experts": GONE, "num_experts": 8}),
    "rotary parameters": ("qwen3_moe", {}, {"rope_theta": GONE, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "rotary parameters, Mixtral": ("mixtral", {}, {"rope_theta": GONE, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "rotary parameters, Qwen3.5": ("qwen3_5_moe", {}, {"rope_parameters": GONE, "rope_theta": 1e7, "partial_rotary_factor": 0.25}),
    "scaling under its old name": ("qwen3_moe", {"rope_theta": GONE, "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, **YARN}}, {"rope_scaling": {"type": "yarn", **YARN}}),
    "layers by interval": ("qwen3_5_moe", {}, {"layer_types": GONE, "full_attention_interval": 4}),
    "no window by absence": ("mixtral", {}, {"sliding_window": GONE}),
    "layers one by one": ("gemma4", {}, {"global_head_dim": GONE, "num_global_key_value_heads": GONE, "per_layer_config": {"5": {"head_dim": 32, "num_key_value_heads": 1}}}),
    **{f"dtype's old name, {family}": (family, {"dtype": "bfloat16"}, {"torch_dtype": "bfloat16"}) for family in TINY_CONFIGS},
}
# What the pairs above would not notice if it were ignored.
MATTERS = {
    "rotary base": ("qwen3_moe", {"rope_theta": 1e4}), "rotary base, Mixtral": ("mixtral", {"rope_theta": 1e4}),
    "rotated share": ("qwen3_5_moe", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5}}),
    "scaling": ("qwen3_moe", {"rope_scaling": {"type": "yarn", **YARN}}), "window": ("mixtral", {"sliding_window": 5}),
}


@pytest.fixture
def loss(engine, workspace: Workspace):
    def evaluate(family, changes):
        engine.require(family)
        folder = workspace.folder / "drifted"
        folder.mkdir(exist_ok=True)
        config = {key: value for key, value in {**TINY_CONFIGS[family], **changes}.items() if value is not GONE or key not in changes}
        (folder / "config.json").write_text(json.dumps(config))
        run = workspace.config(model={"path": "drifted", "weights": "random", "seed": 3}, engine={"ranks": 1})
        return engine.run("eval", run, "--json", "--set", "eval.samples=4").json["loss"]

    return evaluate


@pytest.mark.parametrize("name", PAIRS)
def test_read_alike(loss, name):
    family, one, other = PAIRS[name]
    assert loss(family, one) == loss(family, other)


@pytest.mark.parametrize("name", MATTERS)
def test_read_at_all(loss, name):
    family, changes = MATTERS[name]
    assert loss(family, {}) != loss(family, changes)
