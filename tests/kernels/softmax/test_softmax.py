"""Softmax in Triton against torch, and what it asks of memory."""

from __future__ import annotations

import math

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.softmax import BLOCK, MAX_WIDTH, STEPS, cost, reference, softmax
from mlsys_lab.kernels.trace.traffic import total
from tests.kernels.closeness import assert_near
from tests.kernels.operators import (
    DTYPES,
    assert_like,
    compiles_whole,
    looked_at,
    reads_and_writes,
    result_gradient,
    with_gradients,
)

SHAPES = [(1,), (1, 1), (0, 4), (17, 1), (3, 7), (67, 5), (2, 2, 1031), (1, BLOCK + 1)]
INF, NAN = math.inf, math.nan


def wanted(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("step", STEPS)
def test_values_and_gradients(step: str, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    x = 3 * torch.randn(shape, dtype=dtype, device=device)
    y, dx = with_gradients(lambda x: softmax(x, step=step), x)
    assert_near(y, wanted(x.double()))
    kept, dy = y.double(), result_gradient(y).double()  # all that the backward pass knows of y is rounded
    assert_near(dx, kept * (dy - (kept * dy).sum(-1, keepdim=True)))
    if dtype == torch.float32:
        assert_like(lambda x: softmax(x, step=step), wanted, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reference_is_softmax(dtype: torch.dtype) -> None:
    assert_like(reference, wanted, torch.randn(5, 31, dtype=dtype))


@pytest.mark.parametrize("step", STEPS)
def test_large_numbers_and_numbers_of_the_last_block(step: str) -> None:
    x = torch.zeros(3, BLOCK + 3)
    x[0, -1], x[1, 0], x[2] = 80.0, 3e38, -3e38  # the maximum comes last, first, nowhere
    y = softmax(x, step=step)
    assert_near(y, wanted(x.double()))
    assert y[0, -1] == 1 and y[1, 0] == 1


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "row", [[-INF, 0, 1], [-INF, -INF, 1], [0, 1, INF], [0, NAN, 1], [-INF] * 3, [NAN, INF, -INF], [NAN] * 3]
)
def test_rows_with_infinities_and_nan_are_those_of_torch(step: str, row: list[float]) -> None:
    x = torch.zeros(3, BLOCK + 3)
    x[1], x[1, :2], x[1, -1] = row[0], torch.tensor(row[:2]), row[2]
    y, want = softmax(x, step=step), wanted(x)
    assert torch.equal(y.isnan(), want.isnan()) and not y[[0, 2]].isnan().any()
    assert_near(y.nan_to_num(), want.nan_to_num())


@pytest.mark.parametrize("step", STEPS)
def test_minus_infinity_for_a_whole_block_is_no_nan(step: str) -> None:
    x = torch.full((1, 2 * BLOCK), -INF)
    x[0, -2:] = torch.tensor([0.0, 1.0])
    assert_near(softmax(x, step=step), wanted(x.double()))


@pytest.mark.parametrize("step", STEPS)
def test_the_operators_are_torchs(step: str) -> None:
    x = torch.randn(5, 7, requires_grad=True)
    torch.library.opcheck(torch.ops.mlsys_lab.softmax.default, (x, step))
    y = softmax(x.detach(), step=step)
    torch.library.opcheck(torch.ops.mlsys_lab.softmax_backward.default, (y, y, step))
    compiles_whole(lambda x: softmax(2 * x, step=step) * 3, [x])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_pass_moves_each_number_once(dtype: torch.dtype) -> None:
    x = torch.randn(9, 517, dtype=dtype, requires_grad=True)
    forward, backward = looked_at(lambda: softmax(x, step="one_pass").sum().backward())
    assert reads_and_writes(forward) == {"x_ptr": (1, 0), "y_ptr": (0, 1)}
    assert reads_and_writes(backward) == {"dy_ptr": (1, 0), "y_ptr": (1, 0), "dx_ptr": (0, 1)}
    assert total(forward).asked_bytes == cost.forward(9, 517, x.itemsize)[1]
    assert total(backward).asked_bytes == cost.backward(9, 517, x.itemsize)[1]


def test_online_reads_twice_as_it_must_know_the_sum_before_the_first_quotient() -> None:
    x = torch.randn(2, BLOCK + 5, requires_grad=True)
    forward, backward = looked_at(lambda: softmax(x, step="online").sum().backward())
    assert reads_and_writes(forward) == {"x_ptr": (2, 0), "y_ptr": (0, 1)}
    assert reads_and_writes(backward) == {"dy_ptr": (2, 0), "y_ptr": (2, 0), "dx_ptr": (0, 1)}


def test_rows_too_wide_for_registers_go_online() -> None:
    x = torch.randn(1, MAX_WIDTH + 1)
    assert [trace.kernel for trace in looked_at(lambda: softmax(x))] == ["online_kernel"]
    assert [trace.kernel for trace in looked_at(lambda: softmax(x[:, :9].contiguous()))] == ["one_pass_kernel"]
    with pytest.raises(InputError, match=f"too wide for one pass: got {MAX_WIDTH + 1}, expected at most {MAX_WIDTH}"):
        softmax(x, step="one_pass")


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (torch.ones(3, 3, dtype=torch.float64), "dtype of x: got torch.float64"),
        (torch.ones(3, 3).T[:2], None),
        (torch.ones(3, 4)[:, ::2], "x is not contiguous"),
        (torch.tensor(1.0), r"no dimension to go along: got shape \(\)"),
        (torch.ones(3, 0), r"rows of x have no elements: got shape \(3, 0\)"),
    ],
)
def test_bad_input_is_one_line(x: torch.Tensor, says: str | None) -> None:
    with pytest.raises(InputError, match=says or "x is not contiguous"):
        softmax(x)


def test_an_unknown_step() -> None:
    with pytest.raises(InputError, match="unknown step: got 'fast', expected one of one_pass, online"):
        softmax(torch.ones(3), step="fast")
