"""A backward pass in two parts: gradients of what went in, and later those of weights (arXiv:2401.10241, §2.1)."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class WeightGradStore(TorchFunctionMode):
    """Within the block, linear layers put the gradients of their weights off until `backward()` of this object.

    The backward pass before it works out all others: of inputs, and of norms and embeddings, which are cheap. Of every
    linear layer its input and its result's gradient are kept in between. Hooks of parameters are called as by autograd.

    >>> layer = torch.nn.Linear(3, 2)
    >>> with WeightGradStore() as late:
    ...     total = layer(torch.ones(4, 3)).sum()
    >>> total.backward()
    >>> layer.weight.grad is None
    True
    >>> late.backward()
    >>> layer.weight.grad
    tensor([[4., 4., 4.],
            [4., 4., 4.]])
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, or in place of `linear` one whose backward pass leaves weights out."""
        return (self._linear if func is F.linear else func)(*args, **(kwargs or {}))

    def _linear(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        # Autograd must not see the weights: it calls a parameter's hooks even for a gradient that is not there. So what
        # goes in has to ask for the backward pass, also where it needs no gradient itself.
        x = input if input.requires_grad else input.detach().requires_grad_()
        result: torch.Tensor = _LateLinear.apply(self._waiting, x, (weight, bias), x is input)  # type: ignore[no-untyped-call]
        return result

    def backward(self) -> None:
        """Add the gradients that were put off to those of the weights, and let go of what was kept for them."""
        for x, gradient, weight, bias in self._waiting:
            rows, changes = x.reshape(-1, x.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
            if weight.requires_grad:
                torch.autograd.backward(weight.view_as(weight), changes.T @ rows)
            if bias is not None and bias.requires_grad:
                torch.autograd.backward(bias.view_as(bias), changes.sum(0))
        self._waiting.clear()


class _LateLinear(torch.autograd.Function):
    """A linear layer (..., I) -> (..., O); backward it notes what its weights' gradients will be made of."""

    @staticmethod
    def forward(
        ctx: Any, waiting: list[Any], x: torch.Tensor, parameters: tuple[torch.Tensor, ...], needs_input: bool
    ) -> torch.Tensor:
        ctx.waiting, ctx.parameters, ctx.needs_input = waiting, parameters, needs_input
        ctx.save_for_backward(x)
        return F.linear(x, *parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, torch.Tensor | None, None, None]:
        (x,), (weight, bias), (gradient,) = ctx.saved_tensors, ctx.parameters, gradients
        ctx.waiting.append((x.detach(), gradient, weight, bias))
        return None, gradient @ weight if ctx.needs_input else None, None, None
