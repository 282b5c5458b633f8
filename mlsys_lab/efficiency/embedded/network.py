"""A network of int8 layers, as a microcontroller runs it, and the layout of its activations in memory.

Dimension letters: C channels, O output and I input channels, H height, W width, K size of a square kernel, B images.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mlsys_lab.errors import InputError

Shape = tuple[int, int, int]
"""Channels, height and width of a layer's input or output."""
LOWEST, HIGHEST = -128, 127
"""Codes of int8 activations."""


@dataclass(frozen=True, eq=False)
class Convolution:
    """An int8 convolution; a linear layer is one with K = 1 on an image of 1 × 1.

    With int32 accumulators: sum[o] = bias[o] + Σ (x - input_zero_point) · weights[o], and output code[o] =
    clip(round(sum[o] · multiplier[o] / 2**shift[o]) + output_zero_point, -128, 127), where a tie rounds up
    (arXiv:1712.05877, section 2.2, with a multiplier for each channel). ReLU is no operation of its own: the codes
    of its output start at 0, so that saturation removes what is below.
    """

    weights: NDArray[np.int8]  # (O, I, K, K)
    bias: NDArray[np.int32]  # (O,)
    multiplier: NDArray[np.int32]  # (O,), below 2**31
    shift: NDArray[np.uint8]  # (O,), 1 to 62
    input_zero_point: int
    output_zero_point: int
    stride: int
    padding: int
    input_shape: Shape
    output_shape: Shape

    @property
    def macs(self) -> int:
        """Multiply-adds for one image, those with padding included."""
        return self.weights.size * prod(self.output_shape[1:])

    @property
    def constant_bytes(self) -> int:
        return sum(array.nbytes for array in (self.weights, self.bias, self.multiplier, self.shift))


@dataclass(frozen=True)
class MaxPool:
    """The largest code of each K × K window; input and output have one scale and zero point."""

    kernel: int
    stride: int
    input_shape: Shape
    output_shape: Shape
    macs = constant_bytes = 0


@dataclass(frozen=True, eq=False)
class Network:
    """Layers in order; a real number is scale · (code - zero point)."""

    layers: tuple[Convolution | MaxPool, ...]
    input_scale: float
    input_zero_point: int
    output_scale: float
    output_zero_point: int

    @property
    def macs(self) -> int:
        """Multiply-adds for one image."""
        return sum(layer.macs for layer in self.layers)

    @property
    def constant_bytes(self) -> int:
        """Bytes of weights, biases, multipliers and shifts."""
        return sum(layer.constant_bytes for layer in self.layers)

    def encode(self, images: ArrayLike) -> NDArray[np.int8]:
        """Int8 codes (B, C, H, W) of images of real numbers, (B, C, H, W) or (B, C · H · W); out of range saturates.

        Raises InputError for images of another shape, or with NaN.
        """
        real = np.asarray(images, np.float64)
        shape = self.layers[0].input_shape
        if real.ndim < 2 or prod(real.shape[1:]) != prod(shape):
            expected = f"(images, {', '.join(map(str, shape))})"
            raise InputError("images do not fit the network", got=real.shape, expected=expected)
        if not np.isfinite(real).all():
            raise InputError("images have NaN or infinite numbers")
        codes = np.rint(real / self.input_scale) + self.input_zero_point
        return codes.clip(LOWEST, HIGHEST).astype(np.int8).reshape(-1, *shape)


class Arena(NamedTuple):
    """Where activations lie in one array of int8: the input's offset in bytes, then that of each layer's output."""

    size_bytes: int
    offsets: tuple[int, ...]


def plan_arena(network: Network) -> Arena:
    """Lay the activations out in as little memory as possible.

    A layer needs its input and its output at the same time, and nothing else, so no arena is smaller than the largest
    such pair. This one is just as large: activations lie by turns at its start and at its end. MCUNet's TinyEngine
    (arXiv:2007.10319) needs less: it computes some layers in place, so that a pair shares memory.
    """
    shapes = [network.layers[0].input_shape, *(layer.output_shape for layer in network.layers)]
    sizes = [prod(shape) for shape in shapes]
    size_bytes = max(first + second for first, second in pairwise(sizes))
    return Arena(size_bytes, tuple(i % 2 * (size_bytes - size) for i, size in enumerate(sizes)))
