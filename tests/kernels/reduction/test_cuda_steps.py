"""The sum in CUDA C++, emulated; on a GPU where there is one."""

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.reduction import cuda_steps
from tests.kernels.cuda_cpp.tools import needs_gxx

SHAPES = ((1,), (31,), (1021,), (3, 257), (8192,), (70001,), ())


def whole_numbers(shape, device="cpu"):
    """Values whose sums are exact in fp32, in any order."""
    return torch.randint(-8, 9, shape, device=device).float()


@needs_gxx
@pytest.mark.parametrize("step", cuda_steps.STEPS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_step_adds_up(step, shape, emulator):
    x = whole_numbers(shape)
    found = cuda_steps.run(step, x, launch=emulator)
    assert found.shape == () and found.item() == x.sum().item()


@pytest.mark.gpu
@pytest.mark.parametrize("step", cuda_steps.STEPS)
@pytest.mark.parametrize("shape", (*SHAPES, (2**20 + 3,)), ids=str)
def test_on_a_gpu(step, shape):
    x = whole_numbers(shape, "cuda")
    assert cuda_steps.run(step, x).item() == x.sum().item()


@pytest.mark.gpu
def test_one_pass_gives_the_same_bits_each_time():
    x = torch.randn(2**22 + 5, device="cuda")
    assert len({cuda_steps.run("one_pass", x).item() for _ in range(20)}) == 1


@pytest.mark.parametrize("step", cuda_steps.STEPS)
def test_the_sum_of_nothing_is_nought(step):
    assert cuda_steps.run(step, torch.zeros(3, 0)).item() == 0


def test_what_does_not_fit_is_told():
    for step, x, told in (
        ("tree", torch.zeros(2), "unknown step: got 'tree'"),
        ("one_pass", torch.zeros(2, dtype=torch.float64), "dtype of x"),
        ("one_pass", torch.zeros(4, 4).T, "x is not contiguous"),
        ("one_pass", torch.zeros(9)[1:], "x must start at a multiple of 16 bytes"),
    ):
        with pytest.raises(InputError, match=told):
            cuda_steps.run(step, x)
