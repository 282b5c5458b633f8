"""Lab 03: where figures in the text come from, what messages say, and what is timed on a GPU, here emulated."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mlsys_checks.runner import run_check
from mlsys_checks.sandboxed import cuda as calls
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.trees import flatten
from mlsys_checks.trusted.compare import tolerance
from mlsys_checks.trusted.cuda.comparison import WRONG, agree, limits
from mlsys_checks.trusted.cuda.generators import TREE_ACCESSES, TREE_REQUESTS
from mlsys_lab.errors import CourseError
from mlsys_lab.hardware import device
from mlsys_lab.kernels.cuda_cpp import Emulator, compile_cuda
from mlsys_lab.kernels.trace.banks import BANKS
from mlsys_lab.kernels.trace.events import WARP
from mlsys_lab.kernels.trace.sectors import SECTOR_BYTES
from tests.kernels.cuda_cpp.tools import needs_gxx
from tests.labs.figures import assert_held, texts_of
from tests.labs.harness import kernels_of, module_of
from tests.labs.slips import lab_of

LAB = lab_of("cuda")
TIMED = {check.name: check.performance for check in LAB.checks.checks if check.performance is not None}
NUMBER = 4
"""Bytes of a number in fp32."""
CHAPTER = (
    "two 4,092 × 4,092 matrices on an RTX A6000",
    "reaches 309 GFLOP/s. Exchanging two indices takes it to 1,987; loading tiles through shared memory to 2,980",
    "NVIDIA's cuBLAS reaches 23,250",
    "the worklog's step from 309 to 1,987 GFLOP/s",
)
"""Published figures, which chapter 05 quotes too."""
IN_CODE = (
    "For 2,048 elements and 256 threads each thread has 8 neighbouring elements",
    "product with m = n = 32 and k = 64",
    "here k is only 64",
    "A warp reads a column of 32 numbers from a tile with 34 columns",
    "With 34 columns, two rows share each bank",
)
GIVEN = (
    "A side of 32 takes all 1,024 threads that a block may have",
    "with 64 × 16 and 16 × 64 numbers, for example",
    "[lab 02](02-gpu-model.ipynb). Background: [chapter 05](../chapters/05-cuda.md)",
    "`WINDOW` is `THREADS + 2`",
    "matrices of more than 2³² elements",
    "4 × 4 elements: 4 + 4 numbers from shared memory serve 16 multiply-adds",
    "starts at a multiple of 256 bytes",
    "start at a multiple of 16 bytes",
    "The 100 points of the lab",
    "a block has at most 1,024",
)


def tree_requests() -> int:
    """Requests of a block's warps to shared memory: a store, three for each addition, one for the sum."""
    left = [calls.THREADS >> step for step in range(1, int(math.log2(calls.THREADS)) + 1)]
    return calls.THREADS // WARP + 3 * sum(math.ceil(one / WARP) for one in left) + 1


