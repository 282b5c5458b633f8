"""Count numbers that a cast to 8 bits loses: those that become zero, and those that saturate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn

from mlsys_lab.efficiency.fp8.scaling import Operand, ScaledTensor, Scaling
from mlsys_lab.flops.number_formats import FloatFormat


class Lost(NamedTuple):
    """How many numbers of a tensor were not zero, and of those became zero, or lay beyond the largest number."""

    nonzero: int = 0
    underflowed: int = 0
    saturated: int = 0

    @property
    def underflow(self) -> float:
        """Fraction of the nonzero numbers that became zero."""
        return self.underflowed / max(1, self.nonzero)

    @property
    def saturation(self) -> float:
        """Fraction of the nonzero numbers that saturated."""
        return self.saturated / max(1, self.nonzero)


def count(x: torch.Tensor, cast: ScaledTensor, format: FloatFormat) -> Lost:
    """Compare a matrix (R, C) with its cast."""
    nonzero = x != 0
    underflowed = nonzero & (cast.codes.float() == 0)
    beyond = x.abs() > cast._replace(codes=torch.full_like(cast.codes, format.largest)).dequantize()
    return Lost(int(nonzero.sum()), int(underflowed.sum()), int(beyond.sum()))


@contextmanager
def count_lost(model: nn.Module) -> Iterator[dict[str, Lost]]:
    """Sum what all casts of a converted model lose within this block, by name: "blocks.0.mlp.up.gradient_scaling"."""
    lost: dict[str, Lost] = {}

    def add(name: str, scaling: Scaling, x: torch.Tensor, operand: Operand) -> None:
        found = count(x.detach(), operand.along_rows, scaling.format)
        lost[name] = Lost(*map(sum, zip(lost.get(name, Lost()), found, strict=True)))

    hooks = [
        module.register_forward_hook(lambda scaling, x, operand, name=name: add(name, scaling, x[0], operand))
        for name, module in model.named_modules()
        if isinstance(module, Scaling)
    ]
    try:
        yield lost
    finally:
        for hook in hooks:
            hook.remove()
