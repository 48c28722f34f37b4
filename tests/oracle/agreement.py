"""How close the engine must come to the reference.

Losses: 1e-5 relative, the project's contract. Everything else: a small factor over what the reference itself changes by when its first
weights are perturbed by 1e-7, about one unit in the last place. A sum taken in another order is such a perturbation.
"""

import math
from dataclasses import dataclass

import torch
from oracle.reference import Result, Training

LOSS_RELATIVE = 1e-5
FACTOR = 8.0
FLOOR = 1e-6
# Gradient norms and auxiliary losses lose no accuracy of their own.
SCALAR_FLOOR = 1e-5


@dataclass
class Expected:
    """A reference run and the same run twice with perturbed weights."""

    result: Result
    perturbed: list

    def loss_noise(self) -> float:
        return max(_relative(run.losses, self.result.losses) for run in self.perturbed)

    def norm_noise(self) -> float:
        return max(_relative(run.gradient_norms, self.result.gradient_norms) for run in self.perturbed)

    def weight_noise(self):
        """Greatest absolute and greatest root-mean-square change of any weight tensor."""
        changes = [_distance(run.weights[name], weight) for run in self.perturbed for name, weight in self.result.weights.items()]
        return max(change[0] for change in changes), max(change[1] for change in changes)

    def check_metrics(self, run, training: Training, first_step=1):
        """Compares the lines of metrics.jsonl from `first_step` on."""
        lines = [line for line in run.metrics() if line["step"] >= first_step]
        assert [line["step"] for line in lines] == list(range(first_step, training.steps + 1))
        tail = slice(first_step - 1, None)
        _check("loss", [line["loss"] for line in lines], self.result.losses[tail], LOSS_RELATIVE)
        _check("grad_norm", [line["grad_norm"] for line in lines], self.result.gradient_norms[tail],
               max(SCALAR_FLOOR, FACTOR * self.norm_noise()))
        if training.router_aux_loss > 0:
            _check("aux_loss", [line["aux_loss"] for line in lines], self.result.aux_losses[tail], SCALAR_FLOOR)
        _check("learning_rate", [line["learning_rate"] for line in lines], self.result.learning_rates[tail], 1e-6)

    def check_weights(self, model):
        """Compares every parameter of a model in FP32."""
        parameters = dict(model.named_parameters())
        assert parameters.keys() == self.result.weights.keys()
        most, root_mean_square = (max(FLOOR, FACTOR * noise) for noise in self.weight_noise())
        wrong = []
        for name, expected in self.result.weights.items():
            distance = _distance(parameters[name].detach(), expected)
            if not (distance[0] <= most and distance[1] <= root_mean_square):
                wrong.append(f"{name}: off by at most {distance[0]:.2e} (bound {most:.2e}), "
                             f"root mean square {distance[1]:.2e} (bound {root_mean_square:.2e})")
        assert not wrong, "\n".join(wrong)


def _relative(values, expected) -> float:
    differences = [abs(value - other) / max(abs(other), 1e-12) for value, other in zip(values, expected, strict=True)]
    return max(differences) if all(map(math.isfinite, differences)) else math.inf


def _check(what, values, expected, bound):
    worst = _relative(values, expected)
    assert worst <= bound, f"{what}: {values} against {expected}: relative difference {worst:.2e}, bound {bound:.2e}"


def _distance(weight: torch.Tensor, expected: torch.Tensor):
    assert weight.shape == expected.shape
    difference = (weight - expected).double()
    return difference.abs().max().item(), difference.square().mean().sqrt().item()
