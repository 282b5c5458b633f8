"""What the compiler makes of the kernels that work row by row, for an H100: wide loads, few registers, no spills."""

from __future__ import annotations

import pytest

from mlsys_lab.kernels.norms import BACKWARD_THREADS, LAYER_THREADS, RMS_THREADS
from tests.kernels.compiled import Compiled, compiled

LAUNCHES = """
import torch
from mlsys_lab.kernels.cross_entropy import cross_entropy
from mlsys_lab.kernels.norms import layer_norm, rms_norm
from mlsys_lab.kernels.softmax import softmax
from mlsys_lab.kernels.vector_add.triton_steps import vector_add

def matrix(width):
    return torch.empty(4, width, dtype=torch.bfloat16, requires_grad=True)

vector_add(matrix(8192), matrix(8192))
for width in (1024, 8192, 32768):
    y = softmax(matrix(width))
    y.backward(y.detach())
softmax(matrix(32768), step="online")
for width in (1024, 8192, 32768):
    weight, bias = matrix(width)[0].detach().requires_grad_(), matrix(width)[0].detach().requires_grad_()
    for y in (rms_norm(matrix(width), weight), layer_norm(matrix(width), weight, bias)):
        y.backward(y.detach())
logits, targets = matrix(32000), torch.zeros(4, dtype=torch.int64)
loss = cross_entropy(logits, targets)
loss.backward()
cross_entropy(logits * 1, targets, step="in_place")
"""
REGISTERS = 65536
"""Of a multiprocessor of an H100."""


@pytest.fixture(scope="module")
def launches() -> list[Compiled]:
    return compiled(LAUNCHES)


def test_every_kernel_was_compiled(launches: list[Compiled]) -> None:
    assert {launch.kernel for launch in launches} == {
        *("add_kernel", "one_pass_kernel", "one_pass_backward_kernel", "online_kernel", "online_backward_kernel"),
        *("forward_kernel", "backward_kernel", "wide_backward_kernel", "sum_rows_kernel"),
        *("loss_kernel", "gradient_kernel", "in_place_kernel"),
    }


def test_threads_load_and_store_sixteen_bytes_at_a_time(launches: list[Compiled]) -> None:
    for launch in launches:
        pipelined = "cp.async.cg.shared.global" in launch.ptx  # by the copy engine's sixteen bytes instead
        assert pipelined or launch.widest_bytes("ld") == 16, launch.kernel
        few = launch.kernel in ("loss_kernel", "sum_rows_kernel")  # store a number a row or a column
        assert few or launch.widest_bytes("st") == 16, launch.kernel


def test_norms_fetch_the_next_rows_while_they_work(launches: list[Compiled]) -> None:
    for launch in launches:
        if launch.kernel in ("forward_kernel", "backward_kernel") and launch.constants["BLOCK"] != "32768":
            assert "cp.async.cg.shared.global" in launch.ptx, launch.kernel


def test_next_to_nothing_is_spilled(launches: list[Compiled]) -> None:
    """Rows of 32,768 take all registers; there, up to a dozen numbers of a thread are spilled."""
    spilled = {launch.kernel: launch.stack_bytes for launch in launches if launch.stack_bytes}
    assert set(spilled) <= {"forward_kernel", "wide_backward_kernel"} and max(spilled.values(), default=0) <= 48


def test_persistent_programs_have_the_registers_to_run_at_once(launches: list[Compiled]) -> None:
    planned = {"True": LAYER_THREADS, "False": RMS_THREADS}
    for launch in launches:
        programs = REGISTERS // (32 * launch.num_warps * -(-launch.registers // 8) * 8)  # given out by eights
        if launch.kernel == "forward_kernel":
            assert programs >= max(1, planned[launch.constants["CENTRED"]] // (32 * launch.num_warps))
        elif launch.kernel == "backward_kernel":
            assert programs >= BACKWARD_THREADS // (32 * launch.num_warps)
        assert programs >= 1, launch.kernel
