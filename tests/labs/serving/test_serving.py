"""Lab 11: malformed logs are rejected before they are replayed; the sources of the figures in the text."""

from __future__ import annotations

import pytest

from mlsys_checks.sandboxed.values import decode_value, encode_value
from mlsys_checks.trusted.verdict import draw_inputs
from tests.labs.figures import assert_held
from tests.labs.harness import labs, module_of

SERVING = next(lab for lab in labs() if lab.info.topic == "serving")
FIGURES_IN_CODE = (  # phrases of the text whose figures its code computes or sets
    "Sequences of 1 to 512 tokens, each length once, in blocks of 16 tokens",
    "a prompt of 3,000 tokens",
    "Of the budgets 64, 128, 256, 512, 1024 and 4096",
    "waits longer than 30 ms for the next token",
    "one document of 400 tokens",
    "the same 24 blocks",
)
CITED_FIGURES = (  # phrases with figures from elsewhere
    "takes about 4.8 ms on an H100",
    "If 64 requests share the step, it takes 6.5 ms and yields 64 tokens: 47 times the throughput",
    "[lab 10](10-kv-cache.ipynb)",
    "enables 23x throughput in LLM inference",
    "Why 12 more tokens need no block: 20 tokens leave 12 slots",
    "Why 13 more are refused",
    "A step takes 4.8 ms to read the weights, 27 µs for each new token, and 40 ns for each cached token",
    "4.8 ms + 27 µs × budget",
    "pays the 4.8 ms again",
    "(10 ms per step, 1 ms per token)",
    "20 = 4 decodes + a chunk of 16 tokens: 30 ms",
    "80 % of the goodput of our own policy",
    "section 4.5",
    "in about 200 lines",
    "if blocks hold 64 tokens in place of 16",
    "31.5 slots per sequence stay empty in place of 7.5, and only prefixes of multiples of 64 tokens",
    "0.13 MB per token for Llama 3 8B",
)


def test_figures_are_in_code_or_given() -> None:
    assert_held(SERVING, in_code=FIGURES_IN_CODE, given=CITED_FIGURES)


@pytest.fixture(scope="module")
def replayed():
    """Verdict on the reference's log of a workload with one step altered."""
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
        ("scheduled", [[0, -(10**9), 1]], "`scheduled` has the wrong form"),
        ("scheduled", [[0, 2**62, 1]], "`scheduled` has the wrong form"),
        ("scheduled", [[0, 0, 0]], "`scheduled` has the wrong form"),
        ("scheduled", [], "schedules no sequence"),
        ("scheduled", [[0, 0, 1]] * 2, "twice in `scheduled`"),
        ("tables", [[0, [1, 1]]], "a block that is in use"),
        ("sampled", [0, 0], "twice in `sampled`"),
        ("preempted", [-1], "`preempted` has the wrong form"),
        ("num_free", True, "`num_free` has the wrong form"),
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
