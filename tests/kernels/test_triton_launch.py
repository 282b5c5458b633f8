"""Launches of Triton kernels where something else has imported Triton first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.trace.triton_interpreter import record
from mlsys_lab.kernels.triton_compile import check_compiles
from mlsys_lab.kernels.triton_language import tl, triton
from mlsys_lab.kernels.triton_launch import launch

ROOT = Path(__file__).parents[2]
OPTIMIZER_FIRST = """
import torch
torch.optim.SGD([torch.zeros(1, requires_grad=True)])
import sys
assert "triton" in sys.modules, "torch no longer imports Triton here: this test can go"
from mlsys_lab.kernels.softmax import softmax
from mlsys_lab.kernels.trace.triton_interpreter import record_launches
x = torch.arange(12.0).reshape(3, 4)
once = softmax(x)
with record_launches() as traces:
    again = softmax(x)
assert torch.allclose(once, torch.softmax(x, -1)) and torch.equal(once, again)
assert len(traces[0].accesses) == 24
"""


@pytest.mark.weekly
@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, Triton compiles")
def test_an_optimizer_of_torch_may_come_before_the_first_kernel() -> None:
    ran = subprocess.run([sys.executable, "-c", OPTIMIZER_FIRST], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@triton.jit
def doubled(x_ptr, y_ptr):
    x = tl.load(x_ptr)
    tl.store(y_ptr, x + x)


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, Triton compiles")
def test_arithmetic_on_the_bits_of_bfloat16_is_refused() -> None:
    x, y = torch.ones(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16)
    says = r"cannot calculate with bfloat16; help: x\.to\(tl\.float32\) after the load"
    with pytest.raises(InputError, match=says):
        launch(doubled, (1,), x.device, x, y)
    with pytest.raises(InputError, match=says):
        record(doubled, 1, x, y)
    launch(doubled, (1,), x.device, x.float(), y)
    assert y == 2


@triton.jit
def with_bfloat16(x_ptr, y_ptr, HOW: tl.constexpr):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    x = tl.load(x_ptr + at).to(tl.bfloat16)
    if HOW == "dot":
        y = tl.dot(x, x)
    elif HOW == "sum":
        y = tl.sum(x, axis=1)[:, None] + tl.zeros((16, 16), tl.float32)
    else:
        y = tl.fma(x, x, x)
    tl.store(y_ptr + at, y)


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, Triton compiles")
@pytest.mark.parametrize("how", ["dot", "sum", "fma"])
def test_so_are_products_and_sums_of_such_bits(how: str) -> None:
    x, y = torch.randn(16, 16), torch.zeros(16, 16)
    with pytest.raises(InputError, match="cannot calculate with bfloat16"):
        record(with_bfloat16, 1, x, y, HOW=how)


@triton.jit
def of_methods(x_ptr, y_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    powers = (x - x.max(axis=0)).exp()
    tl.store(y_ptr + tl.arange(0, BLOCK), (powers / powers.sum(axis=0)).sqrt())


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, Triton compiles")
def test_blocks_have_the_functions_of_mathematics_as_methods() -> None:
    x, y = torch.randn(8), torch.zeros(8)
    launch(of_methods, (1,), x.device, x, y, BLOCK=8)
    assert torch.allclose(y, torch.softmax(x, 0).sqrt())
    record(of_methods, 1, x, y.zero_(), BLOCK=8)
    assert torch.allclose(y, torch.softmax(x, 0).sqrt())


four = tl.constexpr(4)


@triton.jit
def with_a_constant_on_the_left(x_ptr, y_ptr):
    at = tl.arange(0, 8)
    x = tl.load(x_ptr + at)
    y = four * x + (four - x) - four // x + four % x + (four | x) + (four << x) + (-four) * four * x
    tl.store(y_ptr + at, tl.where((four <= x) & (four != x), y, x))


def test_a_constant_on_the_left_of_a_block_calculates_as_on_its_right() -> None:
    x, y = torch.arange(1, 9, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    record(with_a_constant_on_the_left, 1, x, y, outputs="y_ptr")
    check_compiles(with_a_constant_on_the_left, x, y)
    want = 4 * x + (4 - x) - 4 // x + 4 % x + (4 | x) + (4 << x) - 16 * x
    assert torch.equal(y, torch.where(x > 4, want, x))
    assert isinstance(four * four, tl.constexpr) and bool(four == 4)
