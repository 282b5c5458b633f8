import re
from dataclasses import replace

import pytest

from mlsys_checks.sandboxed.spec import Mismatch
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.judging import oracle
from mlsys_grader.judging import verdict as module
from mlsys_grader.judging.judge import _SubmissionJudge, judge
from mlsys_grader.judging.oracle import Oracle, OracleServer, draw_seed
from mlsys_grader.judging.problem import Problem
from mlsys_grader.judging.process import Process
from mlsys_grader.judging.verdict import fail_all

pytestmark = pytest.mark.sandbox


@pytest.fixture
def opened(sandbox, monkeypatch):
    """A list that grows by one for every process that is opened."""
    jobs = []
    real = sandbox.open_job
    monkeypatch.setattr(sandbox, "open_job", lambda **how: jobs.append(real(**how)) or jobs[-1])
    return jobs


@pytest.fixture
def faulty_verdicts(tiny, sandbox, artifact, monkeypatch):
    """Judge a `double` by checks whose trusted side fails; verdicts by check."""
    monkeypatch.setattr(oracle, "LIMIT_S", 0.3)
    lab = GradedLab(replace(tiny.info, checks_module="faulty_checks"))
    monkeypatch.setattr(sandbox, "lab", lab)

    def of(double="def double(x):\n    return 2 * x\n"):
        with OracleServer(lab) as oracles:
            return {v.check: v for v in judge(artifact(double=double), sandbox, oracles, time_factor=3.0)}

    return of


COUNTING = "calls = 0\ndef double(x):\n    global calls\n    calls += 1\n    {body}\n"
TELLS = "def {name}(x):\n    raise ValueError(f'{{calls}} calls')\n"


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


@pytest.fixture
def asked(monkeypatch):
    """A list of the cases that were asked, in order: the check's name, and whether the case is hidden."""
    found = []
    real = Oracle.inputs

    def inputs(oracle, check, case):
        found.append((check.name, case.hidden))
        return real(oracle, check, case)

    monkeypatch.setattr(Oracle, "inputs", inputs)
    return found


def test_hidden_cases_come_after_the_public_cases_of_all_checks(verdicts, asked):
    assert all(v.passed for v in verdicts().values())
    assert asked == [("double", False), ("double", False), ("mean", False), ("total", False), ("mean", True)]


def test_a_check_that_fails_a_public_case_is_asked_no_hidden_one(verdicts, asked):
    assert not verdicts(mean="def mean(x):\n    return 7\n")["mean"].passed
    assert asked == [("double", False), ("double", False), ("mean", False), ("total", False)]


def end(job):
    """Kill a process of a submission, and wait until it is dead."""
    job.kill()
    while job.supervisor.recv(4096):
        pass


KEEPS = "KEPT = {}\ndef mean(x):\n    return KEPT.setdefault('first', x.sum() / max(len(x), 1))\n"


@pytest.mark.parametrize("is_killed", [False, True])
def test_an_answer_kept_from_a_public_case_shows_in_the_hidden_one(verdicts, opened, monkeypatch, is_killed):
    """In a fresh process, too: it is asked the public case before."""
    real = Oracle.inputs

    def inputs(oracle, check, case):
        if case.hidden and is_killed:
            end(opened[0])
        return real(oracle, check, case)

    monkeypatch.setattr(Oracle, "inputs", inputs)
    mean = verdicts(mean=KEEPS)["mean"]
    assert (mean.earned, mean.hidden, mean.case) == (0, True, "no numbers")


def test_once_hidden_cases_are_asked_not_even_a_failure_to_load_is_quoted(verdicts, opened, monkeypatch):
    real_inputs, real_load = Oracle.inputs, _SubmissionJudge._load

    def inputs(oracle, check, case):
        if case.hidden:
            end(opened[0])  # so that another process has to load the cells
        return real_inputs(oracle, check, case)

    def load(examination, *given):
        if any(check.name == "mean" for check in examination._left) and len(opened) > 2:
            return Problem(Mismatch("secret", "secret", "secret"))
        return real_load(examination, *given)

    monkeypatch.setattr(Oracle, "inputs", inputs)
    monkeypatch.setattr(_SubmissionJudge, "_load", load)
    mean = verdicts()["mean"]
    assert (mean.earned, mean.hidden, mean.case) == (0, True, "no numbers")
    assert (mean.what, mean.got, mean.expected) == ("a case that is not shown fails", "", "")


