"""FLOPs and bytes of a product with quantized weights: the minimum, and what the Triton kernels request."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_at_least_one, require_non_negative


@dataclass(frozen=True)
class Weights:
    """A matrix of `bits`-bit weights, with a scale for each output, or for each `group` of an output's inputs.

    Scales take `scale_itemsize` bytes; a zero point, if there is one for each scale, takes a byte.
    """

    outputs: int
    inputs: int
    bits: int
    group: int | None = None
    scale_itemsize: int = 2
    has_zero_points: bool = False

    def __post_init__(self) -> None:
        require_non_negative(outputs=self.outputs, inputs=self.inputs)
        require_at_least_one(bits=self.bits, scale_itemsize=self.scale_itemsize)
        if self.group is not None and (self.group < 1 or self.inputs % self.group):
            got = f"groups of {self.group}, {self.inputs} inputs"
            raise InputError("groups do not divide the inputs", got=got, expected="a divisor of the inputs")

    @property
    def code_bytes(self) -> int:
        """Bytes of the codes."""
        return self.outputs * self.inputs * self.bits // 8

    def scale_bytes(self, scales_per_output: int) -> int:
        """Bytes of scales and zero points, if those of an output are moved so often."""
        return self.outputs * scales_per_output * (self.scale_itemsize + self.has_zero_points)

    @property
    def size_bytes(self) -> int:
        """Bytes of codes, scales and zero points.

        >>> Weights(4096, 4096, 4, group=32, has_zero_points=True).size_bytes * 8 / 4096**2
        4.75
        """
        return self.code_bytes + self.scale_bytes(1 if self.group is None else self.inputs // self.group)


def forward(rows: int, weights: Weights, itemsize: int = 2) -> tuple[int, int]:
    """FLOPs of x·Wᵀ (2 for each row and weight, none for dequantizing) and minimum bytes: all three matrices once.

    >>> forward(1, Weights(4096, 4096, 8))
    (33554432, 16801792)
    """
    require_non_negative(rows=rows)
    require_at_least_one(itemsize=itemsize)
    ends = rows * (weights.inputs + weights.outputs) * itemsize
    return 2 * rows * weights.outputs * weights.inputs, weights.size_bytes + ends


def tiled_bytes(rows: int, weights: Weights, *, block_m: int, block_n: int, block_k: int, itemsize: int = 2) -> int:
    """Bytes that the Triton kernels request, with tiles of `block_m` rows, `block_n` outputs and `block_k` inputs.

    Each row of tiles loads all codes, each column of tiles all of x. Scales of groups are loaded at each step of
    `block_k` inputs, those of outputs once in a tile.
    """
    forward(rows, weights, itemsize)
    require_at_least_one(block_m=block_m, block_n=block_n, block_k=block_k)
    steps = 1 if weights.group is None else math.ceil(weights.inputs / block_k)
    loaded = (weights.code_bytes + weights.scale_bytes(steps)) * math.ceil(rows / block_m)
    inputs = rows * weights.inputs * itemsize * math.ceil(weights.outputs / block_n)
    return loaded + inputs + rows * weights.outputs * itemsize
