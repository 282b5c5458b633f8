"""Blocks of attention's kernels: there is one for every width and dtype, and it fits."""

from __future__ import annotations

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.attention.blocks import KERNELS, LARGEST_WRITTEN_OUT, WIDEST, Blocks, candidates
from mlsys_lab.kernels.tiles import HOPPER_SHARED_BYTES


@pytest.mark.parametrize("small", (False, True))
@pytest.mark.parametrize("itemsize", (2, 4))
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_width_and_dtype_has_candidates_that_fit(kernel, itemsize, small):
    for width in (16, 64, 128, WIDEST):
        found = candidates(kernel, width, itemsize, HOPPER_SHARED_BYTES, small=small)
        assert found
        assert all(one.shared_bytes(kernel, width, itemsize) <= HOPPER_SHARED_BYTES for one in found)
        assert not small or all(one.m * one.n <= LARGEST_WRITTEN_OUT for one in found)
    assert len(candidates(kernel, WIDEST, 4, HOPPER_SHARED_BYTES)) < len(candidates(kernel, 16, 2, HOPPER_SHARED_BYTES))


def test_shared_bytes_counts_what_stays_and_what_is_under_way():
    """128 queries stay beside 2 · 64 rows of keys and 2 · 64 of values, 128 wide, in 16 bits."""
    assert Blocks(128, 64, stages=2).shared_bytes("forward", 128, 2) == (128 + 4 * 64) * 256
    assert Blocks(64, 128, stages=3).shared_bytes("key_value", 128, 2) == (2 * 128 + 6 * 64) * 256
    assert Blocks(128, 64, stages=1).shared_bytes("query", 64, 4) == (2 * 128 + 2 * 64) * 256


def test_bad_blocks():
    with pytest.raises(InputError, match="blocks of attention: n: got 48, expected a power of two from 16"):
        Blocks(n=48)
    with pytest.raises(InputError, match="blocks of attention: m: got 8"):
        Blocks(m=8)
    with pytest.raises(InputError, match="blocks of attention: warps and stages: got 12 and 2"):
        Blocks(warps=12)
