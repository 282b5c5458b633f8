"""One meaning of a number for every lab, and messages that say what came instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from mlsys_checks.sandboxed import values
from mlsys_lab.errors import InputError

WHOLE = [7, np.int64(7), np.uint8(7), np.array(7), np.array(7, np.int32), torch.tensor(7)]
REAL = [*WHOLE, 7.0, np.float64(7), np.float32(7), np.array(7.0), torch.tensor(7.0), np.longdouble(7)]
NONE = [True, np.True_, np.array(True), torch.tensor(True), "7", None, 7 + 0j, [7], (7,), np.array([7]), torch.ones(1)]


@pytest.mark.parametrize("got", REAL, ids=lambda got: f"{type(got).__name__} {got!r}")
def test_any_real_scalar_is_a_number(got: Any) -> None:
    found = values.number("x", got)
    assert (found.dtype, found.shape, found.item()) == (np.float64, (), 7.0)


@pytest.mark.parametrize("got", WHOLE, ids=lambda got: f"{type(got).__name__} {got!r}")
def test_any_integer_is_a_whole_number(got: Any) -> None:
    found = values.whole("x", got)
    assert (found.dtype, found.shape, found.item()) == (np.int64, (), 7)


@pytest.mark.parametrize("got", NONE, ids=lambda got: f"{type(got).__name__} {got!r}")
@pytest.mark.parametrize("kind", [values.number, values.whole])
def test_what_is_no_number_is_refused_in_one_line(kind: Any, got: Any) -> None:
    with pytest.raises(InputError, match=r"^x is not a (whole )?number: got ") as refusal:
        kind("x", got)
    assert ("None" if got is None else type(got).__name__) in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("got", [7.0, np.float32(7), np.array(7.0), torch.tensor(7.0)])
def test_a_whole_number_has_a_type_without_fractions(got: Any) -> None:
    with pytest.raises(InputError, match=r"expected int: of ints // gives one, so divide by //"):
        values.whole("bytes", got)


def test_a_number_that_does_not_fit_is_out_of_range() -> None:
    assert values.whole("x", -(2**63) + 1) == -(2**63) + 1
    for kind, got in ((values.whole, 2**63), (values.number, 10**400)):
        with pytest.raises(InputError, match="x is out of range"):
            kind("x", got)


@pytest.mark.parametrize("got", [0, 7, np.int64(7), 2**63, -(2**100)])
def test_a_count_may_be_larger_than_64_bits(got: Any) -> None:
    assert values.decode_text(values.count("x", got)) == str(int(got))


@pytest.mark.parametrize("got", [7.0, True, "7", 2**256])
def test_what_is_no_count_is_refused(got: Any) -> None:
    with pytest.raises(InputError, match=r"^x is (not a whole number|out of range)"):
        values.count("x", got)


@pytest.mark.parametrize("kind", [dict, Counter, MappingProxyType])
def test_any_mapping_is_a_dictionary(kind: Any) -> None:
    assert {name: one.item() for name, one in values.wholes("f", kind({"a": 1, "b": 2}), "ab").items()} == {
        "a": 1,
        "b": 2,
    }


@pytest.mark.parametrize("got", [(1, 2), [1, 2.0], np.array([1, 2])])
def test_numbers_come_as_a_tuple_a_list_or_an_array(got: Any) -> None:
    assert {name: one.item() for name, one in values.numbers("f", got, "a", "b").items()} == {"a": 1.0, "b": 2.0}


@pytest.mark.parametrize("got", [1.0, (1.0,), (1, 2, 3), np.float64(1), np.array(1.0), np.ones(3), "ab", None])
def test_another_count_of_entries_is_refused(got: Any) -> None:
    with pytest.raises(InputError, match=r"^f gives something else: got .*, expected a tuple \(a, b\)$"):
        values.numbers("f", got, "a", "b")


@pytest.mark.parametrize(
    "got",
    [[1, 2], (1, 2), np.array([1, 2]), torch.tensor([1, 2]), [np.int64(1), 2], [torch.tensor(1), torch.tensor(2)]],
)
def test_numbers_of_any_container_are_an_array(got: Any) -> None:
    found = values.array("labels", got)
    assert (found.dtype, found.tolist()) == (np.int64, [1, 2]) and found is not got


@pytest.mark.parametrize("got", [["a"], [[1], [2, 3]], np.array(["x"]), np.array([None]), "12", {}, memoryview(b"12")])
def test_what_holds_no_numbers_is_no_array(got: Any) -> None:
    with pytest.raises(InputError, match=r"^labels (does not hold numbers|is not a tensor)"):
        values.array("labels", got)


def test_a_pair_holds_two_of_any_kind() -> None:
    assert values.pair("f", (1, "x"), "count", "word") == (1, "x")
    with pytest.raises(InputError, match=r"^f gives no pair: got tuple of 3, expected a tuple \(count, word\)$"):
        values.pair("f", (1, 2, 3), "count", "word")


def test_words_and_texts_cross_as_bytes() -> None:
    assert values.decode_text(values.word("f", "memory", ("memory", "compute"))) == "memory"
    assert values.decode_text(values.encode_text("α → β")) == "α → β"
    with pytest.raises(InputError, match=r"^f names something else: got str 'disk', expected 'memory' or 'compute'$"):
        values.word("f", "disk", ("memory", "compute"))


def test_columns_are_of_one_length() -> None:
    found = values.columns("f", ([1, 2], np.array([3.0, 4.0])), "x", "y")
    assert [column.dtype for column in found.values()] == [np.float64] * 2
    with pytest.raises(InputError, match="the columns of f differ in length"):
        values.columns("f", ([1, 2], [3]), "x", "y")
    for got in ([[1], [2, 3]], [["a"], ["b"]], np.ones((2, 2)), 1.0):
        with pytest.raises(InputError, match="is not a column of numbers"):
            values.column("x", got)


@pytest.mark.parametrize("value", [0.1, 1e9, 3.0, 1 / 3, 2.0**-30, 123456789.0])
def test_a_number_is_written_so_that_it_comes_back(value: float) -> None:
    assert float(values.write_number(value)) == value


def _unwritten() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("got", "told"),
    [
        (None, "None, as from a function that ends without `return`"),
        (_unwritten(), "generator, as from a function with `yield`: nothing of it has run yet"),
        (torch.ones(2).numel, "builtin_function_or_method numel, which has not been called"),
        (_unwritten, "function _unwritten, which has not been called"),
        ([1, 2, 3], "list of 3"),
        ("x" * 200, "str '" + "x" * 75),
        (torch.ones(2), "Tensor"),
        ({}, "dict"),
    ],
)
def test_a_wrong_value_is_told_by_its_type_and_what_makes_one(got: Any, told: str) -> None:
    assert values.describe_value(got) == told


def test_a_missing_tensor_is_told_with_what_may_have_lost_it() -> None:
    with pytest.raises(
        InputError, match="part is None: got nothing: a function ended without `return`, or no gradient"
    ):
        values.array("part", None)
