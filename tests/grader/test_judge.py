from dataclasses import replace

import numpy as np
import pytest

from grader import judge as module
from grader.judge import judge, refused
from grader.oracle import compare, secret_seed
from grader.sanitise import read_submission
from mlsys_lab.checks.spec import Mismatch

pytestmark = pytest.mark.sandbox


@pytest.fixture
def verdicts(tmp_path, tiny, sandbox, hand_in):
    """Judge a submission whose tasks are as given; verdicts by check."""

    def of(**tasks):
        import json

        path = tmp_path / "01-tiny.ipynb"
        path.write_text(json.dumps(hand_in(**tasks)))
        return {v.check: v for v in judge(read_submission(path, tiny).artifact, sandbox, time_factor=3.0)}

    return of


def test_a_right_solution_gets_all_points(verdicts):
    got = verdicts()
    assert [v.earned for v in got.values()] == [1, 2, 3]
    assert all(v.passed and v.reason == "" and v.fault == "" for v in got.values())


def test_every_lost_point_has_a_reason_and_a_hint(verdicts):
    got = verdicts(double="def double(x):\n    return x + 1\n", mean=None)
    assert (got["double"].earned, got["mean"].earned, got["total"].earned) == (0, 0, 3)
    assert "`y` is wrong in" in got["double"].what
    assert got["double"].got and got["double"].expected
    assert got["double"].case == "seven numbers"
    assert got["double"].hint == "2x, entry by entry"
    assert "not written yet" in got["mean"].what


def test_a_hidden_case_is_told_by_its_kind_only(verdicts):
    mean = verdicts(mean="def mean(x):\n    assert len(x), f'secret {x!r}'\n    return x.sum() / len(x)\n")["mean"]
    assert (mean.earned, mean.hidden, mean.case) == (0, True, "no numbers")
    assert (mean.what, mean.got, mean.expected) == ("a case that is not shown fails", "", "")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return x[:-1] * 2", "wrong shape"),
        ("return (2 * x).astype('float32')", "wrong dtype"),
        ("return 2 * x * float('nan')", "NaN"),
        ("return ['a', {}]", "inhomogeneous|object"),
        ("raise KeyError('<b>')", "KeyError"),
        ("import sys; sys.exit()", "SystemExit"),
        ("import os; os._exit(0)", "ended the process"),
        (
            "import os; [os.write(fd, b'HTTP/1.1 200 OK' * 9) for fd in range(3, 40) if os.path.exists('/')]",
            "Bad file|channel",
        ),
        ("while True: pass", "did not come to an end"),
    ],
)
def test_trouble_of_one_check_costs_that_check_only(verdicts, body, reason):
    import re

    got = verdicts(double=f"def double(x):\n    {body}\n")
    assert [v.earned for v in got.values()] == [0, 2, 3]
    assert re.search(reason, got["double"].reason), got["double"].reason


def test_code_that_cannot_be_loaded_loses_everything_for_one_reason(verdicts):
    got = verdicts(double="import no_such_module\n")
    assert {v.earned for v in got.values()} == {0}
    assert len({v.reason for v in got.values()}) == 1
    assert "ModuleNotFoundError" in got["total"].reason


def test_inputs_are_drawn_anew_each_time_and_the_secret_ones_stay_out(verdicts):
    leak = "def double(x, **more):\n    raise ValueError(repr(x.tolist()))\n"
    first, second = verdicts(double=leak)["double"], verdicts(double=leak)["double"]
    assert first.seed != second.seed
    assert first.got != second.got


def test_a_seed_cannot_be_foreseen(tiny):
    check = tiny.checks["double"]
    assert len({secret_seed(check, 0) for _ in range(50)}) == 50
    assert all(0 <= secret_seed(check, 0) < 2**64 for _ in range(50))


def test_a_slip_in_a_check_is_a_fault_and_no_verdict(verdicts, tiny, monkeypatch):
    def broken(arrays):
        raise ZeroDivisionError("an oracle's slip")

    checks = tuple(replace(c, expect=broken) if c.name == "double" else c for c in tiny.checks.checks)
    monkeypatch.setitem(tiny.__dict__, "checks", replace(tiny.checks, checks=checks))
    got = verdicts()
    assert "an oracle's slip" in got["double"].fault
    assert got["mean"].fault == "" and got["mean"].passed


def test_an_answer_that_makes_the_comparison_stumble_is_not_accepted(tiny):
    def stumbles(got, expected):
        return got["no such name"]

    mismatch = compare(replace(tiny.checks["double"], compare=stumbles), {"y": np.zeros(1)}, {"y": np.zeros(1)})
    assert isinstance(mismatch, Mismatch) and "KeyError" in mismatch.got


def test_what_cannot_be_judged_is_refused_check_by_check(tiny):
    got = refused(tiny.checks.checks, Mismatch("the file is damaged"))
    assert [(v.check, v.points, v.earned, v.reason) for v in got] == [
        ("double", 1, 0, "the file is damaged"),
        ("mean", 2, 0, "the file is damaged"),
        ("total", 3, 0, "the file is damaged"),
    ]


def test_text_from_the_sandbox_becomes_one_short_printable_line():
    line = module._line("a\x1b[31m\n\u202eb" + "c" * 1000)
    assert "\x1b" not in line and "\n" not in line and "\u202e" not in line
    assert len(line) == module.TEXT
