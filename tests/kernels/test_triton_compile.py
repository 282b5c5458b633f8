"""Triton's compiler is asked without a GPU: what it refuses is told at its line; the interpreter works on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from mlsys_checks.sandboxed.kernels.loading import load_kernels
from mlsys_lab.errors import InputError
from mlsys_lab.kernels import triton_compile
from mlsys_lab.kernels.softmax.triton_kernels import one_pass_kernel
from mlsys_lab.kernels.trace.triton_interpreter import record
from mlsys_lab.kernels.triton_compile import check_compiles
from mlsys_lab.kernels.triton_language import tl, triton
from mlsys_lab.stack.artifact import Artifact, Cell

SCALE = 3
MARKED = tl.constexpr(4)


@triton.jit
def scaled(x):
    return x * SCALE + x.sum() + tl.cdiv(SCALE, 2) * MARKED


@triton.jit
def fine(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, scaled(tl.load(x_ptr + at, mask=at < n, other=0.0)), mask=at < n)


@triton.jit
def asks_about_a_block(x):
    if x > 0:
        x += 1
    return x


@triton.jit
def calls_it(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, asks_about_a_block(tl.load(x_ptr + at)))


@triton.jit
def changes_its_shape(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = 0.0
    for _ in range(0, n):
        total += tl.load(x_ptr + at)
    tl.store(y_ptr + at, total)


@triton.jit
def breaks(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    for i in range(0, n):
        tl.store(y_ptr + i, tl.load(x_ptr + i))
        if i > 2:
            break


@triton.jit
def defines_in_one_branch(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    if n > 2:
        x = tl.load(x_ptr)
    tl.store(y_ptr, x)


@triton.jit
def has_another_type(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    x = tl.load(x_ptr)
    for _ in range(0, n):
        x = x.to(tl.float32)
    tl.store(y_ptr, x)


@triton.jit
def adds_along_no_axis(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.sum(tl.load(x_ptr + at), axis=1))


def arguments(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, int]:
    return torch.ones(8, dtype=dtype), torch.zeros(8, dtype=dtype), 4


@pytest.mark.parametrize(
    ("kernel", "line", "said"),
    [
        (changes_its_shape, "for _ in range(0, n):", "Loop-carried variable total has initial type fp32"),
        (breaks, "break", "Break"),
        (defines_in_one_branch, "tl.store(y_ptr, x)", "x is not defined"),
    ],
)
def test_what_only_the_interpreter_takes_is_refused_at_its_line_in_tritons_words(kernel, line: str, said: str) -> None:
    x, y, n = arguments()
    record(kernel, 1, x, y, n, BLOCK=8)
    with pytest.raises(InputError) as refused:
        check_compiles(kernel, x, y, n, BLOCK=8)
    assert f"Triton refuses to compile `{kernel.fn.__name__}` for a GPU at line " in refused.value.what
    assert refused.value.what.endswith(f"`{line}`")
    assert said in str(refused.value.got)


def test_a_block_is_not_true_or_false_for_the_compiler_nor_for_the_interpreter() -> None:
    x, y, n = arguments()
    with pytest.raises(InputError, match=r"(?s)`if x > 0:`.*more than one value is ambiguous"):
        check_compiles(calls_it, x, y, n, BLOCK=8)
    with pytest.raises(InputError, match="`if x > 0:`: got ValueError: 8 elements are not true or false as one"):
        record(calls_it, 1, x, y, n, BLOCK=8)


def test_a_mistake_in_a_call_of_tritons_library_is_told_at_the_line_of_the_call() -> None:
    x, y, n = arguments()
    with pytest.raises(InputError, match=r"`tl\.store\(y_ptr \+ at, tl\.sum\(tl\.load\(x_ptr \+ at\), axis=1\)\)`"):
        check_compiles(adds_along_no_axis, x, y, n, BLOCK=8)


def test_the_types_of_the_launch_count() -> None:
    check_compiles(has_another_type, *arguments(), BLOCK=8)
    with pytest.raises(InputError, match="initial type fp16 but is re-assigned to fp32"):
        check_compiles(has_another_type, *arguments(torch.float16), BLOCK=8)


@triton.jit
def is_annotated(x_ptr: torch.Tensor, y_ptr: None, n: int, BLOCK: tl.constexpr = 8) -> None:
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n, other=0.0), mask=at < n)


@triton.jit
def has_an_integer_for_a_pointer(x_ptr: int, y_ptr, n, BLOCK: tl.constexpr):
    tl.store(y_ptr + tl.arange(0, BLOCK), 1.0)


@triton.jit
def has_an_integer_for_a_fraction(x_ptr, y_ptr, n: tl.int32, BLOCK: tl.constexpr):
    tl.store(y_ptr + tl.arange(0, BLOCK), n)


def test_annotations_are_types_for_the_compiler_or_nothing() -> None:
    x, y, n = arguments()
    record(is_annotated, 1, x, y, n, BLOCK=8)
    assert y.tolist() == [1.0] * 4 + [0.0] * 4
    check_compiles(is_annotated, x, y, n, BLOCK=8)
    check_compiles(is_annotated, x, y, n)
    with pytest.raises(
        InputError, match=r"parameter `x_ptr` is annotated with a type .*got i32, expected \*fp32, or no"
    ):
        check_compiles(has_an_integer_for_a_pointer, x, y, n, BLOCK=8)
    with pytest.raises(InputError, match=r"`n` is annotated with a type .*got i32, expected fp32, or no"):
        check_compiles(has_an_integer_for_a_fraction, x, y, 0.5, BLOCK=8)


def test_a_kernel_is_interpreted_as_before_and_compiles_after_that_too() -> None:
    x, y, n = arguments()
    for _ in range(2):
        check_compiles(fine, x, y, n, BLOCK=8)
        record(fine, 1, x, y, n, BLOCK=8)
        assert y.tolist() == [15.0] * 4 + [0.0] * 4  # 1 · 3 + 4 + 2 · 4, of the four that are loaded
        triton_compile._accepted.clear()


@pytest.mark.weekly
def test_all_of_this_holds_where_triton_was_imported_to_compile() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-m", "pytest", "-q", __file__, "-k", "not imported_to_compile"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout


def test_a_kernel_of_the_package_that_calls_another_compiles() -> None:
    x = torch.ones(4, 100)
    check_compiles(one_pass_kernel, x, torch.empty_like(x), 4, 100, ROWS=1, BLOCK=128)


def test_what_was_accepted_is_not_compiled_again_until_something_of_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    original = triton_compile._compile
    monkeypatch.setattr(triton_compile, "_compile", lambda *given: (compiled.append(given), original(*given)))
    monkeypatch.setattr(triton_compile, "_accepted", {})
    for n in (4, 7):  # a number is no part of the compiled kernel
        check_compiles(fine, torch.ones(8), torch.ones(8), n, BLOCK=8)
    assert len(compiled) == 1
    check_compiles(fine, torch.ones(8), torch.ones(8), 4, BLOCK=16)
    check_compiles(fine, *arguments(torch.float16), BLOCK=8)
    monkeypatch.setattr(f"{__name__}.SCALE", 5)
    check_compiles(fine, *arguments(), BLOCK=8)
    assert len(compiled) == 4


def test_of_a_learners_module_the_checked_text_is_compiled_and_told_by_cells() -> None:
    text = """\
#| export
@triton.jit
def kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):

    # two lines that a compiler does not see
    for i in range(0, n):
        break
"""
    module = load_kernels(Artifact("lab.ipynb", (Cell(3, "#| export\nimport triton"), Cell(7, text))))
    with pytest.raises(InputError, match="at cell 7, line 7 `break`"):
        check_compiles(module.kernel, *arguments(), BLOCK=8)
