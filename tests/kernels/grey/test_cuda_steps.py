"""Brightness in CUDA C++, emulated; on a GPU where there is one."""

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.grey import cuda_steps, reference
from tests.kernels.cuda_cpp.tools import needs_gxx

SIZES = ((1, 1), (1, 3), (31, 37), (32, 64), (0, 5), (5, 0))


def given_and_expected(step, size, device="cpu"):
    picture = torch.rand(*size, 3, device=device)
    given = picture.permute(2, 0, 1).contiguous() if step == "planar" else picture
    return given, reference(picture)


@needs_gxx
@pytest.mark.parametrize("step", cuda_steps.STEPS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_step_weighs_the_colours(step, size, emulator):
    picture, expected = given_and_expected(step, size)
    torch.testing.assert_close(cuda_steps.run(step, picture, launch=emulator), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("step", cuda_steps.STEPS)
@pytest.mark.parametrize("size", (*SIZES, (1021, 509)), ids=str)
def test_on_a_gpu(step, size):
    picture, expected = given_and_expected(step, size, "cuda")
    torch.testing.assert_close(cuda_steps.run(step, picture), expected)


def test_what_does_not_fit_is_told():
    picture = torch.zeros(4, 5, 3)
    for step, given, told in (
        ("grey", picture, "unknown step: got 'grey'"),
        ("planar", picture, r"channels of a picture for step 'planar': got \(4, 5, 3\)"),
        ("interleaved", picture[0], "dimensions of picture"),
        ("interleaved", picture.half(), "dtype of picture"),
        ("interleaved", picture.permute(1, 0, 2), "picture is not contiguous"),
        ("vectorised", torch.zeros(61)[1:].view(4, 5, 3), "must start at a multiple of 16 bytes"),
    ):
        with pytest.raises(InputError, match=told):
            cuda_steps.run(step, given)
