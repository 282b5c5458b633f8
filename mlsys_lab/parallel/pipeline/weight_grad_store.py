"""Split backward pass of zero-bubble schedules: input gradients now, weight gradients later (arXiv:2401.10241)."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class WeightGradStore(TorchFunctionMode):
    """Context in which linear layers defer their weight gradients until `backward()` is called on this object.

    The ordinary backward pass computes everything else: gradients of inputs, and of norms and embeddings, which are
    cheap. Each linear layer's input and output gradient are stored in between. Hooks of parameters run as in autograd.
    Left out: activation checkpointing, whose recomputation runs outside the context (torch raises CheckpointError).

    >>> layer = torch.nn.Linear(3, 2)
    >>> with WeightGradStore() as store:
    ...     total = layer(torch.ones(4, 3)).sum()
    >>> total.backward()
    >>> layer.weight.grad is None
    True
    >>> store.backward()
    >>> layer.weight.grad
    tensor([[4., 4., 4.],
            [4., 4., 4.]])
    """

    def __init__(self) -> None:
        super().__init__()
        self._deferred: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a torch function, replacing `linear` by one whose backward pass stores instead of computing."""
        return (self._linear if func is F.linear else func)(*args, **(kwargs or {}))

    def _linear(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        # Autograd must not see the weights, because it runs a parameter's hooks even without a gradient. The input
        # therefore has to require a gradient, even where nothing needs it.
        x = input if input.requires_grad else input.detach().requires_grad_()
        out: torch.Tensor = _DeferredWgradLinear.apply(self._deferred, x, (weight, bias), x is input)  # type: ignore[no-untyped-call]
        return out

    def backward(self) -> None:
        """Compute the deferred weight gradients, add them to `grad`, and free what was stored for them."""
        for x, gradient, weight, bias in self._deferred:
            rows, d_rows = x.reshape(-1, x.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
            if weight.requires_grad:
                torch.autograd.backward(weight.view_as(weight), d_rows.T @ rows)
            if bias is not None and bias.requires_grad:
                torch.autograd.backward(bias.view_as(bias), d_rows.sum(0))
        self._deferred.clear()


class _DeferredWgradLinear(torch.autograd.Function):
    """Linear layer (..., I) -> (..., O) whose backward pass returns the input gradient and stores the rest."""

    @staticmethod
    def forward(
        ctx: Any, deferred: list[Any], x: torch.Tensor, parameters: tuple[torch.Tensor, ...], needs_input_grad: bool
    ) -> torch.Tensor:
        ctx.deferred, ctx.parameters, ctx.needs_x = deferred, parameters, needs_input_grad
        ctx.save_for_backward(x)
        return F.linear(x, *parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, torch.Tensor | None, None, None]:
        (x,), (weight, bias), (gradient,) = ctx.saved_tensors, ctx.parameters, gradients
        ctx.deferred.append((x.detach(), gradient, weight, bias))
        return None, gradient @ weight if ctx.needs_x else None, None, None
