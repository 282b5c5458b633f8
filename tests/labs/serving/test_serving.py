"""Lab 11: a log that breaks its form is refused before it is replayed; where figures in the text come from."""

from __future__ import annotations

import pytest

from mlsys_checks.sandboxed.values import decode_value, encode_value
from mlsys_checks.trusted.verdict import draw_inputs
from tests.labs.figures import assert_held
from tests.labs.harness import labs, module_of

SERVING = next(lab for lab in labs() if lab.info.topic == "serving")
IN_CODE = ("when a prompt of 3,000 tokens comes",)
GIVEN = (
    "enables 23x throughput in LLM inference",
    "a step has 10 ms for everything",
    "wait longer than 30 ms for a token",
    "80 % of the requests that the judge's own policy serves well",
    "Blocks of 16 tokens or of 64",
)


def test_figures_are_in_code_or_given() -> None:
    assert_held(SERVING, in_code=IN_CODE, given=GIVEN)


@pytest.fixture(scope="module")
def replayed():
    """What the judge says of the reference's log of a load, with one step of it changed."""
    check = SERVING.checks["promise"]
    (case,) = (case for case in check.cases if case.name == "in time to the last moment")
    inputs = draw_inputs(check, case, 0)
    log = decode_value(check.run(module_of(SERVING.reference, "reference.ipynb"), inputs)["log"])

    def replay(name: str = "", value=None, step: int = 0):
        steps = [{**one, name: value} if name and i == step else one for i, one in enumerate(log["steps"])]
        return check.compare({"log": encode_value({**log, "steps": steps})}, check.expect(inputs))

    return replay


def test_the_log_of_the_reference_is_valid(replayed):
    assert replayed() is None


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("fed", [[0, -(10**9), [1]]], "`fed` has the wrong form"),
        ("fed", [[0, 2**62, [1]]], "`fed` has the wrong form"),
        ("fed", [[0, 0, [-1]]], "`fed` has the wrong form"),
        ("fed", [[0, 0, []]], "have no token"),
        ("fed", [], "have no token"),
        ("fed", [[0, 0, [1]]] * 2, "named twice in `fed`"),
        ("tables", [[0, [1, 1]]], "a block is allocated that is in use"),
        ("sampled", [0, 0], "named twice in `sampled`"),
        ("preempted", [-1], "`preempted` has the wrong form"),
        ("available", True, "`available` has the wrong form"),
    ],
)
def test_a_step_that_breaks_its_form_is_refused(replayed, name, value, what):
    mismatch = replayed(name, value)
    assert mismatch is not None and what in mismatch.what


def test_what_is_no_log_is_refused():
    check = SERVING.checks["promise"]
    inputs = draw_inputs(check, check.cases[0], 0)
    for value in (None, [], {}, {"steps": [], "end": None}, {"steps": [{}] * 10**5, "end": [400, [0] * 400]}):
        assert check.compare({"log": encode_value(value)}, check.expect(inputs)) is not None
    deep = encode_value("").astype("uint8").repeat(10**6) * 0 + ord("[")
    for answer in ({}, {"log": deep}, {"log": encode_value([])[:1]}):
        assert check.compare(answer, check.expect(inputs)).what == "the log cannot be read"
