"""Neural-network modules on `Tensor`. Parameters have the names and shapes that torch.nn gives them.

Here are the layers of transformers and of multilayer perceptrons; convolutions and batch normalisation, whose running
statistics are state next to the parameters, are left out.

Dimension letters: ... any leading axes, I inputs, O outputs, V rows of a table, C channels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, overload

import torch

from mlsys_lab.autograd import functional
from mlsys_lab.autograd.base import as_torch
from mlsys_lab.autograd.tensor import Tensor
from mlsys_lab.errors import InputError


class Parameter(Tensor):
    """A Tensor that needs a gradient and that a `Module` lists among its parameters."""

    __slots__ = ()

    def __init__(self, data: Any) -> None:
        super().__init__(data, requires_grad=True)


class Module:
    """Base class of layers and models: finds the parameters in its attributes, and in lists and dictionaries there.

    A subclass defines `forward`; calling the module calls it.
    """

    training: bool = True

    def forward(self, *inputs: Any) -> Tensor:
        """Compute the module's output from its inputs; every subclass defines it."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def __call__(self, *inputs: Any) -> Tensor:
        """Call `forward` with the inputs."""
        return self.forward(*inputs)

    def _members(self) -> Iterator[tuple[str, Parameter | Module]]:
        return _find_members(vars(self))

    def modules(self) -> Iterator[Module]:
        """Yield this module and every module inside it, at any depth."""
        yield self
        for _, member in self._members():
            if isinstance(member, Module):
                yield from member.modules()

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Yield (dotted name, parameter) pairs; a parameter that two modules use comes under both names."""
        for name, member in self._members():
            if isinstance(member, Module):
                yield from member.named_parameters(f"{prefix}{name}.")
            else:
                yield prefix + name, member

    def parameters(self) -> list[Parameter]:
        """Every parameter of this module and the modules inside it, each once."""
        return list({id(parameter): parameter for _, parameter in self.named_parameters()}.values())

    def zero_grad(self) -> None:
        """Set `grad` of every parameter to None."""
        for parameter in self.parameters():
            parameter.grad = None

    def train(self, mode: bool = True) -> Module:
        """Set training mode (or evaluation mode, with False) here and in all modules inside; returns this module."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Set evaluation mode, in which dropout does nothing, here and in all modules inside; returns this module."""
        return self.train(False)

    def to(self, target: torch.dtype | torch.device | str) -> Module:
        """Convert all parameters in place to a dtype, or move them to a device; their gradients are dropped."""
        for parameter in self.parameters():
            parameter.data, parameter.grad = parameter.data.to(target), None
        return self

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copies of all parameters' arrays, by dotted name."""
        return {name: parameter.data.clone() for name, parameter in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy arrays into parameters by name; InputError, with nothing changed, if a name or shape does not match.

        The arrays may be torch's, as those of a torch.nn.Module's `state_dict()`, Tensors or numpy's.
        """
        own = dict(self.named_parameters())
        if not isinstance(state, Mapping):
            raise InputError(
                "a state is arrays by name", got=type(state).__name__, expected="what state_dict() returns"
            )
        missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        if missing or unknown:
            raise InputError(
                "state does not name this module's parameters",
                got=f"unknown: {', '.join(unknown) or 'none'}; missing: {', '.join(missing) or 'none'}",
                expected=f"exactly the {len(own)} names of state_dict()",
            )
        arrays = {name: as_torch(x.detach() if isinstance(x, torch.Tensor) else x) for name, x in state.items()}
        for name, parameter in own.items():
            if arrays[name].shape != parameter.shape:
                raise InputError(
                    f"state has another shape for {name}",
                    got=tuple(arrays[name].shape),
                    expected=tuple(parameter.shape),
                )
        for name, parameter in own.items():
            parameter.data.copy_(arrays[name])


def _find_members(held: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Parameter | Module]]:
    """Yield the parameters and modules among named values, by the names that torch's ModuleList and ModuleDict give."""
    for name, value in held.items():
        if isinstance(value, (Parameter, Module)):
            yield f"{prefix}{name}", value
        elif isinstance(value, (list, tuple)):
            yield from _find_members(dict(enumerate(value)), f"{prefix}{name}.")
        elif isinstance(value, dict):
            yield from _find_members(value, f"{prefix}{name}.")


class Linear(Module):
    """Affine map x @ weightᵀ + bias: (..., I) -> (..., O). Both start uniform in ±1/√I, as in torch.nn.Linear."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        bound = 1 / math.sqrt(max(inputs, 1))
        self.weight = Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))  # (O, I)
        self.bias = Parameter(torch.empty(outputs).uniform_(-bound, bound)) if bias else None  # (O,)

    def forward(self, x: Tensor) -> Tensor:
        """Return x @ weightᵀ + bias: (..., I) -> (..., O)."""
        return functional.linear(x, self.weight, self.bias)


class Embedding(Module):
    """Look-up table of learned vectors: ints (...) -> (..., C). Starts as N(0, 1)."""

    def __init__(self, rows: int, channels: int) -> None:
        self.weight = Parameter(torch.randn(rows, channels))  # (V, C)

    def forward(self, indices: Any) -> Tensor:
        """Look up one row of the table for each index: ints (...) in [0, V) -> (..., C)."""
        return functional.embedding(self.weight, indices)


class LayerNorm(Module):
    """Layer normalisation over the last axis, (..., C) -> (..., C); weight starts as 1 and bias as 0."""

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        self.weight, self.bias = Parameter(torch.ones(channels)), Parameter(torch.zeros(channels))  # (C,)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis to mean 0 and variance 1, then scale and shift it: (..., C) -> (..., C)."""
        return functional.layer_norm(x, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """Root-mean-square normalisation over the last axis, (..., C) -> (..., C); weight starts as 1."""

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        self.weight = Parameter(torch.ones(channels))  # (C,)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Divide each vector along the last axis by its root mean square, then scale it: (..., C) -> (..., C)."""
        return functional.rms_norm(x, self.weight, self.eps)


class Dropout(Module):
    """Zero elements at random in training mode; the identity in evaluation mode."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """In training mode zero each element with probability p and divide the rest by 1 - p; x of any shape."""
        return functional.dropout(x, self.p, self.training)


class Sequential(Module):
    """Apply modules, or functions of one Tensor, one after the other."""

    def __init__(self, *layers: Callable[[Tensor], Tensor]) -> None:
        self.layers = list(layers)

    def _members(self) -> Iterator[tuple[str, Parameter | Module]]:
        return ((str(i), layer) for i, layer in enumerate(self.layers) if isinstance(layer, (Parameter, Module)))

    def __len__(self) -> int:
        return len(self.layers)

    @overload
    def __getitem__(self, index: int) -> Callable[[Tensor], Tensor]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequential: ...

    def __getitem__(self, index: int | slice) -> Callable[[Tensor], Tensor]:
        return Sequential(*self.layers[index]) if isinstance(index, slice) else self.layers[index]

    def forward(self, x: Tensor) -> Tensor:
        """Pass x through all layers in order and return the last layer's result."""
        for layer in self.layers:
            x = layer(x)
        return x


class MLP(Sequential):
    """Linear layers with relu between them: MLP(64, 128, 10) maps (..., 64) -> (..., 128) -> (..., 10)."""

    def __init__(self, *sizes: int) -> None:
        if len(sizes) < 2:
            raise InputError("an MLP needs sizes of input and output", got=sizes, expected="two numbers or more")
        layers: list[Callable[[Tensor], Tensor]] = []
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [Linear(inputs, outputs), functional.relu]
        super().__init__(*layers[:-1])
