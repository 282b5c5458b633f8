"""Pack codes of fewer than 8 bits into bytes: a little-endian stream of bits, the first code in the lowest bits.

Two 4-bit codes make a byte, the first in its low nibble, as in torch's float4_e2m1fn_x2; four 6-bit codes, or eight of
3 bits, make three bytes.
"""

from __future__ import annotations

import math

import torch

from mlsys_lab.errors import InputError

WIDTHS = (2, 3, 4, 6)
"""Bits of the codes that can be packed."""


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Bytes of uint8 codes along the last axis: (..., n) -> (..., n · bits / 8).

    InputError unless the n codes fill whole groups of bytes, and each fits its bits.

    >>> pack(torch.tensor([1, 2, 3, 4], dtype=torch.uint8), 4).tolist()  # 0x21, 0x43
    [33, 67]
    """
    per_group, group_bytes = _group(bits)
    if (codes > 2**bits - 1).any():
        raise InputError("code too large to pack", got=int(codes.max()), expected=f"below {2**bits}")
    return _regroup(codes, bits, per_group, 8, group_bytes)


def unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes of packed bytes: (..., m) -> (..., 8 · m / bits), uint8. InputError unless the bytes are whole groups.

    >>> unpack(torch.tensor([33, 67], dtype=torch.uint8), 4).tolist()
    [1, 2, 3, 4]
    """
    per_group, group_bytes = _group(bits)
    return _regroup(packed, 8, group_bytes, bits, per_group)


def _group(bits: int) -> tuple[int, int]:
    """Codes and bytes of the smallest group that fills whole bytes."""
    if bits not in WIDTHS:
        raise InputError("bits of a code", got=bits, expected=f"one of {', '.join(map(str, WIDTHS))}")
    return 8 // math.gcd(8, bits), bits // math.gcd(8, bits)


def _regroup(x: torch.Tensor, bits: int, count: int, new_bits: int, new_count: int) -> torch.Tensor:
    """Read each `count` numbers of `bits` bits as `new_count` of `new_bits` bits: at most 24 bits in all."""
    if x.dtype != torch.uint8 or x.ndim == 0 or x.shape[-1] % count:
        expected = f"uint8, the last axis a multiple of {count}"
        raise InputError("codes do not fill whole groups", got=f"{x.dtype} {tuple(x.shape)}", expected=expected)
    shifts = torch.arange(0, count * bits, bits, dtype=torch.int32, device=x.device)
    new_shifts = torch.arange(0, new_count * new_bits, new_bits, dtype=torch.int32, device=x.device)
    groups = x.reshape(*x.shape[:-1], x.shape[-1] // count, count).int()
    words = (groups << shifts).sum(-1, keepdim=True, dtype=torch.int32)
    regrouped = words >> new_shifts & (1 << new_bits) - 1
    return regrouped.to(torch.uint8).flatten(-2)
