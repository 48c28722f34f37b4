"""Routing at its extremes: experts that no token chooses, and one that every token chooses."""

import pytest
from oracle.conftest import training_of
from oracle.test_parity import compare

EXTREMES = {"experts without tokens": (), "all tokens to one expert": (("num_experts_per_tok", 1),)}


@pytest.mark.parametrize("experts, ranks", [("local", 1), ("local", 2), ("ep", 1), ("ep", 4)])
@pytest.mark.parametrize("routing", EXTREMES)
def test_extremes(oom, oracle, routing, experts, ranks):
    oom.require("qwen3_moe", experts)
    compare(oom, oracle, training_of("qwen3_moe"), routing=routing, changes=EXTREMES[routing],
            tables={"engine": {"ranks": ranks, "experts": experts}})


def test_small_routing_chunks(oom, oracle):
    """Many exchange rounds a layer, of different sizes on different ranks."""
    oom.require("qwen3_moe", "ep")
    compare(oom, oracle, training_of("qwen3_moe"), tables={"engine": {"ranks": 4, "experts": "ep"}, "ep": {"routing_chunk": 24}})
