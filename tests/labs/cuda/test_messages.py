"""What lab 03's checks tell a learner: launches as code that runs, lines as in their cells, and what is first wrong."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mlsys_checks.live import LiveChecks
from mlsys_checks.runner import PUBLIC_SEED, run_check
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.sandboxed.trees import Tree, flatten, nest
from mlsys_checks.trusted.cuda.comparison import MOST, WRONG, agree, limits
from mlsys_checks.trusted.verdict import draw_inputs, public_inputs
from mlsys_lab.errors import CourseError
from mlsys_lab.kernels import numba_record
from mlsys_lab.kernels.trace.numba_simulator import record
from tests.labs.harness import kernels_of, labs, live_names, module_of

LAB = next(lab for lab in labs() if lab.info.topic == "cuda")
LAUNCHED = [check for check in LAB.checks.checks if check.describe and not check.kernel_sources]
DESCRIBED = [(check, case) for check in LAUNCHED for case in check.cases if not case.hidden]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return module_of(LAB.reference, "reference.ipynb")


@pytest.mark.parametrize(("check", "case"), DESCRIBED, ids=[f"{check.name}: {case.name}" for check, case in DESCRIBED])
def test_a_case_is_told_as_code_that_launches_as_the_check_does(
    check: Check, case: Case, reference: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[Any]] = []

    def seeing(kernel: Any, grid: Any, block: Any, *args: Any, outputs: tuple[str, ...] = ()) -> Any:
        seen.append([grid, block, *(np.shape(arg) for arg in args), outputs])
        return record(kernel, grid, block, *args, outputs=outputs)

    monkeypatch.setattr(numba_record, "record", seeing)
    inputs = public_inputs(draw_inputs(check, case, PUBLIC_SEED))
    check.run(reference, inputs)
    names = vars(reference) | {"np": np, "record": seeing, "show_table": lambda table: None}
    names["report"] = lambda trace: SimpleNamespace(table=lambda: trace)
    assert check.describe is not None
    exec(check.describe(inputs), names)
    assert len(seen) == (2 if check.traced else 0)
    assert seen[:1] == seen[1:]


def told(name: str, mutant: str) -> str:
    """All that the public cases of a check say of a mutant."""
    variant = next(one for one in [*LAB.mutants, *LAB.mishaps] if one.name == mutant)
    module = kernels_of(module_of(LAB.substituted(variant), "mutant.ipynb"))
    mismatch = run_check(LAB.checks[name], module).mismatch
    assert mismatch is not None
    return "\n".join([mismatch.what, mismatch.got, mismatch.expected])


def line_in_cell(text: str) -> str:
    """Where in its cell of the reference a line stands, in a message's words; the text must occur in one line only."""
    ((cell, line),) = [
        (number, row)
        for number, one in enumerate(LAB.reference_notebook["cells"], start=1)
        if one["cell_type"] == "code"
        for row, written in enumerate("".join(one["source"]).splitlines(), start=1)
        if written.strip() == text
    ]
    return f"cell {cell}, line {line} `{text}`"


def test_lines_are_counted_in_their_cells_whether_a_kernel_runs_or_stops() -> None:
    line = "w[i] -= rate * g[i]"
    assert line_in_cell(line).replace("17", "16") in told("sgd_step", "no guard")  # the mutant has no `if` above it
    assert "ZeroDivisionError" in (said := told("sgd_step", "an exception in a thread"))
    assert said.startswith(line_in_cell(line).split(" `")[0])


def test_a_function_without_the_decorator_is_no_kernel() -> None:
    mismatch = run_check(LAB.checks["relu"], SimpleNamespace(relu=told)).mismatch
    assert mismatch is not None
    assert (mismatch.what, mismatch.expected) == ("`relu` is no kernel", "`@cuda.jit` above its `def`")


def test_a_shape_that_is_no_constant_is_answered_by_what_to_write() -> None:
    assert told("smooth", "a shape that is not constant").endswith("such as PITCH = TILE + 1 outside of the kernel")


def test_what_is_wrong_with_memory_is_told_beside_values_that_are_wrong_for_it() -> None:
    said = told("smooth", "no barrier before the neighbours are read")
    assert "no number" in said
    assert "two threads race" in said
    assert said.endswith(WRONG["races"][1])


NOTHING: Tree = {"wrong": dict.fromkeys(WRONG, "")}


