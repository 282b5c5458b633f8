"""Attention's FLOPs and bytes, against sums over every pair and against the package's other counts."""

from __future__ import annotations

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.flops import roofline
from mlsys_lab.kernels.attention.cost import Shape, backward, flash_bytes, forward, naive_bytes


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 5), (3, 8), (8, 3), (1, 9)])
def test_pairs_one_by_one(queries, keys):
    seen = sum(j <= i + keys - queries for i in range(queries) for j in range(keys))
    assert Shape(1, 1, 1, queries, keys, 16, causal=True).pairs == seen
    assert Shape(1, 1, 1, queries, keys, 16).pairs == queries * keys


def test_intensity_is_the_rooflines():
    shape = Shape(2, 8, 2, 64, 512, 32)
    flops, size_bytes = forward(shape)
    assert flops / size_bytes == pytest.approx(roofline.attention_intensity(64, 512, group=4))


def test_backward_is_five_products_to_two():
    shape = Shape(1, 4, 4, 128, 128, 64, causal=True)
    assert backward(shape)[0] == 5 * 2 * 4 * 64 * (128 * 129 / 2)
    assert backward(shape)[1] == 8 * 4 * 128 * 64 * 2 + 4 * 128 * 4


def test_one_block_of_queries_moves_the_least():
    shape = Shape(2, 4, 4, 128, 300, 64)
    assert flash_bytes(shape, 128, 64) == forward(shape)[1] + shape.lse_bytes
    longer = Shape(2, 4, 4, 256, 300, 64)
    assert flash_bytes(longer, 128, 64) == forward(longer)[1] + longer.lse_bytes + 2 * longer.key_elements * 2


def test_a_causal_mask_halves_what_flash_reads():
    full, causal = (flash_bytes(Shape(1, 1, 1, 16384, 16384, 128, causal=mask), 128, 128) for mask in (False, True))
    assert 0.5 < causal / full < 0.51


def test_naive_grows_with_the_square():
    short, long = (naive_bytes(Shape(1, 1, 1, n, n, 64), 128) for n in (4096, 8192))
    assert 3.9 < long / short < 4
    assert naive_bytes(Shape(1, 1, 1, 4096, 4096, 64), 128) > 4 * flash_bytes(Shape(1, 1, 1, 4096, 4096, 64), 128, 128)


def test_bad_input():
    with pytest.raises(InputError, match="multiple of key/value heads: got 3 and 2"):
        Shape(1, 3, 2, 1, 1, 16)
    with pytest.raises(InputError, match="keys must be at least 1"):
        Shape(1, 1, 1, 1, 0, 16)
