"""Systolic arrays: against published peaks, and against an array that is moved clock by clock."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.errors import InputError
from mlsys_lab.hardware import device
from tests.oracles.systolic import SystolicArrays

# Arrays of a chip, their size and clock: Jouppi et al. 2017, 2020 and 2023 (arXiv:2304.01433, table 4); for v5e, v5p
# and v6e Austin et al., "How to scale your model" (2025). v6e's number of arrays is the one that peak and clock imply.
CHIPS = {
    "TPU v4": SystolicArrays(2 * 4, 128, 1.05e9),
    "TPU v5e": SystolicArrays(4, 128, 1.5e9),
    "TPU v5p": SystolicArrays(2 * 4, 128, 1.75e9),
    "TPU v6e": SystolicArrays(4, 256, 1.75e9),
}
OLDER = {
    "v1": (SystolicArrays(1, 256, 0.7e9), 92e12),
    "v2": (SystolicArrays(2 * 1, 128, 0.7e9), 46e12),
    "v3": (SystolicArrays(2 * 2, 128, 0.94e9), 123e12),
}


@pytest.mark.parametrize("name", CHIPS)
def test_the_peak_of_the_table_is_that_of_the_arrays(name: str) -> None:
    assert CHIPS[name].peak_flops_per_s == pytest.approx(device(name).peak("bf16"), rel=0.002)


@pytest.mark.parametrize("name", OLDER)
def test_the_peak_of_an_older_chip_is_that_of_its_arrays(name: str) -> None:
    arrays, printed = OLDER[name]
    assert arrays.peak_flops_per_s == pytest.approx(printed, rel=0.005)


def run(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, int]:
    """x · w on one array of w's size, clock by clock, and the clocks until the last sum has left it.

    Row r of x enters line i of the array at clock r + i; a cell adds its weight times what comes from the left to the
    sum from above, and hands on both.
    """
    (m, size), out = x.shape, np.zeros((x.shape[0], w.shape[1]))
    right, down, done, clock = np.zeros_like(w), np.zeros_like(w), 0, 0
    while done < out.size:
        left, above = np.roll(right, 1, axis=1), np.roll(down, 1, axis=0)
        left[:, 0] = [x[clock - i, i] if 0 <= clock - i < m else 0 for i in range(size)]
        above[0] = 0
        right, down = left, above + left * w
        for j in range(size):
            row = clock - (size - 1) - j
            if 0 <= row < m:
                out[row, j] = down[-1, j]
                done += 1
        clock += 1
    return out, clock


@pytest.mark.parametrize(("m", "size"), [(1, 1), (4, 4), (7, 4), (9, 3)])
def test_clocks_of_one_tile_are_those_of_an_array_that_is_moved(m: int, size: int) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(-4, 5, (m, size)).astype(float), rng.integers(-4, 5, (size, size)).astype(float)
    product, clocks = run(x, w)
    assert np.array_equal(product, x @ w)
    assert SystolicArrays(1, size, 1e9).clocks(m, size, size) == clocks


def test_padding_rounds_and_few_rows_by_hand() -> None:
    one, four = SystolicArrays(1, 128, 1e9), SystolicArrays(4, 128, 1e9)
    assert one.padding_share(128, 256) == 0 and one.padding_share(129, 128) == pytest.approx(127 / 256)
    assert one.clocks(1024, 129, 128) == 2 * 1024 + 254
    assert four.clocks(1024, 5 * 128, 128) == 2 * 1024 + 254  # five tiles on four arrays
    assert one.clocks(8, 256, 128) == 128 + 8 + 254  # the second tile's weights are not there before
    assert four.time_s(1024, 512, 128) == (1024 + 254) / 1e9
    assert four.utilisation(1024, 512, 128) == pytest.approx(1024 / (1024 + 254))


@given(st.integers(1, 3000), st.integers(1, 1000), st.integers(1, 1000), st.sampled_from([1, 2, 8]))
def test_no_shape_is_faster_than_the_peak(m: int, n: int, k: int, count: int) -> None:
    arrays = SystolicArrays(count, 128, 1e9)
    assert 0 < arrays.utilisation(m, n, k) < 1 - arrays.padding_share(k, n) + 1e-12
    assert arrays.time_s(m, n, k) >= 2 * m * n * k / arrays.peak_flops_per_s


def test_a_large_product_comes_near_the_peak_and_a_larger_array_wastes_more_on_a_small_one() -> None:
    assert CHIPS["TPU v5e"].utilisation(8192, 8192, 8192) > 0.99
    small, large = SystolicArrays(4, 128, 1e9), SystolicArrays(1, 256, 1e9)
    assert small.peak_flops_per_s == large.peak_flops_per_s
    assert large.padding_share(128, 384) > small.padding_share(128, 384) == 0


@pytest.mark.parametrize("wrong", [{"count": 0}, {"size": 0}, {"clock_hz": -1.0}])
def test_arrays_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        SystolicArrays(**{"count": 1, "size": 128, "clock_hz": 1e9} | wrong)  # type: ignore[arg-type]
