"""Products with quantized weights, y = x·Wᵀ, in which the weights are dequantized on their way: for inference.

    reference  torch: all weights dequantized, then one product
    tiled      Triton: a program dequantizes tiles of weights in registers
    compiled   Numba on a CPU: integer products of a few rows with the codes, fp32 activations

Two layouts. int8: codes (O, I) and a scale for each output (O,). int4: two codes in a byte, uint8 (O, I/2), that of the
first input in the lower half; a scale for each output and group of I/G inputs, (O, G), and a zero point in uint8, or
signed codes in two's complement. Products are summed in float32. "tiled" and "reference" round the dequantized weights
to the dtype of x; "compiled" rounds activations to 16-bit integers instead, as its module says.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import tiles
from mlsys_lab.kernels.arguments import check_contiguous, check_rank, check_shape, check_step, check_tensors
from mlsys_lab.kernels.row_blocks import next_power_of_2
from mlsys_lab.kernels.triton_launch import launch

STEPS = {
    "reference": "torch: all weights dequantized, one product",
    "tiled": "Triton: tiles of weights dequantized in registers",
    "compiled": "Numba on a CPU: integer products, weights read as they are stored",
}
SCALE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

MIN_ROWS, MAX_ROWS, BLOCK_N, MAX_BLOCK_K = 16, 64, 64, 64
"""Rows of x in a tile, by their number; outputs of a tile; inputs of a step of the loop."""
NUM_STAGES = 4
"""Tiles in flight at once."""


def int8_matmul(x: Tensor, codes: Tensor, scale: Tensor, *, step: str = "tiled", precision: str = "ieee") -> Tensor:
    """x·Wᵀ with W = codes · scale: x (M, I), int8 codes (O, I), scale (O,) -> (M, O), in the dtype of x.

    Raises InputError for tensors that do not match each other or the step, and for an unknown step or precision.
    """
    _check_activations(x, step, precision)
    _check_like(x, (torch.int8,), codes=codes)
    check_rank(2, codes=codes)
    _check_like(x, SCALE_DTYPES, scale=scale)
    (M, I), O = x.shape, len(codes)
    check_shape((O, I), codes=codes)
    check_shape((O,), scale=scale)
    if step == "reference":
        return x @ (codes.to(_wide(x)) * scale.to(_wide(x))[:, None]).to(x.dtype).T
    if step == "compiled":
        from mlsys_lab.kernels.quantized_matmul.compiled import multiply_int8

        return multiply_int8(x, codes, scale)
    y = x.new_empty(M, O)
    if not y.numel():
        return y
    from mlsys_lab.kernels.quantized_matmul.triton_kernels import int8_kernel

    sizes = tile_sizes(x, MAX_BLOCK_K)
    launch(
        int8_kernel, _grid(y, sizes), x.device, x, codes, scale, y, M, O, I, x.stride(0), outputs=("y_ptr",),
        PRECISION=precision, num_warps=4, num_stages=NUM_STAGES, **sizes,
    )  # fmt: skip
    return y


def int4_matmul(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    step: str = "tiled",
    precision: str = "ieee",
) -> Tensor:
    """x·Wᵀ with W = (codes - zero_point) · scale: x (M, I), packed (O, I/2), scale and zero_point (O, G) -> (M, O).

    Without a zero point, codes are signed. "tiled" takes groups of a multiple of 16 inputs. Raises InputError for
    tensors that do not match each other or the step, groups that do not divide the inputs, and an unknown step or
    precision.
    """
    _check_activations(x, step, precision)
    _check_like(x, (torch.uint8,), packed=packed)
    check_rank(2, packed=packed)
    (M, I), O = x.shape, len(packed)
    check_shape((O, I // 2), packed=packed)
    _check_like(x, SCALE_DTYPES, scale=scale)
    check_rank(2, scale=scale)
    G = scale.shape[1]
    check_shape((O, G), scale=scale)
    if zero_point is not None:
        _check_like(x, (torch.uint8,), zero_point=zero_point)
        check_shape((O, G), zero_point=zero_point)
    if I % 2 or (I % G if G else I):
        raise InputError("groups do not divide the inputs", got=f"{G} groups, {I} inputs", expected="an even multiple")
    if step == "reference":
        return x @ dequantize_int4(packed, scale.to(_wide(x)), zero_point).to(x.dtype).T
    if step == "compiled":
        from mlsys_lab.kernels.quantized_matmul.compiled import multiply_int4

        return multiply_int4(x, packed, scale, zero_point)
    y = x.new_empty(M, O)
    if not y.numel():
        return y
    group = I // G if G else MIN_ROWS
    block_k = group & -group  # the largest power of two that divides it
    if block_k < MIN_ROWS:
        raise InputError("inputs of a group", got=group, expected="a multiple of 16", help='step="reference"')
    from mlsys_lab.kernels.quantized_matmul.triton_kernels import int4_kernel

    sizes = tile_sizes(x, min(MAX_BLOCK_K, block_k))
    launch(
        int4_kernel, _grid(y, sizes), x.device, x, packed, scale, zero_point, y, M, O, I, x.stride(0),
        outputs=("y_ptr",), GROUP=group, SIGNED=zero_point is None, PRECISION=precision, num_warps=4,
        num_stages=NUM_STAGES, **sizes,
    )  # fmt: skip
    return y


def dequantize_int4(packed: Tensor, scale: Tensor, zero_point: Tensor | None = None) -> Tensor:
    """Weights (O, I) of packed (O, I/2), scale and zero_point (O, G), in the dtype of `scale`."""
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1).view(torch.int8)  # (O, I)
    codes = (codes ^ 8) - 8 if zero_point is None else codes
    groups = codes.reshape(*scale.shape, -1) if scale.numel() else codes[:, None]  # (O, G, I/G)
    if zero_point is not None:
        groups = groups - zero_point[..., None].view(torch.int8)
    return (groups * scale[..., None]).flatten(1)


def tile_sizes(x: Tensor, block_k: int) -> dict[str, int]:
    """Rows, outputs and inputs of a tile for activations (M, I)."""
    rows = min(MAX_ROWS, max(MIN_ROWS, next_power_of_2(len(x))))
    return {"BLOCK_M": rows, "BLOCK_N": BLOCK_N, "BLOCK_K": block_k}


def _grid(y: Tensor, sizes: dict[str, int]) -> tuple[int, int]:
    return -(-y.shape[0] // sizes["BLOCK_M"]), -(-y.shape[1] // sizes["BLOCK_N"])


def _wide(x: Tensor) -> torch.dtype:
    """The dtype in which weights are dequantized."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _check_activations(x: Tensor, step: str, precision: str) -> None:
    """Raise InputError for an unknown step or precision, and activations that the step does not take."""
    check_step(step, STEPS)
    tiles.check_precision(precision)
    if step == "tiled":
        tiles.check_operands(2, x=x)
    elif step == "reference":
        check_tensors(tiles.REFERENCE_DTYPES, x=x)
        check_rank(2, x=x)
    else:
        device = check_contiguous((torch.float32,), x=x)
        check_rank(2, x=x)
        if device.type != "cpu":
            raise InputError("the compiled step runs on a CPU", got=device, help='step="tiled"')


def _check_like(x: Tensor, dtypes: tuple[Any, ...], **weights: Tensor) -> None:
    """Raise InputError naming the first that is not contiguous, of one of `dtypes`, and on the device of `x`."""
    device = check_contiguous(dtypes, **weights)
    if device != x.device:
        raise InputError(f"device of {next(iter(weights))}", got=device, expected=x.device)
