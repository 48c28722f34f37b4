"""Trains a Hugging Face model exactly as the engine is meant to: the same samples in the same order, the same loss, the same AdamW.

Eager attention and eager experts; no code of the engine is used.
"""

import copy
import math
from dataclasses import dataclass

import torch
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

IGNORED = -100


@dataclass(frozen=True)
class Training:
    """The settings of a run, as in the tables [data], [train] and [precision] of a config."""

    steps: int = 5
    global_batch: int = 8
    sequence_length: int = 32
    documents: str = "joined"
    learning_rate: float = 1e-3
    schedule: str = "constant"
    warmup_steps: int = 0
    decay_steps: int = 0
    min_learning_rate: float = 0.0
    weight_decay: float = 0.1
    betas: tuple = (0.9, 0.999)
    eps: float = 1e-8
    clip_norm: float = 0.0
    router_aux_loss: float = 0.0
    compute: str = "fp32"

    def tables(self) -> dict:
        return {
            "data": {"sequence_length": self.sequence_length, "documents": self.documents},
            "train": {
                "steps": self.steps, "global_batch": self.global_batch, "learning_rate": self.learning_rate,
                "schedule": self.schedule, "warmup_steps": self.warmup_steps, "decay_steps": self.decay_steps,
                "min_learning_rate": self.min_learning_rate, "weight_decay": self.weight_decay, "betas": self.betas,
                "eps": self.eps, "clip_norm": self.clip_norm, "router_aux_loss": self.router_aux_loss},
            "precision": {"compute": self.compute},
        }


@dataclass
class Result:
    losses: list
    aux_losses: list
    gradient_norms: list
    learning_rates: list
    weights: dict  # parameter name in the Hugging Face model -> FP32 tensor


def learning_rate(training: Training, step: int) -> float:
    """The rate of a step, counted from 1."""
    peak, low = training.learning_rate, training.min_learning_rate
    if step <= training.warmup_steps:
        return peak * step / training.warmup_steps
    if training.schedule == "cosine":
        progress = (step - training.warmup_steps) / (training.steps - training.warmup_steps)
        return low + (peak - low) * 0.5 * (1 + math.cos(math.pi * progress))
    if training.schedule == "wsd" and step > training.steps - training.decay_steps:
        return peak + (low - peak) * (step - (training.steps - training.decay_steps)) / training.decay_steps
    return peak


class Samples:
    """Token files cut into samples, in order; after the last sample the first comes again."""

    def __init__(self, documents, sequence_length: int, isolated: bool):
        self.tokens = torch.tensor([token for document in documents for token in document])
        self.document_of = torch.tensor([index for index, document in enumerate(documents) for _ in document])
        self.length = sequence_length
        self.isolated = isolated
        self.count = (len(self.tokens) - 1) // sequence_length

    def sample(self, index: int):
        """Inputs, labels, and the lengths of the pieces that may not see each other."""
        start = (index % self.count) * self.length
        inputs = self.tokens[start:start + self.length]
        labels = self.tokens[start + 1:start + self.length + 1].clone()
        if not self.isolated:
            return inputs, labels, [self.length]
        owners = self.document_of[start:start + self.length + 1]
        labels[owners[1:] != owners[:-1]] = IGNORED
        return inputs, labels, torch.unique_consecutive(owners[:-1], return_counts=True)[1].tolist()

    def step(self, step: int, global_batch: int):
        """The samples of a step, counted from 0."""
        return [self.sample(step * global_batch + i) for i in range(global_batch)]


def forward(model, samples, wants_router: bool):
    """Summed cross entropy, number of valid targets, and router logits of each layer over all samples."""
    whole = all(len(pieces) == 1 for _, _, pieces in samples)
    if whole:
        batches = [torch.stack([inputs for inputs, _, _ in samples])]
    else:
        # A piece on its own sees nothing else and has positions from 0: the definition of an isolated document.
        batches = [piece.unsqueeze(0) for inputs, _, pieces in samples for piece in inputs.split(pieces)]
    logits, router_logits = [], []
    for batch in batches:
        output = model(batch, use_cache=False, **({"output_router_logits": True} if wants_router else {}))
        logits.append(output.logits.float().reshape(-1, output.logits.shape[-1]))
        if wants_router:
            router_logits.append(output.router_logits)
    labels = torch.cat([labels for _, labels, _ in samples])
    summed = torch.nn.functional.cross_entropy(torch.cat(logits), labels, ignore_index=IGNORED, reduction="sum")
    pooled = tuple(torch.cat(layer) for layer in zip(*router_logits)) if wants_router else None
    return summed, int((labels != IGNORED).sum()), pooled


def train(model, documents, training: Training, noise: float = 0.0, noise_seed: int = 0) -> Result:
    """Trains a copy of `model`. `noise` is the relative size of a perturbation of its first weights."""
    masters = copy.deepcopy(model).float()
    if noise:
        generator = torch.Generator().manual_seed(noise_seed)
        with torch.no_grad():
            for parameter in masters.parameters():
                parameter.mul_(1 + noise * torch.randn(parameter.shape, generator=generator))
    low_precision = training.compute == "bf16"
    worker = copy.deepcopy(masters).bfloat16() if low_precision else masters
    optimizer = torch.optim.AdamW(masters.parameters(), lr=training.learning_rate, betas=training.betas, eps=training.eps,
                                  weight_decay=training.weight_decay, foreach=False)
    samples = Samples(documents, training.sequence_length, training.documents == "isolated")
    wants_router = training.router_aux_loss > 0
    result = Result([], [], [], [], {})
    for step in range(1, training.steps + 1):
        if low_precision:
            with torch.no_grad():
                for low, master in zip(worker.parameters(), masters.parameters()):
                    low.copy_(master)
        summed, valid, router_logits = forward(worker, samples.step(step - 1, training.global_batch), wants_router)
        loss = summed / valid
        aux = torch.zeros(())
        if wants_router:
            aux = load_balancing_loss_func(router_logits, worker.config.num_experts if hasattr(worker.config, "num_experts")
                                           else worker.config.num_local_experts, worker.config.num_experts_per_tok)
        (loss + training.router_aux_loss * aux).backward()
        for low, master in zip(worker.parameters(), masters.parameters()):
            # An expert that no token chose has gradient 0, and still decays.
            master.grad = torch.zeros_like(master) if low.grad is None else low.grad.float()
        norm = torch.linalg.vector_norm(torch.stack([p.grad.double().norm() for p in masters.parameters()]))
        if training.clip_norm > 0 and norm > training.clip_norm:
            for parameter in masters.parameters():
                parameter.grad.mul_(training.clip_norm / norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(training, step)
        result.learning_rates.append(group["lr"])
        optimizer.step()
        worker.zero_grad(set_to_none=True)
        result.losses.append(loss.item())
        result.aux_losses.append(aux.item())
        result.gradient_norms.append(norm.item())
    result.weights = {name: parameter.detach() for name, parameter in masters.named_parameters()}
    return result
