"""Checks with a partner: what they may ask while they are at work stays with the judge."""

from __future__ import annotations

from types import SimpleNamespace

import dial_checks
import pytest

from mlsys_checks.runner import run_check
from mlsys_checks.trusted.artifact import Artifact, Cell
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.judging import queries
from mlsys_grader.judging.judge import judge
from mlsys_grader.judging.oracle import CheckError, Oracle, OracleServer
from mlsys_grader.sandbox.sandbox import Sandbox
from mlsys_lab.stack.labinfo import LabInfo

RIGHT = "def total(read, turns):\n    return sum(read() for _ in range(turns))\n"
ENDLESS = """\
def total(read, turns):
    while True:
        try:
            read()
        except Exception:
            pass
"""
KEPT = """\
KEPT = []


def total(read, turns):
    KEPT.append(read)
    return sum(KEPT[0]() for _ in range(turns))
"""
DOUBLE = "def double(x):\n    return 2 * x\n"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labs") / "01-dial"
    return GradedLab(LabInfo(folder, "dial", "dial", 1, 3, checks_module=dial_checks.__name__))


@pytest.fixture(scope="module")
def oracles(lab):
    with OracleServer(lab) as running:
        yield running


@pytest.fixture(scope="module")
def verdicts(lab, oracles):
    """Judge a program; its verdicts by check."""
    with Sandbox(lab) as sandbox:

        def judge_program(total: str, double: str = DOUBLE):
            artifact = Artifact("01-dial.ipynb", (Cell(1, f"#| export\n{total}\n\n{double}"),))
            return {verdict.check: verdict for verdict in judge(artifact, sandbox, oracles, time_factor=3.0)}

        yield judge_program


@pytest.mark.sandbox
def test_who_asks_as_often_as_told_gets_all_points(verdicts):
    assert [verdict.earned for verdict in verdicts(RIGHT).values()] == [2, 1]


@pytest.mark.sandbox
def test_a_refusal_is_told_with_its_line(verdicts):
    verdict = verdicts(RIGHT.replace("range(turns)", "range(turns + 1)"))["total"]
    assert verdict.earned == 0 and "the dial is read too often: expected 3 times" in verdict.reason
    assert "return sum(read()" in verdict.reason


@pytest.mark.sandbox
def test_what_a_call_was_given_serves_no_later_one(verdicts):
    verdict = verdicts(KEPT)["total"]
    assert verdict.earned == 0 and "an earlier call" in verdict.reason and verdict.case == "four turns"


@pytest.mark.sandbox
def test_nobody_asks_without_end(verdicts, monkeypatch):
    monkeypatch.setattr(queries, "MAX_QUERIES", 50)
    verdict = verdicts(ENDLESS)["total"]
    assert verdict.earned == 0 and "more than 50 questions" in verdict.reason


def test_a_partner_whose_process_has_ended_is_the_checks_own_fault(oracles):
    check = dial_checks.TOTAL
    case = check.cases[0]
    with Oracle(oracles, {check.name: 7}) as oracle:
        oracle.inputs(check, case)
        assert oracle.reply(check, case, "read", 0).kind == "reply"
        oracle._close_child()
        with pytest.raises(CheckError, match="itself failed"):
            oracle.reply(check, case, "read", 0)


def test_a_notebook_has_the_partner_beside_it():
    right = SimpleNamespace(total=lambda read, turns: sum(read() for _ in range(turns)))
    assert run_check(dial_checks.TOTAL, right, hidden=True).passed
    report = run_check(dial_checks.TOTAL, SimpleNamespace(total=lambda read, turns: read()))
    assert report.mismatch is not None and "wrong value" in report.mismatch.what
