"""The whole microscope on kernels that have one thing wrong each: what it says, with the line of source."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numba import cuda, float32

from mlsys_lab.kernels.runtime import load_triton
from mlsys_lab.kernels.trace import triton_interpreter
from mlsys_lab.kernels.trace.numba_simulator import record
from mlsys_lab.kernels.trace.report import Report, report

triton, tl = load_triton()


@cuda.jit
def copy_without_guard(x: Any, y: Any) -> None:
    i = cuda.grid(1)
    y[i] = x[i]  # the copy


@cuda.jit
def neighbours(x: Any, y: Any, wait: bool) -> None:
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]  # the store
    if wait:
        cuda.syncthreads()
    y[t] = s[(t + 1) % 64]  # the load


@cuda.jit
def sum_of_all(x: Any, out: Any, atomic: bool) -> None:
    i = cuda.grid(1)
    if atomic:
        cuda.atomic.add(out, 0, x[i])
    else:
        out[0] += x[i]  # the sum


@cuda.jit
def barrier_for_some(x: Any, y: Any) -> None:
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    if t < 48:
        cuda.syncthreads()  # the barrier
    y[t] = s[t]  # what follows


@cuda.jit
def transposed(x: Any, y: Any, padded: bool) -> None:
    tile = cuda.shared.array((32, 32), float32)
    wide = cuda.shared.array((32, 33), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    if padded:
        wide[ty, tx] = x[ty, tx]
    else:
        tile[ty, tx] = x[ty, tx]
    cuda.syncthreads()
    y[ty, tx] = wide[tx, ty] if padded else tile[tx, ty]  # the column


@cuda.jit
def by_columns(x: Any, y: Any) -> None:
    i = cuda.grid(1)
    for j in range(x.shape[1]):
        y[i, j] = x[i, j]  # a row each


@cuda.jit
def rows_and_columns(x: Any) -> None:
    i, j = cuda.grid(2)
    x[i, j] = 0  # the store


@triton.jit
def copy_without_mask(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at))  # the copy


@triton.jit
def one_sum(x, out, BLOCK: tl.constexpr):
    total = tl.sum(tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)))
    tl.store(out, tl.load(out) + total)  # the sum


def line(kernel: Any, mark: str) -> str:
    """How the microscope names the line of a kernel that ends with this comment."""
    lines, first = inspect.getsourcelines(getattr(kernel, "py_func", None) or kernel.fn)
    (at,) = [number for number, text in enumerate(lines) if text.rstrip().endswith(f"# {mark}")]
    return f"line {first + at} `{lines[at].strip()}`"


def seen(kernel: Any, grid: Any, block: Any, *args: Any, outputs: tuple[str, ...] = ("y",)) -> Report:
    return report(record(kernel, grid, block, *args, outputs=outputs))


X = np.arange(1024, dtype=np.float32)


def test_threads_beyond_the_end() -> None:
    x = X[:35]
    found = seen(copy_without_guard, 2, 32, x, np.empty_like(x))
    first = "(first: block 1 thread 3, element 35 of 35)"
    what = f"{line(copy_without_guard, 'the copy')}: 29 of 64 threads {{}} beyond the end of {{}} {first}"
    assert sorted(found.problems) == [what.format("read", "x"), what.format("write", "y")]


def test_a_missing_barrier() -> None:
    y = np.empty(64, np.float32)
    (problem,) = [one for one in seen(neighbours, 1, 64, X[:64], y, False).problems if "barrier" in one]
    assert problem.startswith(
        f"{line(neighbours, 'the store')} and {line(neighbours, 'the load')}: block 0 thread 0 writes"
    )
    assert problem.endswith("thread 63 reads it, with no barrier between (and so on for 64 elements)")
    assert seen(neighbours, 1, 64, X[:64], y, True).problems == ()


def test_a_sum_that_needs_an_atomic() -> None:
    out = np.zeros(1, np.float32)
    problems = seen(sum_of_all, 2, 32, X[:64], out, False, outputs=()).problems
    assert problems and all(one.startswith(line(sum_of_all, "the sum")) for one in problems)
    assert [one.endswith("nothing orders them") for one in problems].count(True) == 1
    assert seen(sum_of_all, 2, 32, X[:64], out, True, outputs=()).problems == ()


def test_a_barrier_that_some_threads_pass_by() -> None:
    found = seen(barrier_for_some, 1, 64, X[:64], np.empty(64, np.float32))
    assert found.problems == (
        f"{line(barrier_for_some, 'the barrier')}: 48 threads of block 0 wait here, thread 48 goes on at "
        f"{line(barrier_for_some, 'what follows')} (16 in this block, 1 block)",
    )


@pytest.mark.parametrize("padded", [False, True])
def test_a_column_of_shared_memory(padded: bool) -> None:
    x, y = X.reshape(32, 32), np.empty((32, 32), np.float32)
    found = seen(transposed, 1, (32, 32), x, y, padded)
    assert (y == x.T).all() and found.problems == ()
    assert [one.taken for one in found.conflicts] == [32, 32 if padded else 1024]
    slow = f"{line(transposed, 'the column')}: warps read tile in up to 32 passes a request where 1 would do"
    assert [one[: len(slow)] for one in found.costs] == ([] if padded else [slow])


def test_rows_that_lie_apart() -> None:
    x, y = X.reshape(32, 32), np.empty((32, 32), np.float32)
    found = seen(by_columns, 1, 32, x, y)
    assert found.problems == ()
    assert [(one.buffer, one.taken, one.ideal) for one in found.coalescing] == [("x", 1024, 128), ("y", 1024, 128)]
    assert [(one.both.ratio, one.both.sector_ratio) for one in found.traffic] == [(1.0, 8.0)] * 2
    place = line(by_columns, "a row each")
    assert all(one.startswith(f"{place}: warps") and "32 sectors a request where 4" in one for one in found.costs)


def test_threads_of_several_dimensions_are_named_by_all_of_them() -> None:
    found = seen(rows_and_columns, (2, 2), (4, 8), np.zeros((8, 15), np.float32), outputs=())
    (fault,) = found.problems
    # Column 15 of row 7 lies behind the array, that of a row before is the next row's first element.
    assert fault == (
        f"{line(rows_and_columns, 'the store')}: 1 of 128 threads write beyond the end of x "
        "(first: block (1, 1) thread (3, 7), element (8, 0) of (8, 15))"
    )
    written = "block (0, 0) thread (1, 0) writes element (1, 0) of (8, 15) of x, block (0, 1) thread (0, 7) writes it"
    assert any(f"{written}, the same value" in one for one in found.costs)


def test_triton_has_programs_and_lanes() -> None:
    x = torch.arange(35.0)
    found = report(triton_interpreter.record(copy_without_mask, 2, x, torch.empty(35), BLOCK=32, outputs=("y",)))
    first = "(first: program 1 lane 3, element 35 of 35)"
    what = f"{line(copy_without_mask, 'the copy')}: 29 of 64 lanes {{}} beyond the end of {{}} {first}"
    assert sorted(found.problems) == [what.format("read", "x"), what.format("write", "y")]


def test_programs_are_in_no_order() -> None:
    found = report(triton_interpreter.record(one_sum, 2, torch.arange(64.0), torch.zeros(1), BLOCK=32))
    assert found.problems == (
        f"{line(one_sum, 'the sum')}: program 0 lane 0 writes element 0 of 1 of out, program 1 lane 0 reads it, "
        "and nothing orders them",
    )


def test_the_readmes_example_says_what_stands_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    example = re.search(r"^```python\n(.*?)^```.*?^```\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    assert example
    script = tmp_path / "own.py"
    script.write_text(example[1], encoding="utf-8")
    monkeypatch.setenv("COLUMNS", "200")
    runpy.run_path(str(script))
    said = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in said if line.startswith(("wrong", "slow"))] == example[2].splitlines()