def computed() -> Iterator[str]:
    module = module_of(LAB.reference, "reference.ipynb")
    side, tile, rows, threads = module.SIDE, module.TILE, module.ROWS, module.THREADS
    full, numbers, half = WARP * NUMBER // SECTOR_BYTES, SECTOR_BYTES // NUMBER, threads // 2
    h100 = device("H100")
    peak, memory = h100.peak("fp32") / 1e12, h100.memory_bandwidth_bytes_per_s / 1e12
    minutes = [int(number) for number in re.findall(r"\*About (\d+) minutes\.", texts_of(LAB))]
    yield f"(about {sum(minutes[:4])} minutes)"
    yield f"(about {sum(minutes[4:])} minutes)"
    yield f"how the {WARP} threads of a warp ask for theirs"
    yield f"each number {side} times less often than the naive one"
    yield "be eight times slower" if WARP // full == 8 else ""
    yield f"Why does a tile of {BANKS} columns slow a transpose down"
    yield f"{threads} threads for 100 elements: the last {threads - 100} must not"
    yield f"{2 * NUMBER} bytes per element for `relu`, {3 * NUMBER} for `sgd_step`"
    yield f"The {WARP} threads of a warp load or store together"
    yield f"in **sectors** of {SECTOR_BYTES} bytes, which hold {numbers} numbers in fp32"
    yield f"({2 * threads} threads for 300 elements: threads 0 to {300 - 2 * threads - 1} take a second one.)"
    yield f"Threads 0 to {WARP - 1} are the first warp, {WARP} to {2 * WARP - 1} the second"
    yield f"{WARP} sectors for {WARP * NUMBER} bytes, where {full} would hold them"
    yield f"Blocks have {calls.WIDE} × {calls.HIGH} threads, so a warp is {WARP}"
    yield f"all sides are multiples of {WARP}"
    yield f"of a 64 × 96 matrix has 64 · 96 / {WARP} = {64 * 96 // WARP} warps"
    copied = 64 * 96 // WARP * full
    yield f"loads {WARP} neighbours, {WARP * NUMBER} bytes or {full} sectors, and stores {full} sectors: {copied} and"
    yield f"sectors: {copied} and {copied}."
    yield f"has {32 * 32:,} threads, each of which loads 64 numbers of `a` and 64 of `b`"
    yield f"as its {WARP} addresses lie in"
    yield f"fetches {WARP} sectors for {WARP * NUMBER} bytes"
    yield f"takes 1 + {full} sectors in place of {WARP} + 1"
    yield f"one thread added {threads} numbers, one after the other, while {threads - 1} threads waited"
    yield f"of the sum, that is {tree_requests()}."
    yield f"at most {TREE_REQUESTS} requests of a block and at most {TREE_ACCESSES} accesses of a thread"
    yield f"Both trees need {threads - 1} additions"
    yield f"stores {WARP} sectors per request, for data that fill {full}"
    yield f"a tile of {tile} × {tile} by rows"
    yield f"A block has {tile} × {rows} threads, so each moves {tile // rows} elements"
    yield f"spread over {BANKS} banks"
    yield f"of a tile with {BANKS} columns, what"
    yield f"mod {BANKS}, so the number of passes is the greatest common divisor of the pitch and {BANKS}"
    yield f"it computes {peak:.0f} TFLOP/s and reads {memory:.2f} TB/s"
    yield f"its ridge point is at {peak / memory:.0f} FLOP/B"
    yield f"Per step a block of {side} × {side} loads two tiles and does {side} multiply-adds per thread"
    yield f"A tile of side {side} does 2 · {side} FLOPs for every 2 numbers of {NUMBER} bytes: {side // NUMBER} FLOP/B"
    transpose, matmul = TIMED.values()
    yield f"{transpose.points} points for a transpose at {transpose.target} of its speed"
    yield f"{matmul.points} for a matrix product at {matmul.target} of cuBLAS"
    yield f"partial points start at {transpose.start} and {matmul.start}"
    yield f"With {module.CPP_TILE}, each thread computes"
    yield f"best {side} rows and {side} columns apart"
    ridge = NUMBER * round(peak / memory)
    yield f"so {ridge // NUMBER} FLOP/B need a side of {ridge}: {ridge**2:,} threads with one element each"
    yield f"With 4 × 4 elements per thread, {side**2} threads compute a side of {4 * side}, which gives {side} FLOP/B"
    yield f"compute a side of {8 * side}"
    yield f"The {WARP} sectors that a request of the naive product touches"
    yield f"still served in {WARP} pieces"
    yield f"is {threads + 2}/{threads} loads per element in place of 3"
    yield f"at h = {half} it is {(threads + 2 * half) // threads} in place of {2 * half + 1}"
    yield f"threads t ≥ {half} have nothing to add"
    yield f"asks for {WARP * 4 * NUMBER} bytes in one request"


def test_figures_are_computed_or_given() -> None:
    assert_held(LAB, computed=filter(None, computed()), in_code=IN_CODE, given=(*CHAPTER, *GIVEN))


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return module_of(LAB.reference, "reference.ipynb")


def message(check: str, right: str, wrong: str) -> str:
    """All that the public cases of a check say where the reference's text is changed."""
    source = LAB.reference.replace(right, wrong, 1)
    assert source != LAB.reference
    mismatch = run_check(LAB.checks[check], kernels_of(module_of(source, "mistake.ipynb"))).mismatch
    assert mismatch is not None
    return "\n".join([mismatch.what, mismatch.got, mismatch.expected])


@pytest.mark.parametrize(
    ("check", "right", "wrong", "said"),
    [
        ("axpy", "y[i] += a * x[i]", "y += a * x", "an array is computed with as a whole"),
        ("axpy", "def axpy(a, x, y)", "def axpy(x, y, a)", "`axpy` has its parameters in another order"),
        ("smooth", "array(WINDOW, float32)", "array(WINDOW)", "cuda.shared.array() missing 1 required"),
        (
            "smooth",
            "array(WINDOW, float32)",
            "array(x.size, float32)",
            "such as PITCH = TILE + 1 outside of the kernel",
        ),
        ("smooth", "    cuda.syncthreads()\n    if i <", "    if i <", WRONG["races"][1]),
        ("relu", "y[i] = max(x[i],", "y[i] = max(x[i], x[i],", "`x` is loaded more often than"),
    ],
)
def test_what_is_wrong_is_said_in_a_kernels_words(check: str, right: str, wrong: str, said: str) -> None:
    assert said in message(check, right, wrong)


