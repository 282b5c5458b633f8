"""Casts to 8 bits and their scales: against ml_dtypes, `formats`, and loops over tiles."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.efficiency.formats import E2M1, E4M3, E5M2, encode
from mlsys_lab.efficiency.fp8 import BlockScaling, CurrentScaling, DelayedScaling
from mlsys_lab.efficiency.fp8.scaling import cast_scaled, choose_scale
from mlsys_lab.errors import InputError

DTYPES = {E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2}
ONE = torch.ones(())
formats = pytest.mark.parametrize("format", [E4M3, E5M2], ids=["e4m3", "e5m2"])


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def oracle(x: torch.Tensor, format) -> torch.Tensor:
    """Numbers within the range, rounded by ml_dtypes."""
    clipped = x.clamp(-format.largest, format.largest).numpy()
    return torch.from_numpy(clipped.astype(DTYPES[format]).astype(np.float32))


@formats
def test_casts_have_the_codes_of_our_formats(format):
    numbers = torch.tensor([format.value(code) for code in range(format.largest_code + 1)], dtype=torch.float64)
    ties = (numbers[1:] + numbers[:-1]) / 2
    beyond = torch.tensor([1.01 * format.largest, 2 * format.largest, 1e30, torch.inf])
    x = torch.cat([numbers.float(), ties.float(), ties.float().nextafter(ONE * 0), ties.float().nextafter(ONE * 1e9)])
    x = torch.cat([x, beyond])
    x = torch.cat([x, -x, torch.tensor([torch.nan])])[:, None]
    codes = cast_scaled(x, ONE, format).codes
    assert torch.equal(codes.view(torch.uint8), encode(x, format))


@formats
def test_every_code_is_decoded_as_torch_decodes_it(format):
    x = torch.tensor([format.value(code) for code in range(format.largest_code + 1)])[:, None]
    cast = cast_scaled(x, ONE, format)
    assert torch.equal(cast.dequantize(), x) and torch.equal(cast.codes.float(), x)


@formats
@given(exponent=st.integers(-100, 100), seed=st.integers(0, 1000))
def test_a_scale_is_the_smallest_power_of_two_that_avoids_saturation(format, exponent, seed):
    amax = normal(5, seed=seed).abs() * 2.0**exponent
    scale = choose_scale(amax, format)
    assert (scale.frexp().mantissa == 0.5).all()
    assert (amax <= scale * format.largest).all() and (amax > scale / 2 * format.largest).all()


def test_scales_of_extreme_magnitudes():
    amax = torch.tensor([0.0, torch.nan, torch.inf, 448, 448 * 2.0**-20, 1e-45, 3e38])
    expected = torch.tensor([1.0, 1, 1, 1, 2.0**-20, 2.0**-126, 2.0**120])
    assert torch.equal(choose_scale(amax, E4M3), expected)


@formats
@given(exponent=st.integers(-60, 60))
def test_current_scaling_only_moves_the_exponents(format, exponent):
    x = normal(7, 5) * 2.0**exponent
    scale = choose_scale(x.abs().amax(), format)
    operand = CurrentScaling(format)(x)
    assert operand.along_rows is operand.along_columns
    assert torch.equal(operand.along_rows.dequantize(), oracle(x / scale, format) * scale)


def test_delayed_scaling_uses_the_largest_magnitude_of_earlier_steps():
    scaling, seen = DelayedScaling(E4M3, history_length=3), []
    for step, magnitude in enumerate([1.0, 1000.0, 3.0, 2.0, 1.0, 5.0, 0.1]):
        x = normal(4, 6, seed=step)
        x *= magnitude / x.abs().amax()
        past = torch.tensor([0.0, *seen])[-3:].amax() if seen else torch.tensor(0.0)
        cast = scaling(x).along_rows
        assert torch.equal(cast.scale, choose_scale(past, E4M3))
        assert torch.equal(cast.dequantize(), oracle(x / cast.scale, E4M3) * cast.scale)
        seen.append(x.abs().amax().item())
    assert torch.equal(scaling.history, torch.tensor(seen[:-4:-1]))


def test_delayed_scaling_saturates_where_magnitudes_jump_and_a_margin_prevents_it():
    x = normal(4, 6)
    for margin, saturates in ((0, True), (3, False)):
        scaling = DelayedScaling(E4M3, margin=margin)
        scaling(x)
        jumped = scaling(8 * x).along_rows.dequantize()
        assert bool(((jumped - 8 * x).abs() > x.abs()).any()) is saturates


def test_delayed_scaling_learns_nothing_in_evaluation_or_from_numbers_that_are_not_finite():
    scaling = DelayedScaling(E5M2, history_length=2)
    scaling(torch.full((2, 2), 3.0))
    scaling.eval()(torch.full((2, 2), 100.0))
    assert scaling.history.tolist() == [3, 0]
    cast = scaling.train()(torch.tensor([[torch.nan, torch.inf]])).along_rows.dequantize()
    assert cast[0, 0].isnan() and cast[0, 1] == E5M2.largest * choose_scale(torch.tensor(3.0), E5M2)
    assert scaling.history.tolist() == [0, 3]
    restored = DelayedScaling(E5M2, history_length=2)
    restored.load_state_dict(scaling.state_dict())
    assert torch.equal(restored.history, scaling.history)


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (8, 12), (3, 9)])
@pytest.mark.parametrize("tile", [(1, 4), (4, 4)])
def test_block_scaling_is_current_scaling_of_each_tile(shape, tile):
    x = normal(*shape) * 10 ** normal(*shape, seed=1)
    operand = BlockScaling(E4M3, tile)(x)
    for cast, (rows, columns) in ((operand.along_rows, tile), (operand.along_columns, tile[::-1])):
        dequantized = cast.dequantize()
        for top in range(0, shape[0], rows):
            for left in range(0, shape[1], columns):
                part = (slice(top, top + rows), slice(left, left + columns))
                expected = CurrentScaling(E4M3)(x[part]).along_rows
                assert torch.equal(dequantized[part], expected.dequantize())
                assert torch.equal(cast.scale[top // rows, left // columns], expected.scale)


def test_an_outlier_costs_only_its_own_tile_bits():
    x = normal(4, 256)
    with_outlier = x.clone()
    with_outlier[0, 0] = 1e6
    error = {}
    for name, scaling in {"current": CurrentScaling(E4M3), "block": BlockScaling(E4M3, (1, 128))}.items():
        error[name] = (scaling(with_outlier).along_rows.dequantize() - with_outlier)[1:].abs().mean()
        clean = scaling(x).along_rows.dequantize()[1:]
        unchanged = torch.equal(scaling(with_outlier).along_rows.dequantize()[1:], clean)
        assert unchanged is (name == "block")
    assert error["current"] > 20 * error["block"]


def test_formats_without_a_dtype_and_empty_tiles_are_refused():
    with pytest.raises(InputError, match=r"no dtype of torch for this format: got 4 bits"):
        CurrentScaling(E2M1)
    with pytest.raises(InputError, match="columns must be at least 1"):
        BlockScaling(E4M3, (1, 0))
    with pytest.raises(InputError, match="margin out of range"):
        DelayedScaling(E4M3, margin=-1)
