"""What lab 02 says of a wrong answer: the call that gave it, the common mistake behind it, and inputs as code."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from mlsys_checks.runner import run_check
from mlsys_checks.sandboxed.spec import Check
from mlsys_checks.trusted.verdict import draw_inputs, public_inputs, shown_inputs
from tests.labs.harness import kernels_of, labs, module_of

(LAB,) = (lab for lab in labs() if lab.info.topic == "gpu-model")
REFERENCE = module_of(LAB.reference, "reference.ipynb")
SHOWN = [(check, case) for check in LAB.checks.checks if not check.traced for case in check.cases if not case.hidden]


def mutant(name: str) -> tuple[Check, ModuleType]:
    (variant,) = (one for one in LAB.mutants if one.name == name)
    check, module = LAB.checks[variant.fails[0]], module_of(LAB.substituted(variant), "mutant.ipynb")
    return check, kernels_of(module) if check.traced else module


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("elements, not bytes", "these are elements"),
        ("a multiply-add is one FLOP", "a multiply-add is two FLOPs"),
        ("the times are added", "both times were added"),
        ("the mean", "this is the mean"),
        ("the making is timed", "the making of inputs was timed too"),
        ("one input for all", "an input was used again"),
        ("errors in seconds", "here errors count in seconds"),
        ("the share upside down", "one over the share"),
        ("where a lane ends is not looked at", "only the first byte of each lane"),
        ("lanes that want one word wait for each other", "lanes that want one word share it"),
        ("the warps of one block", "these are the warps of one block"),
        ("warps are rounded down", "a part of a warp takes a whole one"),
        ("the branch stays within warps", "a warp diverges"),
        ("pieces of neighbouring columns", "lies scattered"),
    ],
)
def test_a_common_mistake_is_told_by_name(name: str, says: str) -> None:
    check, module = mutant(name)
    report = run_check(check, module)
    assert report.mismatch is not None
    assert says in report.mismatch.what


def test_a_line_of_a_kernel_is_told_by_its_cell_and_its_text() -> None:
    check, module = mutant("the branch stays within warps")
    report = run_check(check, module)
    assert report.mismatch is not None
    assert "`y[at] = max(value, float32(0))`: 16 of 32 lanes" in report.mismatch.got
    assert report.mismatch.got.startswith("cell ")


@pytest.mark.parametrize(("check", "case"), SHOWN, ids=[f"{check.name}: {case.name}" for check, case in SHOWN])
def test_what_is_shown_of_a_public_case_runs(check: Check, case: Any) -> None:
    """The shown code is Python that the learner's definitions understand, and its last line gives what is expected."""
    assert check.describe is not None
    given = draw_inputs(check, case, 0)
    *made, call = check.describe(shown_inputs(check, given)).splitlines()
    names = {**vars(REFERENCE), "np": np}
    exec(compile("\n".join(made), "shown", "exec"), names)
    answer = eval(call, names)
    parts = {"Held": lambda: (answer.blocks, answer.warps, answer.limit), "tuple": lambda: answer}
    shown = parts.get(type(answer).__name__, lambda: (answer,))()
    expected = {name: want for name, want in check.expect(given).items() if name.endswith(call)}
    for value, want in zip(shown, expected.values(), strict=True):
        if want.dtype == np.uint8:  # a word, or a count of whatever size
            assert str(value).encode() == want.tobytes()
        else:
            np.testing.assert_allclose(value, want, rtol=1e-6)


@pytest.mark.parametrize("name", [check.name for check in LAB.checks.checks if check.traced])
def test_what_is_shown_of_a_kernels_case_makes_its_arrays_and_launches_it(name: str) -> None:
    check = LAB.checks[name]
    assert check.describe is not None
    given = public_inputs(draw_inputs(check, check.cases[0], 0))
    recorded: list[tuple[Any, ...]] = []
    names = {
        **vars(REFERENCE),
        "np": np,
        "record": lambda *args, **_: recorded.append(args),
        "report": lambda _: type("Report", (), {"table": lambda self: None})(),
        "show_table": lambda _: None,
    }
    exec(compile(check.describe(given), "shown", "exec"), names)
    ((_, grid, threads, *arrays),) = recorded
    assert grid * threads >= given["x"].size // 4
    assert [array.shape for array in arrays[:-1]] == [array.shape for array in given.values()]
