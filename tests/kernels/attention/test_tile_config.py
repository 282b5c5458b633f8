"""Tile sizes of attention's kernels: there is one for every head dimension and dtype, and it fits."""

from __future__ import annotations

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.attention.tile_config import KERNELS, MAX_UNROLLED, TileConfig, candidate_configs
from mlsys_lab.kernels.tiles import HOPPER_SHARED_BYTES, MAX_HEAD_DIM


@pytest.mark.parametrize("unrolled", (False, True))
@pytest.mark.parametrize("itemsize", (2, 4))
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_width_and_dtype_has_candidates_that_fit(kernel, itemsize, unrolled):
    for width in (16, 64, 128, MAX_HEAD_DIM):
        found = candidate_configs(kernel, width, itemsize, HOPPER_SHARED_BYTES, unrolled=unrolled)
        assert found
        assert all(one.shared_bytes(kernel, width, itemsize) <= HOPPER_SHARED_BYTES for one in found)
        assert not unrolled or all(one.block_m * one.block_n <= MAX_UNROLLED for one in found)
    assert len(candidate_configs(kernel, MAX_HEAD_DIM, 4, HOPPER_SHARED_BYTES)) < len(
        candidate_configs(kernel, 16, 2, HOPPER_SHARED_BYTES)
    )


def test_shared_bytes_counts_what_stays_and_what_is_under_way():
    """128 queries stay next to 2 · 64 rows of keys and 2 · 64 of values, 128 wide, in 16 bits."""
    assert TileConfig(128, 64, num_stages=2).shared_bytes("forward", 128, 2) == (128 + 4 * 64) * 256
    assert TileConfig(64, 128, num_stages=3).shared_bytes("dkdv", 128, 2) == (2 * 128 + 6 * 64) * 256
    assert TileConfig(128, 64, num_stages=1).shared_bytes("dq", 64, 4) == (2 * 128 + 2 * 64) * 256


def test_bad_tile_sizes():
    with pytest.raises(InputError, match="block_n of attention: got 48, expected a power of two from 16"):
        TileConfig(block_n=48)
    with pytest.raises(InputError, match="block_m of attention: got 8"):
        TileConfig(block_m=8)
    with pytest.raises(InputError, match="num_warps and num_stages of attention: got 12 and 2"):
        TileConfig(num_warps=12)
