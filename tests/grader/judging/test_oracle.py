import threading
from dataclasses import replace

import numpy as np
import pytest

from mlsys_grader.judging.oracle import Fault, Oracle, warm_up
from mlsys_lab.checks.deciding.verdict import draw_inputs

SEEDS = {"double": 5, "mean": 6, "total": 7}


def equal(a, b):
    return list(a) == list(b) and all(np.array_equal(a[name], b[name]) for name in a)


def test_inputs_are_those_of_the_seed_drawn_ahead_or_not(tiny):
    double, mean = tiny.checks["double"], tiny.checks["mean"]
    with Oracle(SEEDS) as oracle:
        oracle.draw_ahead(mean, mean.cases[0])
        for check in (double, mean):
            for case in check.cases:
                assert equal(oracle.inputs(check, case), draw_inputs(check, case, SEEDS[check.name]))


def test_the_random_seed_of_a_case_is_its_own_and_not_the_secret_one(tiny):
    double, mean = tiny.checks["double"], tiny.checks["mean"]
    with Oracle(SEEDS) as oracle, Oracle(SEEDS) as replayed:
        seeds = [oracle.random_seed(check, case) for check in (double, mean) for case in check.cases]
        assert seeds == [replayed.random_seed(check, case) for check in (double, mean) for case in check.cases]
    assert len(set(seeds)) == 4 and not set(seeds) & set(SEEDS.values())
    assert all(0 <= seed < 2**32 for seed in seeds)


@pytest.mark.parametrize("side", ["inputs", "expect"])
def test_what_fails_in_the_course_s_own_code_is_a_fault_when_it_is_needed(tiny, side):
    def broken(*_):
        raise ZeroDivisionError("slip")

    check = replace(tiny.checks["double"], **{side: broken})
    with Oracle(SEEDS) as oracle:
        oracle.draw_ahead(check, check.cases[0])
        with pytest.raises(Fault, match="check 'double' itself failed: ZeroDivisionError: slip"):
            oracle.compare(check, {}, oracle.expect_ahead(check, oracle.inputs(check, check.cases[0])))


def test_leaving_an_oracle_does_not_start_what_nobody_waits_for(tiny):
    begun, go_on, drawn = threading.Event(), threading.Event(), []

    def slow(rng, case):
        begun.set()
        assert go_on.wait(120)
        drawn.append(case.name)
        return {}

    check = replace(tiny.checks["double"], inputs=slow)
    with Oracle(SEEDS) as oracle:
        for case in check.cases:
            oracle.draw_ahead(check, case)
        assert begun.wait(120)
        threading.Timer(0.2, go_on.set).start()
    assert drawn == ["seven numbers"]


def test_warming_up_asks_every_oracle_but_those_with_a_memory_budget_and_survives_a_broken_one(tiny):
    asked = []

    def spy(check):
        def expect(arrays):
            asked.append(check.name)
            raise ZeroDivisionError

        return replace(check, expect=expect)

    lab = replace(tiny.checks, checks=tuple(map(spy, tiny.checks.checks)))
    warm_up(lab, stop=threading.Event())
    assert asked == ["double", "mean"]
    stopped = threading.Event()
    stopped.set()
    warm_up(lab, stop=stopped)
    assert asked == ["double", "mean"]
