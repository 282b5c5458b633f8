"""The product of two tiles, in every dtype that kernels multiply, and what they may count on without a GPU."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import tiles
from mlsys_lab.kernels.triton_language import dot, tl, triton
from mlsys_lab.kernels.triton_launch import launch
from tests.kernels.closeness import assert_near


@triton.jit
def product(a_ptr, b_ptr, c_ptr, ADD: tl.constexpr, PRECISION: tl.constexpr):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    c = tl.load(c_ptr + at) if ADD else None
    tl.store(c_ptr + at, dot(tl.load(a_ptr + at), tl.load(b_ptr + at), c, PRECISION))


@pytest.mark.parametrize("add", (False, True))
@pytest.mark.parametrize("dtype", tiles.DTYPES, ids=str)
def test_dot(dtype, add, device):
    a, b = (torch.randn(16, 16, dtype=dtype, device=device) for _ in "ab")
    c = torch.randn(16, 16, device=device)
    expected = a.double() @ b.double() + (c.double() if add else 0)
    launch(product, (1,), a.device, a, b, c, add, "ieee")
    assert_near(c, expected)


def test_limits_of_an_h100_where_there_is_no_gpu():
    found = tiles.device_limits(torch.device("cpu"))
    assert (found.shared_bytes, found.multiprocessors) == (232_448, 132)


def test_tensors_may_have_any_strides_but_the_last():
    x = torch.zeros(4, 6)
    assert tiles.check_operands(2, x=x[::2], y=x[:, 1:3]) == torch.device("cpu")
    assert tiles.check_operands(2, column=x[:, ::6]) == torch.device("cpu"), "one column has no neighbours"
    with pytest.raises(InputError, match=r"last dimension of y is not contiguous: got strides \(6, 2\); help: y.cont"):
        tiles.check_operands(2, x=x, y=x[:, ::2])
    with pytest.raises(InputError, match="unknown precision: got 'tf64', expected one of ieee, tf32"):
        tiles.check_precision("tf64")
