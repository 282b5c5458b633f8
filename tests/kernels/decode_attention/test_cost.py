"""Decode attention's FLOPs and bytes."""

from __future__ import annotations

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.flops import roofline
from mlsys_lab.kernels.decode_attention.cost import forward, paged_bytes


def test_intensity_is_the_rooflines():
    flops, size_bytes = forward([8192], heads=32, kv_heads=4, head_dim=128)
    assert flops / size_bytes == pytest.approx(roofline.attention_intensity(1, 8192, group=8))


def test_sequences_add_up():
    flops, _ = forward([3, 0, 5], 4, 2, 16)
    assert flops == forward([8], 4, 2, 16)[0]
    assert forward([], 4, 2, 16) == (0.0, 0.0)


def test_blocks_and_splits_cost_a_few_percent():
    lengths = [8192] * 8
    least = forward(lengths, 32, 8, 128)[1]
    assert 1 < paged_bytes(lengths, 32, 8, 128) / least < 1.01
    assert 1 < paged_bytes(lengths, 32, 8, 128, num_splits=7) / least < 1.02


def test_splits_without_keys_are_written_and_not_read():
    one, two = (paged_bytes([64], 1, 1, 16, num_splits=n, block_n=64) for n in (2, 3))
    assert two - one == 16 * 2 + 4 + (16 + 2) * 4, "a query and a length read, a part and two log-sum-exps moved"


def test_bad_input():
    with pytest.raises(InputError, match="seq_lens must not be negative"):
        forward([3, -1], 4, 2, 16)
    with pytest.raises(InputError, match="multiple of key/value heads"):
        forward([3], 3, 2, 16)
