"""a·b in CUDA C++, emulated; on a GPU where there is one."""

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.matmul import cuda_steps
from tests.kernels.cuda_cpp.tools import needs_gxx
from tests.sampling import sample

SIZES = ((1, 1, 1), (37, 29, 41), (131, 67, 261), (132, 40, 264), (33, 8, 16), (1, 1, 50), (50, 1, 1))
EMPTY = ((0, 3, 4), (3, 0, 4), (3, 4, 0))


def factors(step, m, k, n, device="cpu"):
    """Small whole numbers, whose products' sums are exact in fp32; rounded to bf16 at the end where that is asked."""
    dtype = torch.bfloat16 if step == "tensor_cores" else torch.float32
    return (torch.randint(-8, 9, shape, device=device).to(dtype) for shape in ((m, k), (k, n)))


def expected(a, b):
    return (a.double() @ b.double()).to(a.dtype)


@needs_gxx
@pytest.mark.parametrize("step", cuda_steps.STEPS)
@pytest.mark.parametrize("size", sample((*SIZES, *EMPTY), 3), ids=str)
def test_every_step_multiplies(step, size, emulator):
    a, b = factors(step, *size)
    assert torch.equal(cuda_steps.run(step, a, b, launch=emulator), expected(a, b))


@needs_gxx
@pytest.mark.parametrize("tiles", sample((*cuda_steps.TUNED_FP32, *cuda_steps.TUNED_BF16), 4), ids=str)
def test_every_choice_of_tiles_multiplies(tiles, emulator):
    step = "warp_tile" if isinstance(tiles, cuda_steps.Tiles) else "tensor_cores"
    a, b = factors(step, 264, 136, 264)
    assert torch.equal(cuda_steps.run(step, a, b, tiles=tiles, launch=emulator), expected(a, b))


@pytest.mark.gpu
@pytest.mark.parametrize("step", cuda_steps.STEPS)
@pytest.mark.parametrize("size", (*SIZES, *EMPTY, (1021, 509, 1027), (1024, 512, 1536)), ids=str)
def test_on_a_gpu(step, size):
    a, b = factors(step, *size, device="cuda")
    assert torch.equal(cuda_steps.run(step, a, b), expected(a, b))


@pytest.mark.gpu
@pytest.mark.parametrize("tiles", (*cuda_steps.TUNED_FP32, *cuda_steps.TUNED_BF16), ids=str)
def test_every_choice_of_tiles_on_a_gpu(tiles):
    step = "warp_tile" if isinstance(tiles, cuda_steps.Tiles) else "tensor_cores"
    a, b = factors(step, 520, 264, 776, device="cuda")
    assert torch.equal(cuda_steps.run(step, a, b, tiles=tiles), expected(a, b))


def test_what_does_not_fit_is_told():
    a = torch.zeros(4, 8)
    for step, b, told in (
        ("fastest", a, "unknown step: got 'fastest'"),
        ("naive", a, r"shape of b: got \(4, 8\), expected \(8, 8\)"),
        ("naive", a.T, "b is not contiguous"),
        ("naive", torch.zeros(8), "dimensions of b"),
        ("tensor_cores", torch.zeros(8, 4), "dtype of a: got torch.float32, expected torch.bfloat16"),
    ):
        with pytest.raises(InputError, match=told):
            cuda_steps.run(step, a, b)
    with pytest.raises(InputError, match=r"these are no tiles of step 'warp_tile': got TensorTiles.*expected Tiles"):
        cuda_steps.run("warp_tile", a, torch.zeros(8, 4), tiles=cuda_steps.TENSOR_TILES)
    with pytest.raises(InputError, match="these are no tiles of step 'naive'"):
        cuda_steps.run("naive", a, torch.zeros(8, 4), tiles=cuda_steps.WARP_TILE)
