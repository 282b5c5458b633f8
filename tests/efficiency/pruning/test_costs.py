"""Costs of sparse products: bytes of scipy's and torch's own layouts, bounds by hand, break-even by algebra."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
import torch

from mlsys_lab.efficiency.pruning.costs import LAYOUTS, break_even_density, product_bound, speedup, weight_bytes
from mlsys_lab.efficiency.pruning.masks import apply_mask, magnitude_mask
from mlsys_lab.errors import InputError
from mlsys_lab.hardware import device

H100, SHAPE = device("H100"), (4096, 4096)


def random_weight(density, shape=(48, 64), block=1):
    """A weight of which exactly this fraction of squares is kept."""
    generator = torch.Generator().manual_seed(0)
    squares = torch.rand(shape[0] // block, shape[1] // block, generator=generator)
    kept = magnitude_mask(squares, density).repeat_interleave(block, 0).repeat_interleave(block, 1)
    return apply_mask(1 + torch.rand(shape, generator=generator), kept).numpy()


@pytest.mark.parametrize("density", [0.125, 0.5, 1.0])
def test_bytes_of_csr_are_scipy_s(density):
    w = scipy.sparse.csr_array(random_weight(density))
    scipy_bytes = w.data.nbytes + w.indices.nbytes + w.indptr.nbytes
    assert weight_bytes("csr", (48, 64), density, "fp32") == scipy_bytes - 4  # the first pointer is always 0


@pytest.mark.parametrize("density", [0.25, 0.5])
def test_bytes_of_blocks_are_scipy_s(density):
    w = scipy.sparse.bsr_array(random_weight(density, block=16), blocksize=(16, 16))
    scipy_bytes = w.data.nbytes + w.indices.nbytes + w.indptr.nbytes
    assert weight_bytes("block 16", (48, 64), density, "fp32") == scipy_bytes - 4


def test_a_pruned_weight_in_scipy_s_layouts_gives_the_same_product():
    w, x = random_weight(0.25, block=16), np.random.default_rng(0).random((64, 5), np.float32)
    for make in (scipy.sparse.csr_array, lambda w: scipy.sparse.bsr_array(w, blocksize=(16, 16))):
        np.testing.assert_allclose(make(w) @ x, w @ x, rtol=1e-5)


def test_2_4_weights_have_9_bits_for_16():
    assert weight_bytes("2:4", SHAPE, 0.5, "bf16") == 9 / 16 * weight_bytes("dense", SHAPE, 1.0, "bf16")
    assert weight_bytes("2:4", SHAPE, 0.5, "int8") == 5 / 8 * weight_bytes("dense", SHAPE, 1.0, "int8")


def test_least_times_by_hand():
    decode = product_bound(H100, "bf16", "dense", SHAPE, 1.0, 1)
    assert decode.limit == "memory"
    assert decode.time_s == pytest.approx((2 * 4096**2 + 2 * 2 * 4096) / H100.memory_bandwidth_bytes_per_s)
    prefill = product_bound(H100, "bf16", "csr", SHAPE, 0.25, 8192)
    assert prefill.limit == "compute"
    assert prefill.time_s == pytest.approx(2 * 8192 * 4096**2 / 4 / H100.peak("fp32"))
    assert product_bound(H100, "bf16", "bitmap", SHAPE, 0.25, 8192).time_s == pytest.approx(
        2 * 8192 * 4096**2 / H100.peak("bf16")
    )


def test_2_4_halves_prefill_and_reads_9_of_16_bytes_in_decoding():
    assert speedup(H100, "bf16", "2:4", SHAPE, 0.5, 8192) == pytest.approx(2)
    assert speedup(H100, "bf16", "2:4", SHAPE, 0.5, 1) == pytest.approx(16 / 9, rel=1e-3)


def test_break_even_of_decoding_is_where_bytes_are_equal():
    assert break_even_density(H100, "bf16", "csr", SHAPE, 1) == pytest.approx((2 - 4 / 4096) / (2 + 4), rel=1e-6)
    assert break_even_density(H100, "bf16", "bitmap", SHAPE, 1) == pytest.approx(15 / 16, rel=1e-6)
    blocks = (2 - 4 / 16 / 4096) / (2 + 4 / 256)
    assert break_even_density(H100, "bf16", "block 16", SHAPE, 1) == pytest.approx(blocks, rel=1e-6)


def test_break_even_of_prefill_is_the_ratio_of_the_peaks():
    ratio = H100.peak("fp32") / H100.peak("bf16")
    assert break_even_density(H100, "bf16", "csr", SHAPE, 8192) == pytest.approx(ratio, rel=1e-6)
    assert break_even_density(H100, "bf16", "block 64", SHAPE, 8192) == 1


@pytest.mark.parametrize("layout", ["csr", "block 16"])
@pytest.mark.parametrize("tokens", [1, 64, 4096])
def test_a_layout_pays_below_its_break_even_density_and_not_above(layout, tokens):
    density = break_even_density(H100, "bf16", layout, SHAPE, tokens)
    assert speedup(H100, "bf16", layout, SHAPE, density * 0.999, tokens) >= 1
    if density < 1:
        assert speedup(H100, "bf16", layout, SHAPE, density * 1.001, tokens) < 1


def test_what_is_refused_is_one_line():
    with pytest.raises(InputError, match=r"^unknown layout: got 'csc', .*did you mean 'csr'"):
        weight_bytes("csc", SHAPE, 0.5, "bf16")
    for density in (0, 1.1, float("nan")):
        with pytest.raises(InputError, match=r"^density of csr weights: got .*, expected a number above 0, at most 1$"):
            weight_bytes("csr", SHAPE, density, "bf16")
    with pytest.raises(InputError, match=r"^density of 2:4 weights: got 0.25, expected 0.5$"):
        weight_bytes("2:4", SHAPE, 0.25, "bf16")
    with pytest.raises(
        InputError, match=r"^2:4 does not divide the weight: got \(5, 6\), expected multiples of 1 and 4$"
    ):
        weight_bytes("2:4", (5, 6), 0.5, "bf16")
    with pytest.raises(InputError, match=r"^block 16 does not divide the weight: got \(24, 32\)"):
        weight_bytes("block 16", (24, 32), 0.5, "bf16")
    with pytest.raises(InputError, match=r"^unknown format: got 'fp17'"):
        weight_bytes("csr", SHAPE, 0.5, "fp17")
    with pytest.raises(InputError, match=r"^tokens must be at least 1: got 0"):
        product_bound(H100, "bf16", "csr", SHAPE, 0.5, 0)
    with pytest.raises(
        InputError, match=r"^a layout of one density breaks even at none: got 2:4; help: compute its sp"
    ):
        break_even_density(H100, "bf16", "2:4", SHAPE, 1)


def test_every_layout_with_all_weights_has_at_least_the_dense_bytes():
    for name, layout in LAYOUTS.items():
        if layout.density is None:
            assert weight_bytes(name, SHAPE, 1.0, "bf16") > weight_bytes("dense", SHAPE, 1.0, "bf16")


def test_costs_need_neither_torch_nor_numpy():
    code = "import sys, mlsys_lab.efficiency.pruning.costs; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
