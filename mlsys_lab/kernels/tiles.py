"""Properties shared by the Triton kernels that multiply tiles: dtypes, precisions and device limits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.arguments import check_rank, check_rows, check_tensors
from mlsys_lab.kernels.row_blocks import next_power_of_2
from mlsys_lab.validation import require_positive_number

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""dtypes of the operands; sums are accumulated in float32."""

REFERENCE_DTYPES = (*DTYPES, torch.float64)
"""dtypes that the references in torch take as well."""

PRECISIONS = ("ieee", "tf32x3", "tf32")
"""How float32 tiles are multiplied on a GPU (the interpreter always rounds exactly).

"ieee": exactly rounded multiply-adds on the CUDA cores; the compiler unrolls every one of them, so tiles must be small.
"tf32": tensor cores, with a mantissa of 10 bits. "tf32x3": three such products of high and low bits, nearly exact.
"""

MAX_HEAD_DIM = 256
"""Largest head dimension whose tiles fit in a thread block's shared memory."""

HOPPER_SHARED_BYTES = 227 * 1024
"""Shared memory available to one thread block on compute capability 9.0; assumed where there is no GPU."""

HOPPER_MULTIPROCESSORS = 132
"""Multiprocessors (SMs) of an H100 SXM; assumed where there is no GPU."""


@dataclass(frozen=True)
class DeviceLimits:
    """Shared memory of a thread block and number of multiprocessors (SMs)."""

    shared_bytes: int
    multiprocessors: int


def device_limits(device: torch.device) -> DeviceLimits:
    """Limits of the GPU that `device` names; for the CPU, those of an H100."""
    if device.type != "cuda":
        return DeviceLimits(HOPPER_SHARED_BYTES, HOPPER_MULTIPROCESSORS)
    properties: Any = torch.cuda.get_device_properties(device)
    return DeviceLimits(properties.shared_memory_per_block_optin, properties.multi_processor_count)


def check_operands(rank: int, **named: torch.Tensor) -> torch.device:
    """Check the tensors of one kernel launch and return their device.

    All have `rank` dimensions, one of `DTYPES`, and one device. The last dimension is contiguous, as wide loads need;
    other strides are free. Raises InputError naming the first tensor that does not fit.
    """
    device = check_tensors(DTYPES, **named)
    check_rank(rank, **named)
    check_rows(**named)
    return device


def check_head_dim(q: torch.Tensor) -> None:
    """Raise InputError if the head dimension, the last of `q`, exceeds `MAX_HEAD_DIM`."""
    if q.shape[-1] > MAX_HEAD_DIM:
        raise InputError("head dimension", got=q.shape[-1], expected=f"at most {MAX_HEAD_DIM}")


def padded_head_dim(q: torch.Tensor) -> int:
    """Columns of a tile: the head dimension, the last of `q`, rounded up to a power of two, at least 16."""
    return max(16, next_power_of_2(q.shape[-1]))


def softmax_scale(q: torch.Tensor, scale: float | None) -> float:
    """The scale of the scores, by default 1/√D. Raises InputError unless it is positive."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    require_positive_number("scale of attention", scale)
    return scale


def unrolls_products(dtype: torch.dtype, precision: str) -> bool:
    """Whether the compiler unrolls every multiply-add of a tile, which makes large tiles slow to compile and run."""
    return dtype == torch.float32 and precision == "ieee"


def check_precision(precision: str) -> None:
    """Raise InputError unless `precision` is one of `PRECISIONS`."""
    if precision not in PRECISIONS:
        raise InputError("unknown precision", got=repr(precision), expected="one of " + ", ".join(PRECISIONS))
