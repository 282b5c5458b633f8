"""What Triton's kernels with matrix multiplications share: the product of two tiles, and what their operands must be.

On a GPU, `dot` is `tl.dot`: tensor cores, sums in float32. Triton's interpreter (3.6 to 3.9) holds bfloat16 as its bits
and would multiply those, so there the operands become float32 first; both ways the products are the same, for a product
of two 16-bit floats is exact in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.arguments import check_rank, check_rows, check_tensors
from mlsys_lab.kernels.runtime import triton_interprets
from mlsys_lab.kernels.triton_language import tl, triton

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""dtypes that kernels with matrix multiplications take; they add in float32."""

PRECISIONS = ("ieee", "tf32x3", "tf32")
"""How float32 tiles are multiplied on a GPU; the interpreter does it exactly rounded in any case.

"ieee": exactly rounded, one multiply-add after the other on the CUDA cores, in small tiles, for every one of them is
written out in the code. "tf32": on tensor cores, with 10 bits of mantissa. "tf32x3": three such products for the high
and the low bits, nearly exact.
"""

HOPPER_SHARED_BYTES = 227 * 1024
"""Shared memory that one block may have on compute capability 9.0; kernels are planned for it where there is no GPU."""

HOPPER_MULTIPROCESSORS = 132
"""Multiprocessors of an H100 SXM; persistent kernels start as many programs where there is no GPU to ask."""

INTERPRETED = tl.constexpr(triton_interprets())


@triton.jit
def dot(a, b, accumulator, PRECISION: tl.constexpr):
    """Product a·b of two tiles in float32, added to the accumulator where there is one."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), accumulator)
    return tl.dot(a, b, accumulator, input_precision=PRECISION)


@dataclass(frozen=True)
class Limits:
    """What a kernel may count on: shared memory of a block and multiprocessors, of the GPU or else of an H100."""

    shared_bytes: int
    multiprocessors: int


def limits(device: torch.device) -> Limits:
    """The limits that kernels on `device` may count on: the GPU's own, or an H100's for the CPU."""
    if device.type != "cuda":
        return Limits(HOPPER_SHARED_BYTES, HOPPER_MULTIPROCESSORS)
    found: Any = torch.cuda.get_device_properties(device)
    return Limits(found.shared_memory_per_block_optin, found.multi_processor_count)


def check_operands(rank: int, **named: torch.Tensor) -> torch.device:
    """The device of tensors of `rank` dimensions that a kernel takes together; InputError names the first that misfits.

    They share one of `DTYPES` and one device. Strides are free but for the last dimension, whose elements lie side by
    side, as wide loads need it.
    """
    device = check_tensors(DTYPES, **named)
    check_rank(rank, **named)
    check_rows(**named)
    return device


def unrolls_products(dtype: torch.dtype, precision: str) -> bool:
    """Whether the compiler writes out every multiply-add of a tile, so that only small tiles are of use."""
    return dtype == torch.float32 and precision == "ieee"


def check_precision(precision: str) -> None:
    """Raise InputError unless `precision` is one of `PRECISIONS`."""
    if precision not in PRECISIONS:
        raise InputError("unknown precision", got=repr(precision), expected="one of " + ", ".join(PRECISIONS))
