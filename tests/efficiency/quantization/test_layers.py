"""Layers of 8 and 4 bits: no weight further off than half a step, bytes as counted, packed numbers as they went in."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.efficiency.quantization import Int4Linear, Int8Linear
from mlsys_lab.efficiency.quantization.layers import round_int8
from mlsys_lab.errors import InputError

LAYERS = {"int8": Int8Linear, "int4": Int4Linear.from_weight}
ROUNDING = 1 + 1e-4
"""Weights are decoded in fp32, a step of which is 2⁻²⁴ of the largest weight: 10⁻⁵ of half a step of int8."""


def weights(seed, outputs=5, inputs=128, scale=1.0, shift=0.0):
    return scale * (torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) + shift)


@pytest.mark.parametrize("kind", LAYERS)
@given(seed=st.integers(0, 10**6), exponent=st.integers(-30, 30), shift=st.sampled_from([-20.0, 0.0, 0.3, 20.0]))
def test_no_weight_is_further_off_than_half_a_step(kind, seed, exponent, shift):
    w = weights(seed, scale=2.0**exponent, shift=shift)
    layer = LAYERS[kind](w)
    off, half = (layer.weight() - w).abs(), layer.weight_error_bound()
    assert off.shape == half.shape and (off <= half * ROUNDING).all()
    assert off.max() > half.min() / 2  # the bound is no idle one


def test_a_step_is_what_the_largest_weight_makes_it():
    w = weights(0)
    torch.testing.assert_close(Int8Linear(w).weight_error_bound(), (w.abs().amax(-1) / 254)[:, None].expand(5, 128))
    ends = w.unflatten(-1, (2, 64))
    width = (ends.amax(-1).clamp(min=0) - ends.amin(-1).clamp(max=0)) / 30
    torch.testing.assert_close(
        Int4Linear.from_weight(w).weight_error_bound(), width.repeat_interleave(64, -1), rtol=2**-8, atol=0
    )


@pytest.mark.parametrize("kind", LAYERS)
def test_outputs_are_those_of_the_decoded_weights_and_within_the_bound(kind):
    w, bias, x = weights(1), weights(2)[:, 0], weights(3, outputs=7)
    layer = LAYERS[kind](w, bias)
    torch.testing.assert_close(layer(x[None]), (x @ layer.weight().T + bias)[None])
    off = (layer(x) - (x @ w.T + bias)).abs()
    assert (off <= x.abs() @ layer.weight_error_bound().T + 1e-4).all() and off.max() > 1e-3
    assert layer(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", LAYERS)
def test_zeros_stay_zeros(kind):
    w = weights(0)
    w[2], w[:, 5] = 0, 0
    decoded = LAYERS[kind](w).weight()
    assert (decoded[2] == 0).all()
    assert (decoded[:, 5].abs() <= LAYERS[kind](w).weight_error_bound()[:, 5]).all()


def test_sixteen_numbers_of_a_group_come_back_exactly():
    w = torch.arange(16.0).repeat(3, 4)[:, torch.randperm(64, generator=torch.Generator().manual_seed(0))] - 8
    layer = Int4Linear.from_weight(w)
    assert torch.equal(layer.weight(), w) and layer.packed.shape == (3, 32)


def test_bytes_are_8_and_four_and_a_half_bits_a_weight():
    w = weights(0, outputs=64, inputs=512)
    held = {kind: sum(buffer.nbytes for buffer in make(w).buffers()) for kind, make in LAYERS.items()}
    assert held == {"int8": 64 * (512 + 4), "int4": 64 * 512 * 4.5 / 8}


def test_smaller_groups_are_nearer():
    w = weights(0)
    off = [(Int4Linear.from_weight(w, group_size=group).weight() - w).norm() for group in (16, 32, 64, 128)]
    assert off == sorted(off) and off[0] < 0.9 * off[-1]


def test_rows_of_zeros_and_of_nothing_have_scale_one():
    codes, scale = round_int8(torch.zeros(2, 3))
    assert not codes.any() and scale.tolist() == [[1.0], [1.0]]
    assert round_int8(torch.zeros(2, 0))[0].shape == (2, 0)


@pytest.mark.parametrize("group", [0, 3, 48, 256])
def test_groups_that_do_not_divide_the_inputs_are_one_line(group):
    with pytest.raises(InputError, match=f"groups do not divide the inputs: got groups of {group}, 128 inputs"):
        Int4Linear.from_weight(weights(0), group_size=group)
