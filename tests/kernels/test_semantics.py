"""The recorder computes what the compiler's instructions mean, or refuses what the compiler refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.trace.triton_interpreter import record
from mlsys_lab.kernels.triton_language import tl, triton
from tests.kernels.ptx import execute
from tests.kernels.semantics import operations, table
from tests.sampling import keep

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, Triton compiles")


@pytest.mark.parametrize("every", keep([21, 1], [21]))
def test_an_operation_means_what_its_instructions_mean(every: int) -> None:
    outcomes = table(every)
    assert every * len(outcomes) >= len(list(operations())) > 400
    assert [str(one) for one in outcomes if one.mismatches] == []
    computed = [one for one in outcomes if not one.verdict.startswith("refused")]
    assert every * len(computed) > 300 and all(one.values >= 32 for one in computed)


def test_an_instruction_without_a_meaning_is_no_agreement() -> None:
    code = "{\nld.global.b32 { %r1 }, [ %rd1 + 0 ];\nstrange.f32 %r2, %r1;\nst.global.b32 [ %rd2 + 0 ], { %r2 };\n}"
    with pytest.raises(AssertionError, match=r"no meaning is known for strange\.f32"):
        execute(code, [np.zeros(32, dtype=np.uint64)])


@triton.jit
def special(x_ptr, whole_ptr, y_ptr, z_ptr):
    i = tl.arange(0, 4)
    x, whole = tl.load(x_ptr + i), tl.load(whole_ptr + i)
    tl.store(y_ptr + i, tl.maximum(x, 0.0))
    tl.store(y_ptr + 4 + i, tl.where(i < 2, whole.to(tl.bfloat16), 1.0).to(tl.float32))
    tl.store(z_ptr + i, x)
    tl.store(z_ptr + 4 + i, tl.full((4,), 1.5, tl.bfloat16))


def test_nan_rounding_and_bfloat16_worked_out_by_hand() -> None:
    x, whole = torch.tensor([torch.nan, -1.0, 2.0, 1 + 1.9 / 128]), torch.tensor([257, 259, 0, 0], dtype=torch.int32)
    y, z = torch.zeros(8), torch.zeros(8, dtype=torch.bfloat16)
    record(special, 1, x, whole, y, z)
    assert y.tolist() == [0, 0, 2, x[3], 256, 260, 1, 1]  # of 257 and 259 bfloat16 keeps 8 bits, ties to even
    assert z[1:].tolist() == [-1, 2, 1.015625, 1.5, 1.5, 1.5, 1.5] and z[0].isnan()


@triton.jit
def doubled(x_ptr):
    x = tl.load(x_ptr)
    tl.store(x_ptr, x + x)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_arithmetic_that_the_compiler_refuses_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(InputError, match=r"no arithmetic for fp8\w+; help: x\.to\(tl\.float32\) after the load"):
        record(doubled, 1, torch.ones(1).to(dtype))