ENDLESS = "RAN = []\ndef never():\n    RAN.append(1)\n    while True: pass\nX = never()\n"


def test_a_statement_that_does_not_end_is_run_in_one_process_only(verdicts, monkeypatch):
    skipped = []
    real = Process.send_artifact

    def send_artifact(process, artifact, check, checks, texts, endless):
        skipped.append(len(endless))
        real(process, artifact, check, checks, texts, endless)

    monkeypatch.setattr(Process, "send_artifact", send_artifact)
    got = verdicts(
        double=f"{ENDLESS}def double(x):\n    raise ValueError(f'ran {{len(RAN)}} times')\n",
        mean="def mean(x):\n    raise ValueError(f'ran {len(RAN)} times: {X}')\n",
    )
    assert "ran 1 times" in got["double"].reason and got["total"].passed
    assert "name 'X' is not defined (" in got["mean"].reason and "X = never()" in got["mean"].reason
    assert skipped == [0, 1, 1]


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
    got = verdicts(double=f"def double(x):\n    {body}\n")
    assert [v.earned for v in got.values()] == [0, 2, 3]
    assert re.search(reason, got["double"].reason), got["double"].reason


def test_parameters_that_do_not_fit_are_told_with_the_call_out_of_the_sandbox(verdicts):
    got = verdicts(double="def double(x, y):\n    return 2 * x\n")["double"]
    assert got.what == "`double` does not take the arguments of the task"
    assert "missing 1 required positional argument: 'y', at cell" in got.got
    assert got.expected == "parameters for `double(arrays['x'])`"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module as m\n\ndef double(x, by=m.TWO):\n    return by * x\n", "ModuleNotFoundError"),
        ("def double(x:\n    return 2 * x\n", "syntax error in cell"),
        ("def double(x, by=1 / 0):\n    return 2 * x\n", "ZeroDivisionError"),
        ("%%bash\ndef double(x):\n", "something else than Python"),
    ],
)
def test_a_cell_that_fails_costs_the_checks_that_need_it_only(verdicts, source, reason):
    got = verdicts(double=source)
    assert [v.earned for v in got.values()] == [0, 2, 3]
    assert reason in got["double"].reason and "cell" in got["double"].reason


@pytest.mark.parametrize(
    "line",
    [
        "1 / 0",
        "from google.colab import drive\ndrive.mount('/content/drive')",
        "input('Who are you? ')",
        "from __future__ import annotations",
        "import asyncio\nawait asyncio.sleep(0)",
        "%time y = 3",
        "!pip install it's",
        "len?",
        "display(1)",
        "import no_such_module",
    ],
)
def test_what_only_a_notebook_or_another_machine_knows_costs_nothing(verdicts, line):
    got = verdicts(double=f"import math\n{line}\n\ndef double(x):\n    return 2 * x\n")
    assert [v.earned for v in got.values()] == [1, 2, 3]


def test_inputs_are_drawn_anew_each_time_and_the_secret_ones_stay_out(verdicts):
    leak = "def double(x, **more):\n    raise ValueError(repr(x.tolist()))\n"
    first, second = verdicts(double=leak)["double"], verdicts(double=leak)["double"]
    assert first.seed != second.seed
    assert first.got != second.got


def test_a_seed_cannot_be_foreseen(tiny):
    check = tiny.checks["double"]
    assert len({draw_seed(check, 0) for _ in range(50)}) == 50
    assert all(0 <= draw_seed(check, 0) < 2**64 for _ in range(50))


def test_a_slip_in_a_check_is_a_fault_and_no_verdict(faulty_verdicts):
    got = faulty_verdicts()
    assert "an oracle's slip" in got["expect_fails"].fault
    assert "its inputs are not drawn within" in got["draw_never_ends"].fault
    assert got["double"].fault == "" and got["double"].passed


