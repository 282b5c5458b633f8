"""Programs of several ranks, each in a jailed process of its own: the judge carries and counts what they send."""

from __future__ import annotations

import numpy as np
import pytest
import ring_checks

from mlsys_checks.sandboxed.attempt import attempt
from mlsys_checks.sandboxed.ranks import LOGS, join_ranks
from mlsys_checks.trusted.artifact import Artifact, Cell
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.judging import router
from mlsys_grader.judging.judge import judge
from mlsys_grader.judging.oracle import OracleServer
from mlsys_grader.sandbox.sandbox import Sandbox
from mlsys_lab.stack.labinfo import LabInfo

pytestmark = pytest.mark.sandbox

DOUBLE = "def double(x):\n    return 2 * x\n"
SHIFT = """\
def shift(rank, x):
    request = rank.isend(x, (rank.rank + 1) % rank.size)
    got = rank.recv((rank.rank - 1) % rank.size)
    request.wait()
    return got
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labs") / "01-ring"
    return GradedLab(LabInfo(folder, "ring", "ring", 1, 4, checks_module=ring_checks.__name__))


@pytest.fixture(scope="module")
def sandbox(lab):
    with Sandbox(lab) as running:
        yield running


@pytest.fixture(scope="module")
def verdicts(lab, sandbox):
    """Judge a program; its verdicts by check."""
    with OracleServer(lab) as oracles:

        def judge_program(shift: str, double: str = DOUBLE, time_factor: float = 3.0):
            source = f"#| export\nimport torch\n\n\n{double}\n\n{shift}"
            artifact = Artifact("01-ring.ipynb", (Cell(1, source),))
            return {verdict.check: verdict for verdict in judge(artifact, sandbox, oracles, time_factor=time_factor)}

        yield judge_program


@pytest.fixture
def opened(sandbox, monkeypatch):
    """A list that grows by one for every process that is opened."""
    jobs = []
    real = sandbox.open_job
    monkeypatch.setattr(sandbox, "open_job", lambda **how: jobs.append(real(**how)) or jobs[-1])
    return jobs


def test_a_right_program_gets_all_points_in_as_many_processes_as_ranks(verdicts, opened):
    assert [verdict.earned for verdict in verdicts(SHIFT).values()] == [1, 2, 1]
    assert len(opened) == 4


def test_ranks_share_nothing_but_messages(verdicts):
    shared = "BOX = []\n\n\ndef shift(rank, x):\n    BOX.append(x)\n    rank.barrier()\n    return BOX[rank.rank - 1]\n"
    verdict = verdicts(shared)["shift"]
    assert verdict.earned == 0 and verdict.what.startswith("on rank 0: `y` is wrong in 3 of 3 entries")


LOSING = {
    "deadlock": (
        SHIFT.replace("request = rank.isend", "rank.send").replace("    request.wait()\n", ""),
        ("the ranks wait for each other", "rank 0 waits to send to rank 1; rank 1 waits to send to rank 0"),
    ),
    "waits for one that has ended": (
        "def shift(rank, x):\n    return x if rank.rank else rank.recv(1)\n",
        ("the ranks wait for each other", "rank 0 waits to receive from rank 1; rank 1 has ended"),
    ),
    "nobody receives": (
        f"{SHIFT.rstrip()[:-10]}rank.isend(x, (rank.rank + 1) % rank.size)\n    return got\n",
        ("all ranks have ended, but rank 0 waits to send to rank 1", ""),
    ),
    "raises on one rank": (
        SHIFT.replace("    got", "    1 / rank.rank\n    got"),
        ("on rank 0: your code stopped with an exception", "ZeroDivisionError: division by zero, at cell 1"),
    ),
    "sends twice": (
        f"{SHIFT}\n\nplain = shift\n\n\ndef shift(rank, x):\n    plain(rank, x)\n    return plain(rank, x)\n",
        ("too much is sent", "96 bytes, 2 steps"),
    ),
    "loops on one rank": (
        SHIFT.replace("    got", "    while rank.rank == 1:\n        pass\n    got"),
        ("on rank 1: it did not come to an end", "no answer after 3 s"),
    ),
    "another shape than asked for": (
        SHIFT.replace("% rank.size)\n    request", "% rank.size, like=x[1:])\n    request"),
        ("on rank 0: your code stopped with an exception", "another array than it expects"),
    ),
    "an unwritten task": (
        "def shift(rank, x):\n    raise NotImplementedError\n",
        ("not written yet", ""),
    ),
    "a type that cannot cross": (
        SHIFT.replace("isend(x", "isend(x.to(torch.bfloat16)"),
        ("on rank 0: your code stopped with an exception", "torch.bfloat16"),
    ),
    "floods": (
        "def shift(rank, x):\n    while True:\n        rank.isend(x, 1 - rank.rank)\n",
        (": the ranks send too many messages", "more than 4,096 posts"),
    ),
    "sends without end": (
        "def shift(rank, x):\n    while True:\n        rank.isend(torch.zeros(1 << 18), 1 - rank.rank)\n",
        (": the ranks send too much", "more than 67,108,864 bytes"),
    ),
    "ends its process": (
        "import os\n\n\ndef shift(rank, x):\n    if rank.rank:\n        os._exit(0)\n    return rank.recv(1)\n",
        ("on rank 1: it ended the process instead of giving an answer", "status 0"),
    ),
    "holds as much memory as all ranks may together": (
        SHIFT.replace("    got", "    held = torch.ones(64 << 20)\n    got"),
        ("on rank 1: it needs too much memory", ""),
    ),
    "says much by the shape of nothing": (
        f"{SHIFT}\n\nplain = shift\n\n\ndef shift(rank, x):\n"
        "    assert plain(rank, torch.empty(0, 12345)).shape[1] == 12345\n    return plain(rank, x)\n",
        ("too much is sent", "50 bytes, 2 steps"),
    ),
}


@pytest.mark.parametrize("name", LOSING)
def test_what_goes_wrong_costs_the_check_alone_and_is_told(verdicts, name):
    program, (what, got) = LOSING[name]
    judged = verdicts(program)
    assert [judged[check].earned for check in judged] == [1, 0, 1]
    assert what in judged["shift"].what and got in judged["shift"].got, judged["shift"]


def test_no_rank_ends_itself_by_the_clock(verdicts):
    """Asleep, or in wait for another, a program may take 18 times a rank's limit: what ends it is the judge's look."""
    slow = """\
