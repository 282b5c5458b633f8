"""xᵀ in CUDA C++, emulated; on a GPU where there is one."""

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.transpose import cuda_steps
from tests.kernels.cuda_cpp.tools import needs_gxx

SHAPES = ((1, 1), (1, 37), (101, 1), (67, 131), (64, 128), (68, 4), (0, 3), (5, 0))


@needs_gxx
@pytest.mark.parametrize("step", cuda_steps.STEPS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_step_transposes(step, shape, emulator):
    x = torch.randn(shape)
    y = cuda_steps.run(step, x, launch=emulator)
    assert y.is_contiguous() and torch.equal(y, x.T)


@pytest.mark.gpu
@pytest.mark.parametrize("step", cuda_steps.STEPS)
@pytest.mark.parametrize("shape", (*SHAPES, (1021, 2048)), ids=str)
def test_on_a_gpu(step, shape):
    x = torch.randn(shape, device="cuda")
    assert torch.equal(cuda_steps.run(step, x), x.T)


@needs_gxx
def test_a_matrix_that_starts_anywhere_is_moved_number_by_number(emulator):
    launched = []

    def launch(source, kernel, *rest):
        launched.append(kernel)
        emulator(source, kernel, *rest)

    x = torch.randn(4 * 8 + 1)[1:].view(4, 8)
    assert torch.equal(cuda_steps.run("vectorised", x, launch=launch), x.T)
    assert torch.equal(cuda_steps.run("vectorised", x.clone(), launch=launch), x.T)
    assert launched == ["vectorised<false>", "vectorised<true>"]


def test_what_does_not_fit_is_told():
    for step, x, told in (
        ("turned", torch.zeros(2, 2), "unknown step: got 'turned'"),
        ("tiled", torch.zeros(2, 2, dtype=torch.float16), "dtype of x"),
        ("tiled", torch.zeros(2, 3).T, "x is not contiguous"),
        ("tiled", torch.zeros(2), "dimensions of x"),
    ):
        with pytest.raises(InputError, match=told):
            cuda_steps.run(step, x)
