"""FLOPs and bytes of products with quantized weights."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.matmul import cost as matmul_cost
from mlsys_lab.kernels.quantized_matmul.cost import Weights, forward, tiled_bytes

INT4 = Weights(96, 128, 4, group=32, has_zero_points=True)


def test_weights_take_the_bytes_of_their_tensors():
    codes, scale, zero_point = torch.empty(96, 64, dtype=torch.uint8), torch.empty(96, 4).half(), torch.empty(96, 4)
    assert INT4.size_bytes == codes.nbytes + scale.nbytes + zero_point.numel()
    assert Weights(96, 128, 8, scale_itemsize=4).size_bytes == 96 * 128 + 96 * 4


def test_with_sixteen_bits_and_no_scales_the_cost_is_that_of_a_matrix_product():
    weights = Weights(96, 128, 16)
    flops, size_bytes = forward(7, weights)
    assert flops == matmul_cost.flops(7, 96, 128)
    assert size_bytes - weights.scale_bytes(1) == matmul_cost.min_bytes(7, 96, 128, itemsize=2)


def test_one_tile_as_large_as_everything_moves_the_minimum():
    assert tiled_bytes(7, INT4, block_m=7, block_n=96, block_k=32) == forward(7, INT4)[1]
    assert tiled_bytes(7, INT4, block_m=7, block_n=96, block_k=16) - forward(7, INT4)[1] == 96 * 4 * 3, "scales again"


def test_more_tiles_read_their_other_matrix_again():
    whole = tiled_bytes(64, INT4, block_m=64, block_n=96, block_k=32)
    assert tiled_bytes(64, INT4, block_m=16, block_n=96, block_k=32) - whole == 3 * INT4.size_bytes
    assert tiled_bytes(64, INT4, block_m=64, block_n=32, block_k=32) - whole == 2 * 64 * 128 * 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Weights(3, -1, 4), "inputs must not be negative: got -1"),
        (lambda: Weights(3, 64, 0), "bits must be at least 1"),
        (lambda: Weights(3, 64, 4, group=24), "groups do not divide the inputs: got groups of 24, 64 inputs"),
        (lambda: forward(-1, INT4), "rows must not be negative"),
        (lambda: tiled_bytes(1, INT4, block_m=0, block_n=1, block_k=1), "block_m must be at least 1"),
    ],
)
def test_amounts_that_cannot_be(call, words):
    with pytest.raises(InputError, match=words):
        call()