import time


def shift(rank, x):
    def rest():
        time.sleep(0 if rank.rank else 0.45)

    rest()
    request = rank.isend(x, (rank.rank + 1) % rank.size)
    rest()
    got = rank.recv((rank.rank - 1) % rank.size)
    rest()
    request.wait()
    rest()
    return got
"""
    verdict = verdicts(slow, time_factor=0.1)["shift"]
    assert verdict.earned == 2, verdict


def test_logs_are_those_of_threads(lab, sandbox, verdicts, monkeypatch):
    """Whoever runs a program, threads or judged processes, what they posted is the same, event for event."""
    logged = []
    monkeypatch.setattr(router.MessageRouter, "find_unreceived", lambda self: logged.append(self.logs))
    group = """\
def shift(rank, x):
    pair = rank.group([1, 0]) if rank.size == 2 else rank
    requests = [pair.isend(x, (pair.rank + 1) % pair.size), rank.isend(x[:1], (rank.rank + 1) % rank.size)]
    got = [one.recv((one.rank - 1) % one.size) for one in (rank, pair)]
    for request in requests[::-1]:
        request.wait()
    rank.barrier()
    return got[1]
"""
    verdicts(group)
    check = lab.checks["shift"]
    given = check.inputs(np.random.default_rng(0), check.cases[0])
    names: dict = {}
    exec(group, names)
    threads = attempt(check, type("Module", (), {"shift": staticmethod(names["shift"])}), given, patience=20.0).arrays
    judged = join_ranks([{"y": np.zeros(1)}] * 2, logged[0])
    assert threads is not None
    told = {name: array.tolist() for name, array in threads.items() if name.startswith(LOGS)}
    assert told == {name: array.tolist() for name, array in judged.items() if name.startswith(LOGS)}
    assert sum(map(len, told.values())) > 10
