"""Density as a function of the training step, and training that prunes by such a schedule or keeps given masks.

Densities are the fraction of weights kept; papers give sparsities, which are 1 - density.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from mlsys_lab.efficiency.blocks import linear_layers
from mlsys_lab.efficiency.pruning.masks import apply_mask, magnitude_mask, require_density
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer
from mlsys_lab.validation import require_integer

Schedule = Callable[[int], float]
"""Density after a training step."""
Steps = Iterable[tuple[int, float]]
"""Training that runs as it is iterated over, such as `models.training.train`: each step's number and loss."""


def cubic_schedule(step: int, *, start: int, end: int, density: float) -> float:
    """Density that falls from 1 after step `start` to `density` after step `end`, quickly at first.

    density + (1 - density) · (1 - (step - start) / (end - start))³ (Zhu and Gupta 2017, arXiv:1710.01878, equation 1).
    InputError for a density outside (0, 1] and an end that is not after the start.

    >>> [round(cubic_schedule(step, start=100, end=200, density=0.5), 4) for step in (100, 150, 200, 300)]
    [1.0, 0.5625, 0.5, 0.5]
    """
    require_density(density)
    if end <= start:
        raise InputError("the schedule ends before it starts", got=f"steps {start} to {end}", expected="end > start")
    done = min(max((step - start) / (end - start), 0.0), 1.0)
    return density + (1 - density) * (1 - done) ** 3


def one_shot_schedule(step: int, *, start: int, density: float) -> float:
    """Density 1 before step `start`, and `density` from there on; InputError for a density outside (0, 1]."""
    require_density(density)
    return density if step >= start else 1.0


def iterative_schedule(step: int, *, start: int, every: int, rounds: int, density: float) -> float:
    """Density that reaches `density` in `rounds` steps, `every` apart, each keeping the same fraction of the weights.

    The first round is at step `start` (Han et al. 2015, arXiv:1506.02626; the constant rate is that of Frankle and
    Carbin 2018, arXiv:1803.03635). InputError for a density outside (0, 1], and counts below 1.

    >>> [iterative_schedule(step, start=10, every=20, rounds=2, density=0.25) for step in (9, 10, 29, 30, 70)]
    [1.0, 0.5, 0.5, 0.25, 0.25]
    """
    require_density(density)
    require_integer("every", every)
    require_integer("rounds", rounds)
    done = min(max((step - start) // every + 1, 0), rounds)
    return float(density ** (done / rounds))


def prune_while_training(
    model: Transformer, steps: Steps, schedule: Schedule, *, every: int = 10
) -> Iterator[tuple[int, float]]:
    """Train with the linear layers of the blocks pruned by magnitude, ever more of them as the schedule says.

    `steps` trains `model` in place. Masks are chosen again after each step whose number `every` divides, from what is
    left, and applied after every step, so that no optimizer brings a pruned weight back. Yields what `steps` yields.
    """
    require_integer("every", every)
    masks: dict[str, torch.Tensor] = {}
    for step, loss in steps:
        apply_masks(model, masks)
        if step % every == 0:
            density = schedule(step)
            masks = {name: magnitude_mask(layer.weight, density) for name, layer in linear_layers(model.blocks).items()}
            apply_masks(model, masks)
        yield step, loss


def train_with_masks(
    model: Transformer, steps: Steps, masks: Mapping[str, torch.Tensor]
) -> Iterator[tuple[int, float]]:
    """Train with fixed masks, by layer as in `masks_of`, applied after every step; yields what `steps` yields."""
    for step, loss in steps:
        apply_masks(model, masks)
        yield step, loss


def masks_of(model: Transformer) -> dict[str, torch.Tensor]:
    """Where the linear layers of the blocks are not 0: bool (O, I) by the layer's name in `model.blocks`."""
    return {name: layer.weight.detach() != 0 for name, layer in linear_layers(model.blocks).items()}


@torch.no_grad()
def apply_masks(model: Transformer, masks: Mapping[str, torch.Tensor]) -> None:
    """Set pruned weights to 0 in place; InputError for a mask of another shape."""
    layers = linear_layers(model.blocks)
    for name, mask in masks.items():
        layers[name].weight.copy_(apply_mask(layers[name].weight, mask))
