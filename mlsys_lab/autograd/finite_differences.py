"""Gradients by central finite differences: an independent check of `backward`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mlsys_lab.autograd.graph import no_grad
from mlsys_lab.autograd.tensor import Tensor
from mlsys_lab.errors import InputError


def gradcheck(function: Callable[..., Tensor], *inputs: Tensor, step: float = 1e-6) -> float:
    """Largest difference between the gradients by `backward` and by (f(x + h) - f(x - h)) / 2h, over all elements.

    A result of many elements is reduced to Σ f·c with fixed random c, so that every element has a weight of its own.
    Differences are relative to the gradient where it is above 1. In float64 and away from kinks a correct
    gradient is within about 1e-8 (truncation h² and rounding 1e-16/h); a wrong one is off by its own size. Inputs are
    not changed. Costs two calls per element. Raises InputError unless the inputs are float64.

    >>> gradcheck(lambda x: x * x * x, Tensor([1.0, -2.0], requires_grad=True, dtype=torch.float64)) < 1e-7
    True
    """
    for tensor in inputs:
        if tensor.requires_grad and tensor.dtype != torch.float64:
            raise InputError("finite differences need float64", got=tensor.dtype, help="tensor.to(torch.float64)")
    copies = [
        Tensor(tensor.data.clone(memory_format=torch.contiguous_format), tensor.requires_grad) for tensor in inputs
    ]
    out = function(*copies)
    generator = torch.Generator().manual_seed(0)
    cotangent = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.device)
    out.backward(cotangent)

    def weighted_sum() -> float:
        with no_grad():
            return float((function(*copies).data * cotangent).sum())

    worst = 0.0
    for copy in copies:
        if not copy.requires_grad:
            continue
        grad = torch.zeros_like(copy.data) if copy.grad is None else copy.grad
        elements = copy.data.view(-1)
        for i, analytic in enumerate(grad.reshape(-1).tolist()):
            x = elements[i].item()
            elements[i] = x + step
            above = weighted_sum()
            elements[i] = x - step
            below = weighted_sum()
            elements[i] = x
            numeric = (above - below) / (2 * step)
            worst = max(worst, abs(analytic - numeric) / max(1.0, abs(numeric)))
    return worst
