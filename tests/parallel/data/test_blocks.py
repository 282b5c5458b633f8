from __future__ import annotations

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.parallel.data.blocks import LEVELS, BlockQuantizer


@pytest.mark.parametrize("size", [1, 4, 7, 100])
@pytest.mark.parametrize("count", [0, 1, 7, 30])
def test_no_number_is_off_by_more_than_half_a_step_of_its_block(count: int, size: int) -> None:
    x = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    codes, scales = BlockQuantizer(size).encode(x)
    assert (codes.dtype, codes.shape, scales.dtype) == (torch.int8, x.shape, torch.float32)
    assert len(scales) == -(-count // size)
    back = BlockQuantizer(size).decode(codes, scales, x.dtype)
    for own, rounded in zip(x.split(size), back.split(size), strict=True):
        if len(own):
            assert (own - rounded).abs().max() <= own.abs().max() * (0.5 / LEVELS + 1e-6)


def test_zeros_stay_zeros_and_a_block_has_a_number() -> None:
    blocks = BlockQuantizer(2)
    assert blocks.decode(*blocks.encode(torch.zeros(3)), torch.float32).tolist() == [0, 0, 0]
    with pytest.raises(InputError, match="a block has at least one number: got 0"):
        BlockQuantizer(0)
