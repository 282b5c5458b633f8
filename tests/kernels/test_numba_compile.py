"""Numba's compiler is asked without a GPU: what it refuses is told at its line; the simulator works on."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest

from mlsys_checks.sandboxed.kernels.loading import load_kernels
from mlsys_lab.errors import InputError
from mlsys_lab.kernels import numba_compile
from mlsys_lab.kernels.numba_compile import check_compiles, compiler_works
from mlsys_lab.kernels.numba_language import cuda, float32
from mlsys_lab.kernels.numba_record import record_launch
from mlsys_lab.kernels.reduction.numba_steps import warp_shuffle
from mlsys_lab.kernels.runtime import load_numba, numba_simulates
from mlsys_lab.kernels.trace.numba_simulator import record
from mlsys_lab.stack.artifact import Artifact, Cell

SCALE = 3
SIDES = (2, 4)
MIXED = (1, 2.5)


@cuda.jit(device=True)
def scaled(value):
    return SCALE * value


@cuda.jit
def fine(x, y):
    part = cuda.shared.array(SIDES, float32)
    row, column = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    part[row, column] = scaled(x[cuda.threadIdx.x])
    cuda.syncthreads()
    y[cuda.threadIdx.x] = part[1 - row][column] + math.floor(0.5)


@cuda.jit
def grows_a_tuple(x, y):
    found = ()
    for i in range(3):
        found = found + (x[i],)  # noqa: RUF005
    y[0] = found[2]


@cuda.jit
def picks_from_a_mixed_tuple(x, y):
    for i in range(2):
        y[i] = MIXED[i]


@cuda.jit
def begins_with_none(x, y):
    total = None
    for i in range(x.size):
        if total is None:
            total = x[i]
        else:
            total += x[i]
    y[0] = total


@cuda.jit
def has_two_types(x, y):
    best = x[0]
    for i in range(x.size):
        if i > 0 and x[i] > 0:
            best = (x[i], i)
    y[0] = 1 if best == 0 else 2


@cuda.jit
def lists_tuples(x, y):
    pairs = [(i, x[i]) for i in range(3)]
    y[0] = pairs[0][1]


@cuda.jit(device=True)
def factorial(n):
    return n * factorial(n - 1) if n > 1 else 1


@cuda.jit
def calls_what_calls_itself(x, y):
    y[0] = factorial(3)


@cuda.jit
def indexes_a_type(x, y):
    if x.size < 0:
        y[0] = float32[0]


@cuda.jit
def adds_an_axis(x, y):
    if x.size < 0:
        y[0] = x[None][0, 0]


@cuda.jit
def keeps_an_array_on_one_path(x, y):
    value = x
    if x.size > 0:
        value = x[0]
    y[0] = value


@cuda.jit(device=True)
def last_of(value):
    kept = ()
    for _ in range(2):
        kept = kept + (value,)  # noqa: RUF005
    return kept[1]


@cuda.jit
def calls_it(x, y):
    y[0] = last_of(x[0])


@cuda.jit
def returns_a_number(x, y):
    y[0] = x[0]
    return 1


@cuda.jit
def takes_a_whole_number(x, y):
    y[0] = 1 << x[0]


def arguments(dtype: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
    return np.ones(8, dtype), np.zeros(8, dtype)


def test_the_compiler_is_there() -> None:
    assert compiler_works()


@pytest.mark.parametrize(
    ("kernel", "line", "said", "wanted"),
    [
        (
            grows_a_tuple,
            "for i in range(3):",
            "Cannot unify Tuple() and UniTuple(float32 x 1) for 'found'",
            "one type for a variable",
        ),
        (
            calls_it,
            "for _ in range(2):",
            "Cannot unify Tuple() and UniTuple(float32 x 1) for 'kept'",
            "one type for a variable",
        ),
        (picks_from_a_mixed_tuple, "y[i] = MIXED[i]", "no implementation of getitem(Tuple(", "a constant as the index"),
        (begins_with_none, "total += x[i]", "no implementation of iadd(none, float32)", "a number to begin with"),
        (has_two_types, "y[0] = 1 if best == 0 else 2", "Cannot unify float32 and Tuple(float32, int64)", "one type"),
        (lists_tuples, "pairs = [(i, x[i]) for i in range(3)]", "Unknown attribute 'append' of type list", "no list"),
        (
            calls_what_calls_itself,
            "return n * factorial(n - 1) if n > 1 else 1",
            "AttributeError: ",
            "what the compiler",
        ),
        (indexes_a_type, "y[0] = float32[0]", "KeyError: 'Can only index numba types with slices", "what the compiler"),
        (adds_an_axis, "y[0] = x[None][0, 0]", "NotImplementedError: No definition for lowering", "what the compiler"),
        (keeps_an_array_on_one_path, "y[0] = value", "no implementation of setitem(array(", "a number to store"),
        (returns_a_number, "return 1", "No conversion from Literal[int](1) to none", "returns nothing"),
    ],
)
def test_what_only_the_simulator_takes_is_refused_at_its_line_in_numbas_words(
    kernel, line: str, said: str, wanted: str
) -> None:
    x, y = arguments()
    record(kernel, 1, 1, x, y)
    with pytest.raises(InputError) as refused:
        check_compiles(kernel, x, y)
    assert f"Numba refuses to compile `{kernel.py_func.__name__}` for a GPU at line " in refused.value.what
    assert refused.value.what.endswith(f"`{line}`")
    assert said in str(refused.value.got) and "\n" not in str(refused.value)
    assert wanted in str(refused.value.expected)


def test_what_is_said_in_bold_where_colorama_is_installed_is_told_without(monkeypatch) -> None:
    class Bold:
        def __getattr__(self, name: str):
            return lambda text: f"\x1b[1m{text}\x1b[0m"

    monkeypatch.setattr("numba.core.errors._termcolor_inst", Bold())
    with pytest.raises(InputError) as refused:
        check_compiles(calls_it, *arguments())
    assert str(refused.value.got) == "Cannot unify Tuple() and UniTuple(float32 x 1) for 'kept'"


def test_the_types_of_the_launch_count() -> None:
    check_compiles(takes_a_whole_number, *arguments(np.int32))
    with pytest.raises(InputError, match=r"no implementation of lshift\(Literal\[int\]\(1\), float32\)"):
        check_compiles(takes_a_whole_number, *arguments())


def test_a_kernel_is_simulated_as_before_and_compiles_after_that_too() -> None:
    x, y = arguments()
    for _ in range(2):
        check_compiles(fine, x, y)
        assert load_numba() is cuda is sys.modules["numba.cuda"] and type(fine) is type(cuda.jit(lambda: None))
        if numba_simulates():
            fine[1, 8](x, y)
            assert y.tolist() == [3] * 8
        y[:] = 0
        record(fine, 1, 8, x, y)
        assert y.tolist() == [3] * 8
        numba_compile._accepted.clear()


@pytest.mark.weekly
def test_all_of_this_holds_where_numba_was_imported_to_compile() -> None:
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0"}
    command = [sys.executable, "-m", "pytest", "-q", __file__, "-k", "not imported_to_compile"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout


def test_a_kernel_of_the_package_that_calls_others_compiles_for_any_order_of_elements() -> None:
    sums = np.zeros(4, np.float32)
    for x in (np.ones(100, np.float32), np.ones(100, np.float64), np.ones(100, np.float32)[::2]):
        check_compiles(warp_shuffle, x, sums)


def test_what_was_accepted_is_not_compiled_again_until_something_of_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiler_works()
    compiled = []
    original = numba_compile._compile
    monkeypatch.setattr(numba_compile, "_compile", lambda *given: (compiled.append(given), original(*given)))
    monkeypatch.setattr(numba_compile, "_accepted", set())
    for n in (4, 7):  # how many elements there are is no part of the compiled kernel
        check_compiles(fine, np.ones(n, np.float32), np.ones(n, np.float32))
    assert len(compiled) == 1
    check_compiles(fine, *arguments(np.float64))
    check_compiles(fine, np.ones(8, np.float32)[::2], np.ones(4, np.float32))
    monkeypatch.setattr(f"{__name__}.SCALE", 5)
    check_compiles(fine, *arguments())
    assert len(compiled) == 4


def test_a_text_that_was_accepted_is_known_again_in_another_module(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "#| export\n@cuda.jit\ndef kernel(x, y):\n    y[0] = x[0] * 7\n"
    for _ in range(2):
        check_compiles(load_kernels(Artifact("lab.ipynb", (Cell(1, text),))).kernel, *arguments())
        monkeypatch.setattr(numba_compile, "_compile", None)


def test_where_numba_cannot_compile_at_all_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba_compile, "_Layout", None)
    compiler_works.cache_clear()
    try:
        check_compiles(grows_a_tuple, *arguments(np.float16))
    finally:
        compiler_works.cache_clear()


def test_a_recorded_launch_of_a_learners_kernel_is_refused_by_cells() -> None:
    text = """\
#| export
@cuda.jit
def kernel(x, y):

    # two lines that a compiler does not see
    y[0] = sum_of(x)
"""
    called = """\
#| export
@cuda.jit(device=True)
def sum_of(x):
    found = ()
    for i in range(x.size):
        found += (x[i],)
    return found[0]
"""
    module = load_kernels(Artifact("lab.ipynb", (Cell(3, called), Cell(7, text))))
    with pytest.raises(InputError, match=r"`kernel` for a GPU at cell 3, line 6 `found \+= "):
        record_launch(module, "kernel", 1, 1, *arguments(), outputs=("y",))
