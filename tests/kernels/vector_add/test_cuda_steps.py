"""x + y in CUDA C++, emulated; on a GPU where there is one."""

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.vector_add import cuda_steps
from tests.kernels.cuda_cpp.tools import needs_gxx

SHAPES = ((1,), (3,), (1021,), (4, 257), (2048,), (0,), (3, 0), ())


@needs_gxx
@pytest.mark.parametrize("step", cuda_steps.STEPS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_step_adds(step, shape, emulator):
    x, y = torch.randn(shape), torch.randn(shape)
    assert torch.equal(cuda_steps.run(step, x, y, launch=emulator), x + y)


@pytest.mark.gpu
@pytest.mark.parametrize("step", cuda_steps.STEPS)
@pytest.mark.parametrize("shape", (*SHAPES, (2**20 + 3,)), ids=str)
def test_on_a_gpu(step, shape):
    x, y = torch.randn(shape, device="cuda"), torch.randn(shape, device="cuda")
    assert torch.equal(cuda_steps.run(step, x, y), x + y)


def test_what_does_not_fit_is_told():
    x = torch.zeros(9)
    for step, y, told in (
        ("fast", x, "unknown step: got 'fast', expected one of naive, grid_stride, vectorised"),
        ("naive", x.double(), "dtype of y: got torch.float64"),
        ("naive", torch.zeros(8), "shape of y"),
        ("naive", torch.zeros(9, 2)[:, 0], "y is not contiguous"),
        ("naive", x.to("meta"), "x and y are on two devices"),
    ):
        with pytest.raises(InputError, match=told):
            cuda_steps.run(step, x, y)
    with pytest.raises(InputError, match="must start at a multiple of 16 bytes"):
        cuda_steps.run("vectorised", torch.zeros(9)[1:], torch.zeros(8))
