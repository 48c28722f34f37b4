"""Isolated documents: nothing crosses an edge, and a target in another document is ignored."""

import numpy as np
import pytest
from harness.run_config import EXPERTS
from harness.tiny_models import TINY_CONFIGS
from oracle.conftest import training_of
from oracle.corpora import CORPORA, VOCABULARY, random_documents
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


@pytest.mark.parametrize("family", TINY_CONFIGS)
def test_neighbours_change_nothing(oom, oracle, family, monkeypatch):
    """Documents of one token have no target, so only the longer ones between them count: their losses and gradients are the same to the last bit,
    whatever lies beside them.

    The neighbours are shuffled on each side, so that every expert has as many rows as before: how many there are may decide how a product is rounded.
    """
    oom.require(family, EXPERTS)
    results = []
    for order in range(3):
        generator, shuffle = np.random.default_rng(5), np.random.default_rng(order)
        documents = []
        for kept in random_documents(4, [11, 20, 5, 9]):
            before = generator.integers(0, 32 - len(kept) + 1)
            left, right = (shuffle.permutation(generator.integers(1, VOCABULARY, count)) for count in (before, 32 - len(kept) - before))
            documents += [*([int(token)] for token in left), kept, *([int(token)] for token in right)]
        monkeypatch.setitem(CORPORA, f"neighbours {order}", [*documents, [1]])
        run = oom.train(oracle.config(oom.folder, training_of(family, steps=1, global_batch=4, documents="isolated"), family, corpus=f"neighbours {order}",
                                      tables={"output": {"dir": f"run-{order}"}}))
        results.append((run.column("loss"), run.column("grad_norm")))
    assert results == [results[0]] * 3
