"""FP32 training against the reference: every number of ranks, with and without clipping, auxiliary loss and overlapped updates."""

import pytest
from harness.run_config import EXPERTS
from harness.tiny_models import AUXILIARY_LOSS, TINY_CONFIGS
from oracle.conftest import training_of
from oracle.models import load_model

CLIPPED = 0.5  # below every gradient norm of these runs


def compare(oom, oracle, training, *, family="qwen3_moe", tables=None, **model):
    expected = oracle.expected(training, family, **model)
    run = oom.train(oracle.config(oom.folder, training, family, tables=tables, **model))
    expected.check_metrics(run, training)
    exported, report = load_model(oom.export(run.last_checkpoint(), oom.folder / "exported"), family)
    assert report == {}
    expected.check_weights(exported)


@pytest.mark.parametrize("clip_norm, updates", [(0.0, "overlapped"), (0.0, "deferred"), (CLIPPED, "deferred")])
@pytest.mark.parametrize("router_aux_loss", [0.0, 0.1])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("experts", ["local", "ep"])
def test_qwen3_moe(oom, oracle, experts, ranks, router_aux_loss, clip_norm, updates):
    oom.require("qwen3_moe", experts)
    training = training_of("qwen3_moe", clip_norm=clip_norm, router_aux_loss=router_aux_loss)
    compare(oom, oracle, training, tables={"engine": {"ranks": ranks, "experts": experts}, "train": {"updates": updates}})


@pytest.mark.parametrize("experts", ["local", "ep"])
@pytest.mark.parametrize("family", [family for family in TINY_CONFIGS if family != "qwen3_moe"])
def test_other_families(oom, oracle, family, experts):
    oom.require(family, experts)
    training = training_of(family, clip_norm=CLIPPED, router_aux_loss=0.1 if family in AUXILIARY_LOSS else 0.0)
    compare(oom, oracle, training, family=family, tables={"engine": {"ranks": 2, "experts": experts}})


@pytest.mark.parametrize("changes", [(("mlp_only_layers", (1,)),), (("norm_topk_prob", False),), (("tie_word_embeddings", True),)],
                         ids=lambda changes: changes[0][0])
@pytest.mark.parametrize("experts", ["local", "ep"])
def test_variants_of_qwen3_moe(oom, oracle, experts, changes):
    oom.require("qwen3_moe", experts)
    compare(oom, oracle, training_of("qwen3_moe"), changes=changes, tables={"engine": {"ranks": 2, "experts": experts}})


@pytest.mark.parametrize("schedule", [
    dict(schedule="constant", warmup_steps=3), dict(schedule="cosine", warmup_steps=1, min_learning_rate=1e-4),
    dict(schedule="wsd", warmup_steps=1, decay_steps=2)], ids=lambda schedule: schedule["schedule"])
def test_schedules(oom, oracle, schedule):
    oom.require("qwen3_moe", EXPERTS)
    compare(oom, oracle, training_of("qwen3_moe", **schedule))


def test_epochs_follow_one_another(oom, oracle):
    oom.require("qwen3_moe", EXPERTS)
    compare(oom, oracle, training_of("qwen3_moe"), corpus="short", tables={"engine": {"ranks": 2}})


def test_optimizer_settings(oom, oracle):
    """Far from the defaults: with betas near 1, five steps hardly depend on them."""
    oom.require("qwen3_moe", EXPERTS)
    compare(oom, oracle, training_of("qwen3_moe", betas=(0.5, 0.7), eps=1e-4, weight_decay=0.5), tables={"engine": {"ranks": 2}})
