"""Where the kernels of a test run: in the host's memory on every machine, and on the GPU where there is one."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.kernels.cuda_cpp.emulator import Emulator
from mlsys_lab.kernels.runtime import on_gpu, triton_interprets

IN_TRITON = {
    *("softmax", "norms", "cross_entropy", "attention", "decode_attention", "ragged_attention"),
    *("quantized_matmul",),
    *("triton_steps", "triton_language"),
}
"""Test modules, without `test_`, whose kernels are in Triton."""


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """A device of torch; Triton's kernels run on the CPU only where they are interpreted."""
    name = request.module.__name__.rpartition("test_")[2]
    if name in IN_TRITON and request.param == "cpu" and on_gpu() and not triton_interprets():
        pytest.skip("kernels are compiled in this run: TRITON_INTERPRET=1 interprets them")
    return str(request.param)


@pytest.fixture(autouse=True)
def same_numbers_each_time() -> None:
    """What torch draws in a test is the same in every run."""
    torch.manual_seed(0)


@pytest.fixture(params=(False, True), ids=("first-to-last", "last-to-first"))
def emulator(request: pytest.FixtureRequest) -> Emulator:
    """Runs CUDA C++ on the CPU, its threads in one order and in the other; such tests are marked `needs_gxx`."""
    return Emulator(reversed=request.param)
