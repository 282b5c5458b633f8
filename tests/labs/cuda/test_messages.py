"""What lab 03's checks tell a learner: launches as code that runs, lines as in their cells, and what is first wrong."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mlsys_lab.checks.deciding.cuda.comparison import MOST, WRONG, agree, limits
from mlsys_lab.checks.deciding.verdict import draw_inputs, public_inputs
from mlsys_lab.checks.learner.spec import Arrays, Case, Check
from mlsys_lab.checks.learner.trees import Tree, flatten, nest
from mlsys_lab.checks.runner import PUBLIC_SEED, run_check
from mlsys_lab.kernels.trace import launches
from mlsys_lab.kernels.trace.numba_simulator import record
from tests.labs.harness import kernels_of, labs, module_of

LAB = next(lab for lab in labs() if lab.info.topic == "cuda")
LAUNCHED = [check for check in LAB.checks.checks if check.describe and not check.texts]
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

    monkeypatch.setattr(launches, "record", seeing)
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
    assert told("smooth", "a shape that is not constant").endswith("such as PITCH = TILE + 1")


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
