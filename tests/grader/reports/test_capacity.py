import heapq
import random
from statistics import fmean

import pytest

from mlsys_grader.cli import main
from mlsys_grader.reports.capacity import Load, _erlang_c
from mlsys_lab.errors import InputError


def simulated_wait_s(rate, service_s, workers, customers=60_000):
    """Mean time in line of customers who come at random, first come first served."""
    random.seed(7)
    free_at, now, waits = [0.0] * workers, 0.0, []
    for _ in range(customers):
        now += random.expovariate(rate)
        start = max(now, heapq.heappop(free_at))
        waits.append(start - now)
        heapq.heappush(free_at, start + service_s())
    return fmean(waits)


def test_erlang_c_where_it_is_known():
    assert _erlang_c(0.6, 1) == pytest.approx(0.6)  # one worker: the share of time that it is busy
    assert _erlang_c(1.0, 2) == pytest.approx(1 / 3)
    assert _erlang_c(900.0, 1000) < 1e-3


def test_no_variance_halves_the_line_of_one_worker():
    hours, even, random_ = 1.0, Load(1800, 1.0, 0.0, 0.01), Load(1800, 1.0, 1.0, 0.01)
    assert random_.wait_s(1, hours) == pytest.approx(1.0)  # M/M/1, half busy
    assert even.wait_s(1, hours) == pytest.approx(0.5)  # M/D/1


@pytest.mark.parametrize(("workers", "busy"), [(1, 0.7), (4, 3.2), (8, 6.0)])
def test_the_wait_is_that_of_a_simulated_night(workers, busy):
    times = [0.8] * 9 + [3.0]  # nine quick submissions, one slow
    load = Load.from_times(1, times, 0.01)
    students = round(3600 * busy / load.mean_s)
    load = Load.from_times(students, times, 0.01)
    simulated = simulated_wait_s(students / 3600, lambda: random.choice(times), workers)
    assert load.wait_s(workers, 1.0) == pytest.approx(simulated, rel=0.15)


def test_too_few_workers_means_a_line_that_only_grows():
    load = Load(1000, 8.0, 1.0, 0.05)
    assert load.busy_workers(1.0) == pytest.approx(1000 * 8 / 3600)
    assert load.wait_s(2, 1.0) == float("inf")
    assert load.last_wait_s(2, 1.0) == pytest.approx(4000 - 3600)
    assert load.last_wait_s(3, 1.0) == load.wait_s(3, 1.0)


def test_the_gradebook_is_the_part_that_workers_do_not_help():
    load = Load(1000, 2.0, 0.0, 0.1)
    assert load.batch_s(10) == pytest.approx(200)
    assert load.batch_s(load.max_useful_workers) == load.batch_s(1000) == pytest.approx(100)


def test_nothing_measured_is_an_error():
    for students, times, entry_s in ((0, [1.0], 0.1), (5, [], 0.1), (5, [1.0], 0.0)):
        with pytest.raises(InputError, match="no load to plan for"):
            Load.from_times(students, times, entry_s)


@pytest.mark.sandbox
def test_the_command_speaks_of_the_class_that_was_graded(graded, tiny_labs, capsys):
    command = ["--course", str(graded.root), "--labs", str(tiny_labs), "capacity", "tiny"]
    assert main([*command, "--students", "1000", "--count", "12", "--workers", "8"]) == 0
    said = capsys.readouterr().out
    assert "from 3 of 01-tiny" in said
    assert "for 12 labs" in said
    assert "with 8 workers" in said
    assert main([*command, "--hours", "0"]) == 1
    assert "have to be positive" in capsys.readouterr().err
