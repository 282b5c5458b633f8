"""What the C program computes, in integers of NumPy.

Dimension letters: B images, C channels, H height, W width, K size of a kernel, O output channels.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from mlsys_lab.efficiency.embedded.network import HIGHEST, LOWEST, Convolution, MaxPool, Network
from mlsys_lab.errors import InputError


def simulate(network: Network, images: NDArray[np.int8]) -> NDArray[np.int8]:
    """Logits (B, classes) as int8 codes, of images (B, C, H, W) as int8 codes.

    Raises InputError for images of another shape or type.
    """
    shape = network.layers[0].input_shape
    if images.dtype != np.int8 or images.shape[1:] != shape:
        got = f"{images.dtype} {images.shape}"
        raise InputError("images do not fit the network", got=got, expected=f"int8 (images, *{shape})", help="encode")
    x = images
    for layer in network.layers:
        x = x.reshape(-1, *layer.input_shape)  # a linear layer takes what Flatten makes of its input
        x = _pool(layer, x) if isinstance(layer, MaxPool) else _convolve(layer, x)  # (B, C, H, W)
    return x.reshape(len(x), -1)


def requantize(
    sums: NDArray[np.int64], multiplier: NDArray[np.int32], shift: NDArray[np.uint8], zero_point: int
) -> NDArray[np.int8]:
    """Output codes of accumulators: sums · multiplier / 2**shift, rounded, a tie up, plus the zero point.

    One rounding of the 64-bit product; the paper's appendix B rounds twice, once after the multiplication.
    """
    shifts = shift.astype(np.int64)
    codes = ((sums * multiplier.astype(np.int64) + (1 << (shifts - 1))) >> shifts) + zero_point
    return codes.clip(LOWEST, HIGHEST).astype(np.int8)


def _convolve(layer: Convolution, x: NDArray[np.int8]) -> NDArray[np.int8]:
    padding = layer.padding
    centred = x.astype(np.int64) - layer.input_zero_point
    padded = np.pad(centred, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    kernel = layer.weights.shape[2:]
    windows = sliding_window_view(padded, kernel, axis=(2, 3))[:, :, :: layer.stride, :: layer.stride]
    sums = np.tensordot(windows, layer.weights.astype(np.int64), ([1, 4, 5], [1, 2, 3]))  # (B, H, W, O)
    codes = requantize(sums + layer.bias, layer.multiplier, layer.shift, layer.output_zero_point)
    return codes.transpose(0, 3, 1, 2)


def _pool(layer: MaxPool, x: NDArray[np.int8]) -> NDArray[np.int8]:
    windows = sliding_window_view(x, (layer.kernel, layer.kernel), axis=(2, 3))
    largest: NDArray[np.int8] = windows[:, :, :: layer.stride, :: layer.stride].max(axis=(4, 5))
    return largest
