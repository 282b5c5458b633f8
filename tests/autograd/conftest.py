"""The oracle that all operations are held to: torch's own autograd, and finite differences in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mlsys_lab.autograd import Tensor, gradcheck

torch.set_num_threads(1)  # arrays here are tiny; threads that wait for each other are all the time there is

# Both sides run the same kernels or the same sums in another order: some units in the last place.
TOLERANCE = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-12},
    torch.float32: {"rtol": 2e-5, "atol": 2e-5},
}
DIFFERENCES = 1e-6  # truncation h² and rounding 1e-16/h, times derivatives of up to about 100


def draw(*shape: int, dtype: torch.dtype = torch.float64, positive: bool = False) -> torch.Tensor:
    """Standard normal numbers, the same for the same shape; positive ones lie in [0.5, 2]."""
    generator = torch.Generator().manual_seed(sum((i + 1) * n for i, n in enumerate(shape)))
    if positive:
        return torch.rand(shape, generator=generator, dtype=dtype) * 1.5 + 0.5
    return torch.randn(shape, generator=generator, dtype=dtype)


def agree(
    ours: Callable[..., Tensor], theirs: Callable[..., torch.Tensor], *arrays: torch.Tensor, smooth: bool = True
) -> None:
    """Same result, same gradients as torch; and, for smooth functions of few float64 numbers, as finite differences."""
    tensors = [Tensor(array.clone(), requires_grad=True) for array in arrays]
    leaves = [array.clone().requires_grad_() for array in arrays]
    got, expected = ours(*tensors), theirs(*leaves)
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(got.data, expected.detach(), **tolerance)
    assert not got.data.requires_grad
    cotangent = draw(*expected.shape, dtype=expected.dtype)
    got.backward(cotangent)
    expected.backward(cotangent)
    for tensor, leaf in zip(tensors, leaves, strict=True):
        assert tensor.grad is not None and not tensor.grad.requires_grad
        torch.testing.assert_close(tensor.grad, leaf.grad, **tolerance)
    if smooth and all(array.dtype == torch.float64 for array in arrays) and sum(map(torch.numel, arrays)) <= 60:
        assert gradcheck(ours, *(Tensor(array, requires_grad=True) for array in arrays)) < DIFFERENCES


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="session", name="agree")
def agree_fixture() -> Callable[..., None]:
    return agree


@pytest.fixture(scope="session", name="draw")
def draw_fixture() -> Callable[..., torch.Tensor]:
    return draw