def test_wrong_comes_before_costly_and_the_first_kind_of_wrong_before_the_others() -> None:
    def count(count: int) -> Arrays:
        return flatten({"counts": {"reads": {"x": {"count": count, "at": "line 1"}}}})

    def wrong(**sentences: str) -> Arrays:
        return flatten({"wrong": sentences})

    expected = {"y": np.ones(2), **limits(reads={"x": 8})}
    right = {"y": np.ones(2), **flatten(NOTHING), **count(9)}
    mismatch = agree(right, expected)
    assert mismatch is not None and (mismatch.got, mismatch.expected) == ("9 reads: line 1", "at most 8")
    for later, earlier in zip([*WRONG][1:], WRONG, strict=False):
        mismatch = agree({**right, **wrong(**{later: "later", earlier: "earlier"})}, expected)
        assert mismatch is not None
        assert (mismatch.what, mismatch.got) == (WRONG[earlier][0], "earlier")
    assert agree({**right, **count(8)}, expected) is None


def test_limits_are_the_figures_by_kind_and_by_what_they_count() -> None:
    assert nest(limits(accesses={"global": 3})) == {MOST: {"accesses": {"global": 3}}}


def test_what_is_not_named_is_not_to_be_changed() -> None:
    def stored(**counts: int) -> Arrays:
        return flatten({"counts": {"writes": {name: {"count": n, "at": "line 1"} for name, n in counts.items()}}})

    expected = {"y": np.ones(2), **limits(writes={"y": 2})}
    assert agree({"y": np.ones(2), **flatten(NOTHING), **stored(x=0, y=2)}, expected) is None
    mismatch = agree({"y": np.ones(2), **flatten(NOTHING), **stored(x=1, y=2)}, expected)
    assert mismatch is not None and mismatch.what == "more writes of `x` than it takes"


HEAD = "@cuda.jit\ndef axpy"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("import numba.cuda as nc\n@nc.jit\ndef axpy", ""),
        ("from numba import cuda as c\n@c.jit\ndef axpy", ""),
        ("import numba\n@numba.cuda.jit\ndef axpy", ""),
        ("from numba import njit\n@njit\ndef axpy", "`axpy` is no kernel: `@njit` compiles for a CPU"),
        ("def axpy", "`axpy` is a plain function, no kernel"),
        ("@cuda.jit\ndef axpy_v2", "`axpy` is another name of `axpy_v2`"),
    ],
)
def test_the_notebook_and_the_grader_know_a_kernel_by_the_same_signs(written: str, said: str) -> None:
    source = LAB.reference.replace(HEAD, written)
    source = source.replace("# %% cell 22", "axpy = axpy_v2\n# %% cell 22") if "axpy_v2" in written else source
    graded = run_check(LAB.checks["axpy"], kernels_of(module_of(source, "mistake.ipynb")), hidden=True).mismatch
    try:
        LiveChecks(LAB.checks, live_names(source))("axpy")
        live = ""
    except CourseError as error:
        live = str(error)
    if not said:
        assert (graded, live) == (None, "")
    else:
        assert graded is not None and said in graded.what and said in live


@pytest.mark.parametrize(
    ("check", "right", "wrong", "said"),
    [
        ("axpy", "y[i] += a * x[i]", "y += a * x", "an array is computed with as a whole"),
        ("axpy", "def axpy(a, x, y)", "def axpy(x, y, a)", "`axpy` has its parameters in another order"),
        ("smooth", "array(WINDOW, float32)", "array(WINDOW)", "cuda.shared.array() missing 1 required"),
    ],
)
def test_what_stops_a_kernel_is_told_in_a_kernels_words(check: str, right: str, wrong: str, said: str) -> None:
    source = LAB.reference.replace(right, wrong, 1)
    mismatch = run_check(LAB.checks[check], kernels_of(module_of(source, "mistake.ipynb"))).mismatch
    assert mismatch is not None and said in mismatch.what


def test_shared_memory_without_a_size_is_told_at_its_line() -> None:
    source = LAB.reference.replace("__shared__ float tile[32][33];", "extern __shared__ float tile[][33];", 1)
    mismatch = run_check(LAB.checks["transpose_cpp"], module_of(source, "mistake.ipynb")).mismatch
    assert mismatch is not None
    assert mismatch.what == "transpose.cu:3: shared memory without a size has one dimension"
    assert mismatch.got == "`extern __shared__ float tile[][33];`"