def test_an_answer_on_which_the_comparison_never_ends_costs_its_own_check(faulty_verdicts):
    got = faulty_verdicts()["compare_never_ends"]
    assert (got.earned, got.fault, got.what) == (0, "", "its answer takes too long to compare")


def test_an_answer_that_is_too_large_is_not_read(verdicts):
    got = verdicts(double="import numpy as np\ndef double(x):\n    return np.zeros(1 << 20)\n")
    assert (got["double"].earned, got["double"].what) == (0, "its answer is too large")
    assert got["mean"].passed and got["total"].passed


def test_what_cannot_be_judged_is_refused_check_by_check(tiny):
    got = fail_all(tiny.checks.checks, Mismatch("the file is damaged"))
    assert [(v.check, v.points, v.earned, v.reason) for v in got] == [
        ("double", 1, 0, "the file is damaged"),
        ("mean", 2, 0, "the file is damaged"),
        ("total", 3, 0, "the file is damaged"),
    ]


def test_text_from_the_sandbox_becomes_one_short_printable_line():
    line = module.to_line("a\x1b[31m\n\u202eb" + "c" * 1000)
    assert "\x1b" not in line and "\n" not in line and "\u202e" not in line
    assert len(line) == module.MAX_CHARACTERS


def test_one_process_serves_the_submission_and_one_the_memory_budget(verdicts, opened):
    assert all(v.passed for v in verdicts().values())
    assert len(opened) == 2


def test_what_passed_may_leave_traces_for_the_next_check_but_not_in_a_memory_budget(verdicts):
    got = verdicts(
        double=COUNTING.format(body="return 2 * x"), mean=TELLS.format(name="mean"), total=TELLS.format(name="total")
    )
    assert "2 calls" in got["mean"].reason
    assert "0 calls" in got["total"].reason


@pytest.mark.parametrize("body", ["return 3 * x", "raise KeyError(1)", "while True: pass", "import os; os._exit(0)"])
def test_after_a_failure_the_next_check_gets_a_fresh_process(verdicts, body, opened):
    got = verdicts(double=COUNTING.format(body=body), mean=TELLS.format(name="mean"))
    assert "0 calls" in got["mean"].reason
    assert not got["double"].passed and got["total"].passed
    assert len(opened) == 3


def test_a_task_that_is_not_written_costs_no_process(verdicts, opened):
    got = verdicts(double=None)
    assert [v.earned for v in got.values()] == [0, 2, 3]
    assert len(opened) == 2


def outcome(verdict):
    return replace(verdict, time_s=0.0, call_s=0.0)


def test_the_same_seeds_give_the_identical_verdict(verdicts):
    tasks = {
        "double": "import numpy as np\ndef double(x):\n    return 2 * x + np.random.rand(len(x)).round(3)\n",
        "mean": "import random\ndef mean(x):\n    raise ValueError(f'{x.tolist()} {random.random()}')\n",
    }
    first = verdicts(**tasks)
    again = verdicts(**tasks, seeds={name: v.seed for name, v in first.items()})
    assert [outcome(v) for v in again.values()] == [outcome(v) for v in first.values()]
    other = verdicts(**tasks)
    assert {other[name].got for name in tasks} & {first[name].got for name in tasks} == set()


def test_random_numbers_do_not_depend_on_what_was_asked_before(verdicts):
    mean = "import torch\ndef mean(x):\n    raise ValueError(torch.rand(1).item())\n"
    seeds = {"double": 1, "mean": 2, "total": 3}
    drawing = "import torch\ndef double(x):\n    torch.rand(100)\n    return 2 * x\n"
    assert verdicts(seeds, mean=mean)["mean"].got == verdicts(seeds, mean=mean, double=drawing)["mean"].got


def test_the_time_of_the_sandbox_is_told_apart(verdicts):
    got = verdicts(double="import time\ndef double(x):\n    time.sleep(0.3)\n    return 2 * x\n")["double"]
    assert 0.6 <= got.call_s <= got.time_s


def test_an_oracle_that_fails_beside_a_submission_that_does_is_not_asked_for(faulty_verdicts):
    got = faulty_verdicts("def double(x):\n    raise KeyError(1)\n")["expect_fails"]
    assert "KeyError" in got.reason and not got.fault
