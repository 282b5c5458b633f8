"""Turn a trained network into one of int8 layers, as runtimes for microcontrollers do.

Weights: int8 from -127 to 127 with a scale for each output channel. Activations: int8 with one scale and zero point for
each tensor, from its range on calibration images. Accumulators and biases: int32. All of it from Jacob et al.,
arXiv:1712.05877, but for the scales of channels (Krishnamoorthi, arXiv:1806.08342).

Dimension letters: O output and I input channels, K size of a kernel, B images.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mlsys_lab.efficiency.embedded.network import HIGHEST, LOWEST, Convolution, MaxPool, Network, Shape
from mlsys_lab.errors import InputError

BIAS_LIMIT, SUM_LIMIT = 2**30, 2**31 - 1
MULTIPLIER_BITS, MAX_SHIFT = 31, 62
Layer = nn.Conv2d | nn.Linear


class Range(NamedTuple):
    """How the codes of a tensor stand for real numbers: scale · (code - zero_point)."""

    scale: float
    zero_point: int


@torch.no_grad()
def quantize_network(model: nn.Sequential, calibration: torch.Tensor) -> Network:
    """Quantize Conv2d, Linear, ReLU, MaxPool2d and Flatten to int8, with ranges from calibration images (B, ...).

    ReLU becomes part of the layer before it. Kernels, strides and paddings are square.

    Raises InputError for no images, for other layers or another order of them, for NaN in weights or images, for
    activations that are all zero, and for sums that int32 cannot hold.
    """
    if not len(calibration):
        raise InputError("no calibration images")
    modules, layers, x = list(model), list[Convolution | MaxPool](), calibration
    network_input = current = _range_of(x, "the input")
    for index, module in enumerate(modules):
        name = f"layer {index} ({type(module).__name__})"
        before, following = _shape(x), modules[index + 1 : index + 2]
        match module:
            case nn.Conv2d() | nn.Linear():
                _check_layer(module, x, name)
                relu = bool(following) and isinstance(following[0], nn.ReLU)
                x = _apply(module, x, name)
                x = x.relu() if relu else x
                output = _range_of(x, name)
                layers.append(_quantize_layer(module, name, current, output, before, _shape(x)))
                current = output
            case nn.MaxPool2d():
                x = _apply(module, x, name)
                layers.append(_quantize_pool(module, name, before, _shape(x)))
            case nn.Flatten(start_dim=1, end_dim=-1):
                x = x.flatten(1)
            case nn.ReLU() if index and isinstance(modules[index - 1], Layer):
                pass  # part of the layer before it
            case _:
                raise InputError(
                    f"{name} has no int8 code here",
                    expected="Conv2d, Linear, each with ReLU or without, MaxPool2d, Flatten(1)",
                )
    if not layers:
        raise InputError("no layers to quantize")
    return Network(tuple(layers), *network_input, *current)


def _range_of(x: torch.Tensor, name: str) -> Range:
    """The scale and zero point with which int8 codes reach from the smallest to the largest number, and to 0."""
    if not bool(x.isfinite().all()):
        raise InputError(f"{name} has NaN or infinite activations")
    low, high = min(0.0, float(x.min())), max(0.0, float(x.max()))
    if low == high:
        raise InputError(f"{name} is zero for all calibration images", help="give images that the network will see")
    scale = (high - low) / (HIGHEST - LOWEST)
    return Range(scale, round(LOWEST - low / scale))


def _quantize_layer(
    module: Layer, name: str, before: Range, after: Range, input_shape: Shape, output_shape: Shape
) -> Convolution:
    weights = module.weight.detach().double().numpy()
    bias = np.zeros(len(weights)) if module.bias is None else module.bias.detach().double().numpy()
    weights = weights.reshape(*weights.shape, 1, 1) if weights.ndim == 2 else weights  # (O, I, K, K)
    scale = np.abs(weights).max(axis=(1, 2, 3)) / HIGHEST  # (O,)
    scale = np.maximum(scale, np.abs(bias) / (before.scale * BIAS_LIMIT))  # tiny weights may not overflow the bias
    scale = np.where(scale > 0, scale, 1.0)
    codes = np.rint(weights / scale[:, None, None, None]).astype(np.int8)
    bias_codes = np.rint(bias / (before.scale * scale)).astype(np.int64)
    largest = np.abs(bias_codes) + np.abs(codes.astype(np.int64)).sum(axis=(1, 2, 3)) * (HIGHEST - LOWEST)
    if largest.max() > SUM_LIMIT:
        raise InputError(f"{name} has sums that int32 cannot hold", got=largest.max(), expected=f"at most {SUM_LIMIT}")
    multiplier, shift = _fixed_point(before.scale * scale / after.scale)
    return Convolution(
        codes,
        bias_codes.astype(np.int32),
        multiplier,
        shift,
        input_zero_point=before.zero_point,
        output_zero_point=after.zero_point,
        stride=_square(module.stride) if isinstance(module, nn.Conv2d) else 1,
        padding=_square(module.padding) if isinstance(module, nn.Conv2d) else 0,
        input_shape=input_shape,
        output_shape=output_shape,
    )


def _fixed_point(factors: NDArray[np.float64]) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Multipliers, of 31 bits where the shift allows, and shifts: factor ≈ multiplier / 2**shift."""
    _, exponents = np.frexp(factors)
    shift = (MULTIPLIER_BITS - exponents).clip(1, MAX_SHIFT)
    multiplier = np.rint(np.ldexp(factors, shift)).clip(max=2.0**MULTIPLIER_BITS - 1)
    return multiplier.astype(np.int32), shift.astype(np.uint8)


def _quantize_pool(module: nn.MaxPool2d, name: str, input_shape: Shape, output_shape: Shape) -> MaxPool:
    if (_square(module.padding), _square(module.dilation), module.ceil_mode) != (0, 1, False):
        raise InputError(f"{name} has no int8 code here", expected="no padding, no dilation, no ceil_mode")
    return MaxPool(_square(module.kernel_size), _square(module.stride), input_shape, output_shape)


def _apply(module: nn.Module, x: torch.Tensor, name: str) -> torch.Tensor:
    try:
        return module(x)  # type: ignore[no-any-return]
    except RuntimeError as error:
        raise InputError(f"{name} does not fit its input {tuple(x.shape)}", got=str(error).splitlines()[0]) from None


def _check_layer(module: Layer, x: torch.Tensor, name: str) -> None:
    if not all(bool(parameter.isfinite().all()) for parameter in module.parameters()):
        raise InputError(f"{name} has NaN or infinite weights")
    if isinstance(module, nn.Linear):
        if x.ndim != 2:
            raise InputError(f"{name} needs vectors", got=tuple(x.shape), help="put Flatten() before it")
        return
    _square(module.kernel_size)
    if module.groups != 1 or _square(module.dilation) != 1 or module.padding_mode != "zeros":
        raise InputError(f"{name} has no int8 code here", expected="one group, no dilation, padding with zeros")


def _shape(x: torch.Tensor) -> Shape:
    """Channels, height and width of activations (B, C, H, W) or (B, C)."""
    if x.ndim not in (2, 4):
        raise InputError("activations of another shape", got=tuple(x.shape), expected="(B, C, H, W) or (B, C)")
    channels, height, width = (*x.shape[1:], 1, 1)[:3]
    return channels, height, width


def _square(value: object) -> int:
    """The one number of a size of torch: 3 or (3, 3)."""
    sizes = set(value) if isinstance(value, tuple) else {value}
    if len(sizes) != 1 or not isinstance(size := sizes.pop(), int):
        raise InputError("a kernel, stride or padding that is not square", got=value)
    return size
