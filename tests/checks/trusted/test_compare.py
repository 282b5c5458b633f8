"""What counts as equal, and what is said when it is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mlsys_checks.trusted.compare import close, tolerance
from mlsys_lab.errors import InputError

FLOATS = ("float64", "float32", "float16")


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "uint8"])
def test_whole_numbers_must_be_equal(dtype: str) -> None:
    assert tolerance(dtype) == 0
    want = np.array([0, 1, 1], dtype=dtype)
    assert close({"a": want.copy()}, {"a": want}) is None
    assert close({"a": want[::-1].copy()}, {"a": want}) is not None


def test_what_larger_values_left_of_each_other_is_as_exact_as_those() -> None:
    rows = np.array([[400.0, 400.0 + 1e-9], [400.0, 400.0 + 3e-9]])
    got, want = {"d": (rows[:, 1] - rows[:, 0])}, {"d": np.array([1e-9, 3e-9])}
    assert close(got, want) is not None and close(got, want, min_size={"d": 400.0}) is None
    assert close({"d": want["d"] + 1e-6}, want, min_size={"d": 400.0}) is not None


def test_tolerances_see_a_detour_through_the_next_smaller_dtype() -> None:
    x = np.random.default_rng(0).normal(size=1000)
    through_float32 = x.astype(np.float32).astype(np.float64)
    assert close({"x": through_float32}, {"x": x}) is not None
    x32 = x.astype(np.float32)
    assert close({"x": x32.astype(np.float16).astype(np.float32)}, {"x": x32}) is not None


@pytest.mark.parametrize("dtype", FLOATS[1:])
def test_tolerances_allow_another_order_of_summation(dtype: str) -> None:
    x = np.random.default_rng(0).normal(size=(64, 200)).astype(dtype)
    one_by_one = np.zeros(64, dtype=dtype)
    for column in x.T:
        one_by_one += column
    scale = np.sqrt(200) if dtype == "float16" else 1.0
    assert close({"s": one_by_one}, {"s": x.sum(axis=1, dtype=np.float64).astype(dtype)}, scale=scale) is None


def test_float64_tolerance_allows_central_differences() -> None:
    x, h = np.linspace(-2, 2, 50), 1e-5
    assert close({"g": (np.tanh(x + h) - np.tanh(x - h)) / (2 * h)}, {"g": 1 - np.tanh(x) ** 2}) is None


@given(hnp.arrays(np.float64, hnp.array_shapes(max_side=4), elements=st.floats(-1e6, 1e6)))
def test_an_array_equals_itself(x: np.ndarray) -> None:
    assert close({"x": x.copy()}, {"x": x}) is None


@given(hnp.arrays(np.float64, 5, elements=st.floats(0.1, 1e6)), st.integers(0, 4))
def test_one_entry_that_is_off_by_a_thousandth_is_found(x: np.ndarray, at: int) -> None:
    # Relative to the largest entry, so that a small neighbour cannot hide in the array's size.
    got = x.copy()
    got[at] += 1e-3 * x.max()
    mismatch = close({"x": got}, {"x": x})
    assert mismatch is not None and f"1 of 5 entries, worst at [{at}]" in mismatch.what


def test_small_gradients_are_not_taken_for_zero() -> None:
    want = np.full(10, 1e-7, dtype=np.float32)
    assert close({"g": np.zeros(10, dtype=np.float32)}, {"g": want}) is not None
    assert close({"g": want.copy()}, {"g": want}) is None


@pytest.mark.parametrize("size", [1e-200, 1e308])
def test_values_whose_squares_leave_the_range_of_floats_have_a_size_too(size: float) -> None:
    want = {"x": np.array([1.0, -0.5]) * size}
    assert close({"x": want["x"] * (1 + 1e-12)}, want) is None
    for wrong in (np.zeros(2), want["x"] * (1 - 1e-6)):
        assert close({"x": wrong}, want) is not None


def test_expected_zeros_allow_rounding_only() -> None:
    zeros = np.zeros(3)
    assert close({"g": zeros + 1e-12}, {"g": zeros}) is None
    assert close({"g": zeros + 1e-3}, {"g": zeros}) is not None


def test_nan_never_passes_not_even_where_expected() -> None:
    nan = np.array([1.0, np.nan])
    assert "1 NaN in 2 entries" in (close({"x": nan}, {"x": np.array([1.0, 2.0])}) or _none()).what
    assert close({"x": nan}, {"x": nan}) is not None
    assert close({"x": np.array([1.0, 2.0])}, {"x": nan}) is not None


def test_infinities_must_meet() -> None:
    want = np.array([1.0, -np.inf, np.inf])
    assert close({"x": want.copy()}, {"x": want}) is None
    for got in ([1.0, -np.inf, -np.inf], [1.0, -1e308, np.inf], [np.inf, -np.inf, np.inf]):
        assert close({"x": np.array(got)}, {"x": want}) is not None


def test_shape_dtype_and_names_must_match() -> None:
    want = {"x": np.zeros((2, 3))}
    assert close({"x": np.zeros((3, 2))}, want) == _mismatch(
        "`x` has the wrong shape", "(3, 2)", "(2, 3)", is_form=True
    )
    assert close({"x": np.zeros(6)}, want) is not None
    assert close({"x": np.zeros((2, 3), np.float32)}, want) == _mismatch(
        "`x` has the wrong dtype", "float32", "float64", is_form=True
    )
    assert close({}, want) == _mismatch("`x` is missing", "nothing", "x")
    assert close(want | {"z": np.zeros(1)}, want) == _mismatch("more came back than was asked for", "z", "x")


def test_empty_arrays_and_scalars() -> None:
    assert close({"x": np.zeros((0, 3))}, {"x": np.zeros((0, 3))}) is None
    assert close({"x": np.array(2.0)}, {"x": np.array(3.0)}) == _mismatch("`x` has the wrong value", "2.", "3.")


def test_large_arrays_are_told_by_their_worst_entry() -> None:
    want = np.zeros((10, 10))
    got = want.copy()
    got[2, 3], got[4, 5] = 1.0, -7.0
    mismatch = close({"x": got}, {"x": want})
    assert mismatch == _mismatch("`x` is wrong in 2 of 100 entries, worst at [4, 5]", "-7. at [4, 5]", "0. at [4, 5]")


ROUNDED = "`x` differs by rounding alone: was a part of it computed in single precision?"


def test_values_that_look_alike_are_shown_with_the_digits_that_tell_them_apart() -> None:
    said = close({"x": np.array(0.0123456789)}, {"x": np.array(0.0123456712)})
    assert said == _mismatch("`x` has the wrong value", "0.012345679", "0.012345671")
    said = close({"x": np.array([1.0 + 1e-8, 2.0])}, {"x": np.array([1.0, 2.0])})
    assert said == _mismatch(ROUNDED, "[1.00000001, 2.        ]", "[1., 2.]")


def test_scale_loosens() -> None:
    got, want = {"x": np.array([1.0 + 1e-7])}, {"x": np.array([1.0])}
    assert close(got, want) is not None
    assert close(got, want, scale=1e3) is None


def test_no_tolerance_for_what_is_no_number() -> None:
    with pytest.raises(InputError, match="no tolerance"):
        tolerance("complex128")


def test_bfloat16_is_coarser_than_what_carries_it() -> None:
    assert tolerance("bfloat16") > tolerance("float16") > tolerance("float32") > tolerance("float64") > 0


def _mismatch(what: str, got: str, expected: str, is_form: bool = False) -> object:
    from mlsys_checks.sandboxed.spec import Mismatch

    return Mismatch(what, got, expected, is_form=is_form)


def _none() -> object:
    raise AssertionError("no mismatch")
