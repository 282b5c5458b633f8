"""The emulator tells right kernels from wrong ones: each of these is a step with one line spoilt."""

from pathlib import Path

import pytest
import torch

from mlsys_lab.kernels import cuda_cpp
from mlsys_lab.kernels.matmul import cuda_steps as matmul
from mlsys_lab.kernels.reduction import cuda_steps as reduction
from mlsys_lab.kernels.transpose import cuda_steps as transpose
from tests.kernels.cuda_cpp.emulator import Emulator, needs_gxx

pytestmark = needs_gxx


class Spoilt:
    """Runs a source with one text in the place of another, in both orders; `wrong` if the result is in either."""

    def __init__(self, folder: Path, before: str, after: str) -> None:
        self.folder, self.before, self.after, self.changed = folder, before, after, False

    def launcher(self, reversed: bool):
        run = Emulator(self.folder, reversed)

        def launch(source, kernel, *rest, **named):
            self.changed |= self.before in source.text
            run(cuda_cpp.Source(source.text.replace(self.before, self.after), source.name), kernel, *rest, **named)

        return launch

    def wrong(self, call, expected: torch.Tensor) -> bool:
        found = [call(self.launcher(order)) for order in (False, True)]
        assert self.changed, "the text to spoil is not in the source"
        return not all(torch.equal(one, expected) for one in found)


@pytest.mark.parametrize(
    ("step", "before", "after"),
    (
        ("tiled", "    __syncthreads();\n", ""),
        ("padded", "tile[threadIdx.x][k]", "tile[k][threadIdx.x]"),
        ("vectorised", "tx ^ (ty & 7)", "tx"),
    ),
)
def test_of_transpose(step, before, after, emulated_kernels):
    x = torch.randn(70, 40)
    assert Spoilt(emulated_kernels, before, after).wrong(lambda launch: transpose.run(step, x, launch=launch), x.T)


@pytest.mark.parametrize(
    ("step", "before", "after"),
    (
        ("interleaved", "    __syncthreads();\n", ""),
        ("sequential", "t < apart", "t <= apart"),
        ("warp_shuffle", "int apart = 16", "int apart = 8"),
        ("one_pass", "gridDim.x - 1", "gridDim.x - 2"),
    ),
)
def test_of_reduction(step, before, after, emulated_kernels):
    x = torch.arange(5000.0).remainder(7)
    spoilt = Spoilt(emulated_kernels, before, after)
    assert spoilt.wrong(lambda launch: reduction.run(step, x, launch=launch), x.sum())


@pytest.mark.parametrize(
    ("step", "before", "after"),
    (
        ("shared_tile", "        __syncthreads();\n    }\n    if", "    }\n    if"),
        ("warp_tile", "        __syncthreads();\n    }\n    write", "    }\n    write"),
        ("tensor_cores", "cp_async_wait<STAGES - 2>();", ""),
        ("tensor_cores", "cp_async_wait<STAGES - 2>();", "cp_async_wait<STAGES - 1>();"),
        ("tensor_cores", "        __syncthreads();  // this", "  // this"),
        ("tensor_cores", "ldmatrix_x4_transposed(b", "ldmatrix_x4(b"),
        ("tensor_cores", "now.b[s / 2][s % 2 * 2],", "now.b[s / 2][s % 2],"),
    ),
)
def test_of_matmul(step, before, after, emulated_kernels):
    dtype = torch.bfloat16 if step == "tensor_cores" else torch.float32
    a, b = torch.randint(-4, 5, (72, 200)).to(dtype), torch.randint(-4, 5, (200, 40)).to(dtype)
    spoilt = Spoilt(emulated_kernels, before, after)
    assert spoilt.wrong(lambda launch: matmul.run(step, a, b, launch=launch), (a.double() @ b.double()).to(dtype))


def test_a_store_beyond_the_end_is_told(emulated_kernels):
    source = cuda_cpp.Source("__global__ void f(float* x, int n) { x[threadIdx.x] = 1.0f; }")
    with pytest.raises(AssertionError, match="f wrote beyond a tensor"):
        Emulator(emulated_kernels)(source, "f", (1,), (8,), torch.zeros(7), 7)


def test_a_barrier_that_not_all_reach_is_told(emulated_kernels):
    text = "__global__ void f(int n) { if (threadIdx.x < n) __syncthreads(); else __syncwarp(); }"
    with pytest.raises(AssertionError, match="threads wait at a barrier"):
        Emulator(emulated_kernels)(cuda_cpp.Source(text), "f", (1,), (64,), 40)
