"""Isolated documents: nothing crosses an edge, and a target in another document is ignored."""

import pytest
from harness.run_config import EXPERTS
from harness.tiny_models import TINY_CONFIGS
from oracle.conftest import training_of
from oracle.test_parity import compare


@pytest.mark.parametrize("experts, ranks", [("local", 1), ("local", 2), ("ep", 1), ("ep", 2)])
def test_isolated(oom, oracle, experts, ranks):
    oom.require("qwen3_moe", experts)
    training = training_of("qwen3_moe", documents="isolated", router_aux_loss=0.1)
    compare(oom, oracle, training, tables={"engine": {"ranks": ranks, "experts": experts}})


@pytest.mark.parametrize("family", [family for family in TINY_CONFIGS if family != "qwen3_moe"])
def test_isolated_in_other_families(oom, oracle, family):
    oom.require(family, EXPERTS)
    compare(oom, oracle, training_of(family, documents="isolated"), family=family, tables={"engine": {"ranks": 2}})


@pytest.mark.parametrize("ranks", [1, 4])
def test_all_targets_ignored_but_one(oom, oracle, ranks):
    """Most ranks have no valid target at all; the mean is still over the one that is.

    It is predicted from the first token of its document, which attends to itself alone: queries and keys have a gradient of 0 but for
    rounding. With eps = 1e-8 AdamW would make whole steps of that rounding, which no two implementations share.
    """
    oom.require("qwen3_moe", EXPERTS)
    training = training_of("qwen3_moe", documents="isolated", steps=4, eps=1e-3)
    compare(oom, oracle, training, corpus="one_target", tables={"engine": {"ranks": ranks}})
