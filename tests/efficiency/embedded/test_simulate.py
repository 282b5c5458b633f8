"""The simulation against exact rational arithmetic on torch's convolutions."""

from fractions import Fraction
from math import floor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from mlsys_lab.efficiency.embedded import MaxPool, simulate
from mlsys_lab.efficiency.embedded.simulate import requantize
from mlsys_lab.errors import InputError
from tests.efficiency.embedded.models import NAMES, make_example


def round_exactly(total: int, multiplier: int, shift: int, zero_point: int) -> int:
    code = floor(Fraction(total * multiplier, 2**shift) + Fraction(1, 2)) + zero_point
    return min(max(code, -128), 127)


def run_exactly(example) -> np.ndarray:
    """Convolutions of integers in fp64, which holds them exactly, and roundings of fractions."""
    x = torch.tensor(example.codes, dtype=torch.float64)
    for layer in example.network.layers:
        x = x.reshape(-1, *layer.input_shape)
        if isinstance(layer, MaxPool):
            x = F.max_pool2d(x, layer.kernel, layer.stride)
            continue
        weights, bias = (torch.tensor(array, dtype=torch.float64) for array in (layer.weights, layer.bias))
        sums = F.conv2d(x - layer.input_zero_point, weights, bias, layer.stride, layer.padding)
        assert sums.abs().max() < 2**31
        numbers = zip(layer.multiplier.tolist(), layer.shift.tolist(), strict=True)
        for channel, (multiplier, shift) in enumerate(numbers):
            totals = sums[:, channel].flatten().tolist()
            codes = [round_exactly(int(total), multiplier, shift, layer.output_zero_point) for total in totals]
            sums[:, channel] = torch.tensor(codes, dtype=torch.float64).reshape(sums[:, channel].shape)
        x = sums
    return x.flatten(1).numpy()


@pytest.mark.every_case
@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_exact_arithmetic(name):
    example = make_example(name)
    logits = simulate(example.network, example.codes)
    assert logits.dtype == np.int8
    np.testing.assert_array_equal(logits, run_exactly(example))


@given(
    st.integers(-(2**31) + 1, 2**31 - 1), st.integers(1, 2**31 - 1), st.integers(1, 62), st.integers(-128, 127)
)  # fmt: skip
def test_requantization_rounds_like_a_fraction(total, multiplier, shift, zero_point):
    code = requantize(np.array([total]), np.array([multiplier], np.int32), np.array([shift], np.uint8), zero_point)
    assert code[0] == round_exactly(total, multiplier, shift, zero_point)


def test_a_tie_rounds_up():
    sums = np.array([-5, -3, -1, 1, 3, 5])
    codes = requantize(sums, np.array([2**30], np.int32), np.array([31], np.uint8), 0)
    assert codes.tolist() == [-2, -1, 0, 1, 2, 3]


@pytest.mark.parametrize("images", [np.zeros((2, 1, 7, 8)), np.zeros((2, 1, 8, 7), np.int8), np.zeros(56, np.int8)])
def test_images_of_another_type_or_shape_are_refused(images):
    with pytest.raises(InputError, match=r"images do not fit the network: got \w+ \(.*, expected int8"):
        simulate(make_example("convolutions").network, images)
