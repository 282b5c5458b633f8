"""x + y in Triton against torch, and what it asks of memory."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.vector_add import cost, triton_steps, vector_add
from tests.kernels.operators import DTYPES, assert_like, compiles_whole, looked_at, reads_and_writes


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return vector_add(x, y, language="triton")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (31,), (1031,), (2049,), (3, 5, 7)])
def test_sum_and_gradients(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    assert_like(add, torch.add, *(torch.randn(shape, dtype=dtype, device=device) for _ in range(2)))


def test_the_operator_is_one_of_torch() -> None:
    x, y = (torch.randn(5, 7, requires_grad=True) for _ in range(2))
    torch.library.opcheck(torch.ops.mlsys_lab.vector_add.default, (x, y))
    compiles_whole(lambda a, b: triton_steps.vector_add(2 * a, b), (x, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_number_moves_once(dtype: torch.dtype) -> None:
    x = torch.ones(5000, dtype=dtype)
    (trace,) = looked_at(lambda: add(x, x + 1))
    assert reads_and_writes(trace) == {"x_ptr": (1, 0), "y_ptr": (1, 0), "z_ptr": (0, 1)}
    assert trace.accesses.size * x.itemsize == cost.min_bytes(5000, x.itemsize)


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (torch.ones(3, dtype=torch.int32), torch.ones(3), "dtype of x: got torch.int32"),
        (torch.ones(3), torch.ones(3).half(), "x and y have two dtypes"),
        (torch.ones(6)[::2], torch.ones(3), "x is not contiguous"),
        (torch.ones(3), torch.ones(3, device="meta"), "x and y are on two devices"),
        (torch.ones(3), torch.ones(4), r"shape of y: got \(4,\), expected \(3,\)"),
    ],
)
def test_bad_input_is_one_line(x: torch.Tensor, y: torch.Tensor, says: str) -> None:
    with pytest.raises(InputError, match=says):
        add(x, y)
