"""A scheduler's log is held against its grammar before it is played: whatever it claims, no clock runs back."""

from __future__ import annotations

import numpy as np
import pytest

from mlsys_checks.sandboxed.serving.schedulers import schedule
from mlsys_checks.trusted.verdict import draw_inputs
from tests.labs.harness import labs, module_of


@pytest.fixture(scope="module")
def replayed():
    """What the judge says of the reference's log of a case with one array of it changed."""
    (lab,) = (lab for lab in labs() if lab.info.topic == "serving")
    check = lab.checks["promise"]
    (case,) = (case for case in check.cases if case.name == "in time to the last moment")
    inputs = draw_inputs(check, case, 0)
    log, expected = schedule(module_of(lab.reference, "reference.ipynb"), inputs), check.expect(inputs)

    def replay(name: str = "", change=None):
        got = {key: array.copy() for key, array in log.items()}
        if change is not None:
            changed = change(got[name])
            got[name] = got[name] if changed is None else changed
        return check.compare(got, expected)

    return replay


def put(row, column, value):
    def change(array):
        array[row, column] = value

    return change


def again(array):
    return np.vstack([array[:1], array])


def test_the_log_of_the_reference_is_valid(replayed):
    assert replayed() is None


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        ("fed", put(0, 3, -(10**9)), "`fed` of the log names a number of tokens that there cannot be"),
        ("fed", put(0, 3, 0), "`fed` of the log names a number of tokens that there cannot be"),
        ("fed", put(0, 2, -(10**9)), "`fed` of the log names a place of a first token that there cannot be"),
        ("fed", put(0, 2, 2**62), "`fed` of the log names a place of a first token that there cannot be"),
        ("fed", put(0, 1, 999), "`fed` of the log names a request that there cannot be"),
        ("fed", put(-1, 0, -1), "`fed` of the log names a step that there cannot be"),
        ("fed", lambda array: array[::-1], "`fed` of the log goes back in time"),
        ("fed", again, "request 0 is named twice in `fed`"),
        ("fed", lambda array: array.astype(float), "the log has no `fed`"),
        ("fed", lambda array: array[array[:, 0] != 1], "a step of the log feeds no request"),
        ("held", put(0, 2, 400), "`held` of the log names a block that there cannot be"),
        ("held", put(0, 1, -1), "`held` of the log names a request that there cannot be"),
        ("writers", again, "is named twice in `writers`"),
        ("preempted", lambda array: np.array([[0, -1]]), "`preempted` of the log names a request that there cannot be"),
        ("available", lambda array: np.zeros(10**6, np.int8), "the log has too many steps"),
        ("available", lambda array: array[:0], "the log has too many steps, or no end"),
    ],
)
def test_a_log_that_breaks_its_grammar_is_refused(replayed, name, change, what):
    mismatch = replayed(name, change)
    assert mismatch is not None and what in mismatch.what