def test_lines_are_counted_within_their_cell() -> None:
    cells = ["".join(cell["source"]) for cell in LAB.reference_notebook["cells"]]
    (number,) = [number for number, cell in enumerate(cells, start=1) if "def sgd_step" in cell]
    line = next(
        row
        for row, text in enumerate(cells[number - 1].splitlines(), start=1)
        if "lr * g[i]" in text and "w[i] -=" in text
    )
    said = message("sgd_step", "w[i] -= lr * g[i]", "w[i] -= lr * g[i // 0]")
    assert "ZeroDivisionError" in said and said.startswith(f"cell {number}, line {line}")


def test_wrong_comes_before_costly_and_an_array_without_a_limit_must_stay() -> None:
    def got(wrong: dict[str, str], **counts: int) -> Arrays:
        named = {name: {"count": count, "at": "line 1"} for name, count in counts.items()}
        return flatten({"wrong": dict.fromkeys(WRONG, "") | wrong, "counts": {"writes": named}}) | {"y": np.ones(2)}

    expected = {"y": np.ones(2), **limits(writes={"y": 2})}
    assert agree(got({}, x=0, y=2), expected) is None
    mismatch = agree(got({}, x=1, y=2), expected)
    assert mismatch is not None and mismatch.what == "`x` is stored to more often than needed"
    for later, earlier in zip([*WRONG][1:], WRONG, strict=False):
        mismatch = agree(got({later: "later", earlier: "earlier"}, y=3), expected)
        assert mismatch is not None and (mismatch.what, mismatch.got) == (WRONG[earlier][0], "earlier")


@needs_gxx
@pytest.mark.parametrize("name", TIMED)
def test_what_is_timed_gives_what_the_library_gives(
    name: str, reference: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size, value in {"TURNED": (33, 65), "TURNS": 3, "EDGE": 48}.items():
        monkeypatch.setattr(calls, size, value)
    performance = TIMED[name]
    first, again, other = (performance.make(seed, "cpu") for seed in (7, 7, 8))
    assert all(
        torch.equal(one, same) and not torch.equal(one, new) for one, same, new in zip(first, again, other, strict=True)
    )
    got, want = performance.call(reference, *first, launch=Emulator()), performance.library(*first)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert (got - want).norm() < tolerance("float32") * want.norm()


@pytest.mark.parametrize("kernel", ("transpose", "matmul"))
def test_the_reference_compiles_for_an_h100_and_fits(kernel: str, reference: ModuleType) -> None:
    text = getattr(reference, f"{kernel}_cpp")()
    used = compile_cuda(text, (kernel,), name=f"{kernel}.cu", arch=calls.ARCH).resources[kernel]
    assert (used.spill_bytes, used.stack_bytes) == (0, 0)
    assert used.registers * 256 * 2 <= 65536, "two blocks of 256 threads on a multiprocessor"


def test_transposes_in_a_row_are_not_one() -> None:
    """One takes element i to i · rows modulo (elements - 1), `TURNS` of them to i · rows^TURNS."""
    rows, columns = calls.TURNED
    assert rows * columns % pow(rows, calls.TURNS, rows * columns - 1) != 0, "as many rows would do it at once"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"matmul_cpp": lambda: None}, r"matmul_cpp\(\) gives no text: got None"),
        ({"CPP_TILE": 0}, "CPP_TILE is no side of a tile: got 0, expected a whole number from 1 on"),
        ({"CPP_TILE": 64.0}, r"CPP_TILE is not a whole number: got float 64\.0, expected int"),
        ({"matmul_cpp": lambda: "__global__ void product() {}"}, "matmul.cu has no such kernel: got 'matmul'"),
    ],
)
def test_what_cannot_be_launched_is_said(written: dict[str, Any], said: str) -> None:
    artifact = SimpleNamespace(**{"CPP_TILE": 64, "matmul_cpp": str, **written})
    with pytest.raises(CourseError, match=said):
        calls.time_matmul(artifact, torch.ones(4, 4), torch.ones(4, 4), launch=Emulator())
