"""Activation checkpointing (2016): memory that grows with √n, for one more forward pass, by the learner's engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from mlsys_lab.benchmark.memory import track_memory
from mlsys_lab.capstone.milestones.milestone import Figure, Milestone
from mlsys_lab.capstone.stack import Stack

DEPTHS = (16, 64, 256)
ELEMENTS = 4096


def peak_activations(engine: Any, n: int, segments: int | None) -> tuple[float, float, torch.Tensor]:
    """Run n layers tanh(h) forward and backward, checkpointed in segments unless None.

    Returns the peak memory in activations, the number of times that a layer ran, and the input's gradient (ELEMENTS,).
    """
    calls = 0

    def layer(h: Any) -> Any:
        nonlocal calls
        calls += 1
        return h.tanh()

    x = engine.Tensor(torch.linspace(-1, 1, ELEMENTS), requires_grad=True)
    with track_memory() as memory:
        y = x
        if segments is None:
            for _ in range(n):
                y = layer(y)
        else:
            y = engine.checkpoint_sequential([layer] * n, x, segments)
        y.sum().backward()
    return memory.peak_bytes / x.data.nbytes, calls / n, x.grad


def _figures(stack: Stack) -> Iterator[Figure]:
    peaks = []
    for n in DEPTHS:
        plain_peak, _, expected = peak_activations(stack.engine, n, None)
        peak, runs, gradient = peak_activations(stack.engine, n, math.isqrt(n))
        peaks.append((plain_peak, peak))
        wrong = float((gradient - expected).abs().max())
        yield Figure(f"{n} layers: forward passes", 2, runs, 0, "a count; the last segment need not run again", "<")
        yield Figure.check(f"{n} layers: largest change of a gradient", 0, wrong, "the same operations again")
    (plain_few, few), *_, (plain_many, many) = peaks
    layers, roots = DEPTHS[-1] - DEPTHS[0], math.sqrt(DEPTHS[-1]) - math.sqrt(DEPTHS[0])
    held = "a few gradients in flight, at every depth"
    yield Figure("activations held / n, without checkpoints", 1, (plain_many - plain_few) / layers, 0.1, held)
    yield Figure("activations held / √n, with checkpoints", 2, (many - few) / roots, 0.1, held)


CHECKPOINTING = Milestone(
    "checkpointing",
    2016,
    "Memory 2√n instead of n for n layers in √n segments, with one extra forward pass",
    "Chen, Xu, Zhang & Guestrin, arXiv:1604.06174, abstract and section 4.1 (n/k + k for k segments)",
    {"engine": ("Tensor", "checkpoint_sequential")},
    "The experiment on bytes and passes, with elementwise layers so that nothing but activations takes memory; slopes "
    "between 16 and 256 layers. The 1,000-layer ResNet (48 GB to 7 GB, 30 % more time) is not reproduced.",
    _figures,
)
