"""Optimizers: a step changes the data of parameters in place, outside the tape.

Call backward() before step(): a graph recorded before the step saved the old parameters, and its backward pass raises
InputError when it finds them changed in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from mlsys_lab.autograd.tensor import Tensor
from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_non_negative


class Optimizer:
    """Base class of optimizers: holds the parameters to update and clears their gradients."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        if isinstance(parameters, Tensor):
            raise InputError("an optimizer takes a list of parameters", got="a single tensor", expected="[tensor]")
        self.parameters = list(parameters)
        if not self.parameters:
            raise InputError("an optimizer needs at least one parameter")
        for one in self.parameters:
            kind = type(one)
            got = f"{kind.__module__}.{kind.__name__}" if not isinstance(one, Tensor) else one.node and one.node.op
            if got:
                raise InputError("an optimizer changes leaves", got=got, expected="Tensors that no operation has made")
        if len({id(parameter) for parameter in self.parameters}) < len(self.parameters):
            raise InputError("a parameter comes twice", help="Module.parameters() lists each once")
        self.lr = lr
        require_non_negative(lr=lr)

    def zero_grad(self) -> None:
        """Set `grad` of every parameter to None, which frees its memory until the next backward pass."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        """Update every parameter that has a gradient, in place; every subclass defines it."""
        raise NotImplementedError


class SGD(Optimizer):
    """Stochastic gradient descent: v ← momentum·v + g, p ← p - lr·v, with g = ∇ + weight_decay·p.

    The form of Sutskever et al. 2013 without the lr inside v, as torch.optim.SGD has it.
    """

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, lr)
        require_non_negative(momentum=momentum, weight_decay=weight_decay)
        self.momentum, self.weight_decay = momentum, weight_decay
        self.velocity: list[torch.Tensor | None] = [None] * len(self.parameters)

    def step(self) -> None:
        """Update every parameter from its gradient, in place; a parameter without one stays as it is."""
        for i, parameter in enumerate(self.parameters):
            g = parameter.grad
            if g is None:
                continue
            if self.weight_decay:
                g = g + self.weight_decay * parameter.data
            if self.momentum:
                v = self.velocity[i]
                self.velocity[i] = g = g.clone() if v is None else v.mul_(self.momentum).add_(g)
            parameter.data.sub_(g, alpha=self.lr)


class Adam(Optimizer):
    """Adam with L2 regularisation (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1), as torch.optim.Adam has it.

    g = ∇ + weight_decay·p, m ← β₁m + (1-β₁)g, v ← β₂v + (1-β₂)g², p ← p - lr·m̂ / (√v̂ + eps), with m̂ = m/(1-β₁ᵗ) and
    v̂ = v/(1-β₂ᵗ). State: two arrays a parameter.
    """

    decoupled = False

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr)
        if not all(0 <= beta < 1 for beta in betas):
            raise InputError("betas out of range", got=betas, expected="0 <= beta < 1")
        require_non_negative(eps=eps, weight_decay=weight_decay)
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.moments: list[tuple[int, torch.Tensor, torch.Tensor] | None] = [None] * len(self.parameters)

    def step(self) -> None:
        """Update every parameter from its gradient, in place; one without a gradient stays as it is, decay included."""
        beta1, beta2 = self.betas
        for i, parameter in enumerate(self.parameters):
            g = parameter.grad
            if g is None:
                continue
            if self.decoupled:
                parameter.data.mul_(1 - self.lr * self.weight_decay)
            elif self.weight_decay:
                g = g + self.weight_decay * parameter.data
            t, m, v = self.moments[i] or (0, torch.zeros_like(g), torch.zeros_like(g))
            t += 1
            m.mul_(beta1).add_(g, alpha=1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            self.moments[i] = (t, m, v)
            root = (v.sqrt() / math.sqrt(1 - beta2**t)).add_(self.eps)
            parameter.data.addcdiv_(m, root, value=-self.lr / (1 - beta1**t))


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2).

    As `Adam` with g = ∇, and p ← p·(1 - lr·weight_decay) in place of the term in the gradient, so that all weights
    decay at one rate however large their gradients are.
    """

    decoupled = True

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(parameters, lr, betas, eps, weight_decay)
