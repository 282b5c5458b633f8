"""Packed codes against one integer of all their bits."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.efficiency.formats import pack, unpack
from mlsys_lab.efficiency.formats.packing import WIDTHS
from mlsys_lab.errors import InputError

pytestmark = pytest.mark.every_case


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("shape", [(1, 24), (3, 8), (2, 5, 40), (0, 8), (3, 0)])
def test_bytes_are_one_little_endian_stream_of_bits(bits: int, shape: tuple[int, ...]) -> None:
    codes = torch.randint(2**bits, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(bits))
    packed = pack(codes, bits)
    assert packed.shape == (*shape[:-1], shape[-1] * bits // 8) and packed.dtype == torch.uint8
    assert torch.equal(unpack(packed, bits), codes)
    for row, got in zip(codes.flatten(0, -2).tolist(), packed.flatten(0, -2).tolist(), strict=True):
        stream = sum(code << bits * place for place, code in enumerate(row))
        assert bytes(got) == stream.to_bytes(len(got), "little")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pack(torch.zeros(3, dtype=torch.uint8), 4), "multiple of 2"),
        (lambda: pack(torch.zeros(12, dtype=torch.uint8), 3), "multiple of 8"),
        (lambda: unpack(torch.zeros(4, dtype=torch.uint8), 6), "multiple of 3"),
        (lambda: pack(torch.zeros(8, dtype=torch.int32), 4), "int32"),
        (lambda: pack(torch.full((8,), 16, dtype=torch.uint8), 4), "got 16, expected below 16"),
        (lambda: pack(torch.zeros(8, dtype=torch.uint8), 5), "one of 2, 3, 4, 6"),
    ],
)
def test_bad_input_is_one_line(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
