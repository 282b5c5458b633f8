import os
import time
from dataclasses import replace

import numpy as np
import pytest

from mlsys_checks.trusted.verdict import draw_inputs, public_inputs
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.judging import oracle as module
from mlsys_grader.judging.oracle import AnswerTooLargeError, CheckError, Oracle, OracleServer
from mlsys_lab.errors import CourseError
from tests.grader.processes import descendants, gone

SEEDS = {"double": 5, "mean": 6, "total": 7}
FAULTY = dict.fromkeys(("double", "expect_fails", "draw_never_ends", "compare_never_ends", "compare_stumbles"), 5)


@pytest.fixture(scope="module")
def faulty(tiny):
    """The lab whose trusted side fails, and what decides there within a third of a second."""
    lab = GradedLab(replace(tiny.info, checks_module="faulty_checks"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LIMIT_S", 0.3)
        with OracleServer(lab) as running:
            yield lab.checks, running


def equal(a, b):
    return list(a) == list(b) and all(np.array_equal(a[name], b[name]) for name in a)


def test_inputs_are_those_of_the_seed_drawn_ahead_or_not_and_the_secret_ones_stay(tiny, oracles):
    double, mean = tiny.checks["double"], tiny.checks["mean"]
    with Oracle(oracles, SEEDS) as oracle:
        oracle.prefetch_inputs(mean, mean.cases[0])
        for check in (double, mean):
            for case in check.cases:
                whole = draw_inputs(check, case, SEEDS[check.name])
                assert "_secret" in whole
                assert equal(oracle.inputs(check, case), public_inputs(whole))


def test_an_answer_is_compared_with_what_the_drawn_inputs_ask_for(tiny, oracles):
    double = tiny.checks["double"]
    with Oracle(oracles, SEEDS) as oracle:
        for case in double.cases:
            x = oracle.inputs(double, case)["x"]
            oracle.prefetch_expected(double, case)
            assert oracle.compare(double, case, {"y": 2 * x}) is None
        x = oracle.inputs(double, double.cases[0])["x"]
        mismatch = oracle.compare(double, double.cases[0], {"y": 3 * x})
    assert "`y` is wrong in 7 of 7" in mismatch.what and mismatch.got and mismatch.expected


def test_an_answer_over_which_the_comparison_stumbles_is_not_accepted(faulty):
    checks, oracles = faulty
    check = checks["compare_stumbles"]
    with Oracle(oracles, FAULTY) as oracle:
        oracle.inputs(check, check.cases[0])
        mismatch = oracle.compare(check, check.cases[0], {"y": np.zeros(1)})
    assert mismatch.what == "the answer cannot be compared" and "KeyError" in mismatch.got


def test_the_random_seed_of_a_case_is_its_own_and_not_the_secret_one(tiny, oracles):
    double, mean = tiny.checks["double"], tiny.checks["mean"]
    with Oracle(oracles, SEEDS) as oracle, Oracle(oracles, SEEDS) as replayed:
        seeds = [oracle.random_seed(check, case) for check in (double, mean) for case in check.cases]
        assert seeds == [replayed.random_seed(check, case) for check in (double, mean) for case in check.cases]
    assert len(set(seeds)) == 4 and not set(seeds) & set(SEEDS.values())
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_what_fails_in_the_course_s_own_code_is_a_fault_when_it_is_needed(faulty):
    checks, oracles = faulty
    case = checks["double"].cases[0]
    with Oracle(oracles, FAULTY) as oracle:
        oracle.inputs(checks["expect_fails"], case)
        oracle.prefetch_expected(checks["expect_fails"], case)
        with pytest.raises(CheckError, match="check 'expect_fails' itself failed: ZeroDivisionError: an oracle's slip"):
            oracle.compare(checks["expect_fails"], case, {})
        with pytest.raises(CheckError, match="check 'draw_never_ends' itself failed: its inputs are not drawn within"):
            oracle.inputs(checks["draw_never_ends"], case)


def test_a_comparison_that_never_ends_is_ended_and_the_next_check_is_decided(faulty):
    checks, oracles = faulty
    case = checks["double"].cases[0]
    with Oracle(oracles, FAULTY) as oracle:
        oracle.inputs(checks["compare_never_ends"], case)
        oracle.prefetch_inputs(checks["double"], case)
        with pytest.raises(AnswerTooLargeError, match="takes too long to compare"):
            oracle.compare(checks["compare_never_ends"], case, {})
        assert (spent_s := oracle.busy_s) == 2 * oracle._limit_s
        assert oracle.compare(checks["double"], case, {"y": 2 * oracle.inputs(checks["double"], case)["x"]}) is None
        assert oracle.busy_s - spent_s < 1, "drawing, the oracle and other work on the machine are not the submission's"


def test_closing_ends_a_comparison_that_never_would(tiny):
    lab = GradedLab(replace(tiny.info, checks_module="faulty_checks"))
    check = lab.checks["compare_never_ends"]
    with OracleServer(lab) as oracles, Oracle(oracles, FAULTY, time_factor=1000.0) as oracle:
        oracle.inputs(check, check.cases[0])
        oracle.prefetch_expected(check, check.cases[0])
        oracle._send("compare", check, check.cases[0], {})
        family = descendants(oracles._process.pid)
        start = time.monotonic()
    assert len(family) >= 1 and gone(family)
    assert time.monotonic() - start < 600  # the comparison's own limit is hours


def test_a_process_that_was_killed_is_replaced_and_a_closed_one_is_not(tiny):
    double = tiny.checks["double"]
    with OracleServer(tiny) as oracles:
        oracles.open_child().close()
        os.kill(oracles._process.pid, 9)
        with Oracle(oracles, SEEDS) as oracle:
            assert len(oracle.inputs(double, double.cases[0])["x"]) == 7
    with pytest.raises(CourseError, match="closed"):
        oracles.open_child()
