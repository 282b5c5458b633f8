import socket
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from mlsys_grader.judging import judge as module_of_judge
from mlsys_grader.judging import process as module
from mlsys_grader.judging.process import Process
from mlsys_grader.sandbox.inside import wire
from mlsys_grader.sandbox.launcher import TimeUsed

pytestmark = pytest.mark.sandbox


@pytest.mark.parametrize(
    ("busy_s", "used", "worked_s"),
    [
        (100, TimeUsed(cpu_s=2.0, waited_s=0.0), 100),  # it sleeps on an idle machine
        (100, TimeUsed(cpu_s=40.0, waited_s=40.0), 50),  # it works while another does, and so does the judge
        (160, TimeUsed(cpu_s=5.0, waited_s=75.0), 10),  # many small messages on a machine at load 16
        (3600, TimeUsed(cpu_s=1.0, waited_s=1000.0), 180),  # it sleeps, having kept itself from a processor before
        (10, TimeUsed(cpu_s=30.0, waited_s=0.0), 30),  # several of its processes work at once
        (10, None, 10),  # nobody counts
        (0.4, TimeUsed(cpu_s=0.1, waited_s=0.3), 0.4),
    ],
)
def test_of_the_time_that_was_waited_for_it_the_share_at_work_counts(busy_s, used, worked_s):
    process = Process(SimpleNamespace(time_used=lambda: used), traced=False, time_factor=1.0)
    process.busy_s = busy_s
    process.settle()
    assert process.worked_s == pytest.approx(worked_s)


def test_messages_do_not_prolong_the_time_of_a_question(tiny, monkeypatch):
    """Asleep between two messages, a process is at work: of all together as long as it may without any."""
    monkeypatch.setattr(module, "GRACE_S", 0.2)
    ours, theirs = socket.socketpair()
    told = SimpleNamespace(
        channel=ours,
        send=lambda *_, **__: None,
        receive=lambda **_: wire.receive(ours),
        time_used=lambda: TimeUsed(cpu_s=0.0, waited_s=0.0),
    )
    process = Process(told, traced=False, time_factor=1.0)
    check, over = replace(tiny.checks.checks[0], time_limit_s=0.4), threading.Event()

    def send_messages():
        while not over.wait(0.1):
            wire.send(theirs, wire.Frame("query"))

    with ours, theirs:
        process.send_case(check, {}, 0)
        sending = threading.Thread(target=send_messages)
        sending.start()
        with pytest.raises(wire.DeadlineError, match="too long"):
            for _ in range(100):
                process.receive()
        over.set()
        sending.join()
    assert process.busy_s > 0.9  # a limit until the first look, with its grace, and one from there


def test_a_submission_that_has_taken_its_time_loses_what_is_left(verdicts, monkeypatch, tiny):
    monkeypatch.setattr(Process, "settle", lambda self: setattr(self, "worked_s", self.busy_s))  # whatever the load
    checks = tuple(replace(check, time_limit_s=0.5) for check in tiny.checks.checks)
    monkeypatch.setitem(tiny.__dict__, "checks", replace(tiny.checks, checks=checks))
    monkeypatch.setattr(module_of_judge, "BUDGET_S", 1.0)
    got = verdicts(double="import time\ndef double(x):\n    time.sleep(0.8)\n    return 2 * x\n")
    assert [v.earned for v in got.values()] == [1, 0, 0]
    assert got["mean"].what == got["total"].what == "the submission takes too long"


def test_what_public_cases_took_leaves_time_for_the_hidden_ones(verdicts, monkeypatch, tiny):
    monkeypatch.setattr(Process, "settle", lambda self: setattr(self, "worked_s", self.slept_s))
    monkeypatch.setattr(Process, "slept_s", 0.0, raising=False)
    real = Process.send_case

    def send_case(process, check, inputs, random_seed):
        process.slept_s += 100.0 * (check.name == "mean" and len(inputs["x"]) > 0)
        real(process, check, inputs, random_seed)

    monkeypatch.setattr(Process, "send_case", send_case)
    monkeypatch.setattr(module_of_judge, "BUDGET_S", 90.0)
    got = verdicts()
    assert [v.earned for v in got.values()] == [1, 2, 0]
    assert got["total"].reason == (
        "the submission takes too long: got more than 90 s at work, expected less for all checks together"
    )


def test_a_submission_has_a_ceiling_by_the_clock(verdicts, monkeypatch, tiny):
    """However little of its time it was at work, as far as anybody can tell."""
    monkeypatch.setattr(Process, "settle", lambda self: None)
    monkeypatch.setattr(module_of_judge, "BUDGET_S", 6.0)
    monkeypatch.setattr(module_of_judge, "WALL_CLOCK_FACTOR", 0.25)
    got = verdicts(double="import time\ndef double(x):\n    time.sleep(1.6)\n    return 2 * x\n")
    assert [v.earned for v in got.values()] == [0, 0, 0]
    for verdict in got.values():
        assert "the submission takes too long: got more than 1.5 s by the clock" in verdict.reason


def test_nobody_waits_for_a_process_beyond_its_deadline(tiny, monkeypatch):
    monkeypatch.setattr(module, "GRACE_S", 0.1)
    ours, theirs = socket.socketpair()
    starved = SimpleNamespace(
        channel=ours, send=lambda *_, **__: None, time_used=lambda: TimeUsed(cpu_s=0.0, waited_s=time.monotonic())
    )
    process = Process(starved, traced=False, time_factor=1.0, deadline=time.monotonic() + 1.0)
    check = replace(tiny.checks.checks[0], time_limit_s=0.3)
    with ours, theirs:
        process.send_case(check, {}, 0)
        with pytest.raises(wire.DeadlineError, match="too long"):
            process.receive()
    assert 0.5 < process.busy_s < module.WALL_CLOCK_FACTOR * check.time_limit_s


FORGER = """
import json, os, socket, struct, sys


def channel():
    for number in range(3, 64):
        try:
            return socket.socket(fileno=os.dup(number))
        except OSError:
            continue


def question():
    frame = sys._getframe()
    while frame:
        if "request" in frame.f_locals:
            return frame.f_locals["request"]
        frame = frame.f_back


def send(nonce, y):
    header = json.dumps({"kind": "answer", "meta": {"nonce": nonce}, "arrays": [["y", "float64", list(y.shape)]]})
    channel().sendall(struct.pack("<4sI", b"MLS1", len(header)) + header.encode() + y.tobytes())
"""


def test_an_answer_to_no_question_is_refused(verdicts):
    """Right in value, ahead of its question: the number of a question cannot be known before it is put."""
    got = verdicts(double=FORGER + "def double(x):\n    send('0' * 32, 2 * x)\n    return 2 * x\n")
    assert [v.earned for v in got.values()] == [0, 2, 3]
    assert "channel" in got["double"].reason


def test_frames_left_in_the_channel_answer_no_later_question(verdicts):
    """The last answer to double is followed by a frame with its number, in wait for whoever asks next."""
    double = FORGER + (
        "import numpy as np\nseen = []\ndef double(x):\n    seen.append(x)\n    nonce = question().meta['nonce']\n"
        "    if len(seen) == 2:\n        send(nonce, 2 * x)\n    return 2 * x\n"
    )
    got = verdicts(double=double, mean="def mean(x):\n    return 0 * x.sum()\n")
    assert (got["double"].earned, got["mean"].earned, got["total"].earned) == (1, 0, 3)
    assert "channel" in got["mean"].reason
