"""The reference, held to what the other tests assume of it. Needs no engine."""

import math

import pytest
import torch
from harness.tiny_models import AUXILIARY_LOSS, TINY_CONFIGS
from oracle.agreement import LOSS_RELATIVE
from oracle.conftest import training_of
from oracle.corpora import CORPORA
from oracle.models import load_model, make_model
from oracle.reference import IGNORED, Samples, Training, forward, learning_rate, train


@pytest.mark.parametrize("documents", ["joined", "isolated"])
@pytest.mark.parametrize("family", TINY_CONFIGS)
def test_is_well_conditioned(oracle, family, documents):
    training = training_of(family, documents=documents, router_aux_loss=0.1 if family in AUXILIARY_LOSS else 0.0)
    expected = oracle.expected(training, family)
    assert expected.loss_noise() < LOSS_RELATIVE / 5
    most, root_mean_square = expected.weight_noise()
    moved = min((weight - first.detach()).abs().max() for weight, first in
                zip(expected.result.weights.values(), oracle.model(family).parameters()))
    assert root_mean_square < 0.01 * moved


@pytest.mark.parametrize("family", TINY_CONFIGS)
def test_models_have_no_constant_parameter(family):
    model = make_model(family)
    assert [name for name, parameter in model.named_parameters() if parameter.min() == parameter.max()] == []


def test_isolated_documents_equal_a_block_mask(oracle):
    """Pieces on their own, against one forward with a block-diagonal mask and positions that restart."""
    model = oracle.model()
    inputs, labels, pieces = Samples(CORPORA["mixed"], 64, isolated=True).sample(1)
    assert len(pieces) > 1
    owner = torch.repeat_interleave(torch.arange(len(pieces)), torch.tensor(pieces))
    positions = torch.cat([torch.arange(piece) for piece in pieces])
    visible = (owner[:, None] == owner[None, :]) & torch.ones(64, 64, dtype=torch.bool).tril()
    mask = torch.zeros(64, 64).masked_fill(~visible, torch.finfo(torch.float32).min)
    logits = model(inputs[None], attention_mask=mask[None, None], position_ids=positions[None], use_cache=False).logits[0]
    whole = torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    summed, valid, _ = forward(model, [(inputs, labels, pieces)], wants_router=False)
    assert valid == 64 - sum(labels == IGNORED)
    assert math.isclose(summed.item(), whole.item(), rel_tol=1e-6)


def test_one_target_corpus_has_one_valid_target_a_step():
    samples = Samples(CORPORA["one_target"], 32, isolated=True)
    assert [sum(int((labels != IGNORED).sum()) for _, labels, _ in samples.step(step, 8)) for step in range(4)] == [1, 1, 1, 1]


def test_auxiliary_loss_changes_router_gradients(oracle):
    plain, with_loss = (train(oracle.model(), CORPORA["mixed"], Training(steps=1, router_aux_loss=weight)) for weight in (0.0, 0.1))
    name = "model.layers.1.mlp.gate.weight"
    assert not torch.equal(plain.weights[name], with_loss.weights[name])


@pytest.mark.parametrize("schedule, rates", [
    (dict(schedule="constant", warmup_steps=2), [0.5, 1.0, 1.0, 1.0]),
    (dict(schedule="cosine", min_learning_rate=0.2), [0.2 + 0.4 * (1 + math.cos(math.pi * k / 4)) for k in (1, 2, 3, 4)]),
    (dict(schedule="wsd", decay_steps=2), [1.0, 1.0, 0.5, 0.0]),
])
def test_schedules(schedule, rates):
    training = Training(steps=4, learning_rate=1.0, **schedule)
    assert [learning_rate(training, step) for step in range(1, 5)] == pytest.approx(rates)


@pytest.mark.parametrize("fused", [False, True])
def test_model_folders_hold_the_model(oracle, fused):
    loaded, report = load_model(oracle.model_folder(fused=fused, shard_size="200KB"), "qwen3_moe")
    assert report == {}
    for (name, weight), (_, other) in zip(loaded.named_parameters(), oracle.model().named_parameters(), strict=True):
        assert torch.equal(weight, other), name


def test_forced_routing_is_as_named(oracle):
    inputs = torch.tensor([document[0] for document in CORPORA["mixed"]])[None]
    def counts(routing, chosen, changes=()):
        model = oracle.model(routing=routing, changes=changes)
        logits = model(inputs, output_router_logits=True).router_logits
        return [torch.bincount(layer.topk(chosen, dim=-1)[1].flatten(), minlength=16) for layer in logits]
    for layer in counts("experts without tokens", 4):
        assert layer[[0, 5, 15]].sum() == 0
    for layer in counts("all tokens to one expert", 1, (("num_experts_per_tok", 1),)):
        assert layer[3] == inputs.numel()
