import socket
import threading
import time

import numpy as np
import pytest

from mlsys_grader.sandbox.inside import wire
from mlsys_grader.sandbox.launcher import Job, SandboxDiedError
from tests.grader.processes import soon


@pytest.fixture
def ends():
    """A job, and the ends of its sockets that a child and its supervisor would hold."""
    channel, child = socket.socketpair()
    supervisor, peer = socket.socketpair()
    yield Job(channel, supervisor), child, peer
    for end in (channel, child, supervisor, peer):
        end.close()


def reply(child, nonce, kind="answer"):
    wire.send(child, wire.Frame(kind, {"nonce": nonce}, {"y": np.ones(2)}), deadline=soon())


def test_an_answer_repeats_the_number_of_its_question(ends):
    job, child, _ = ends
    job.send("case", {"call": "a:b"}, {"x": np.zeros(3)}, deadline=soon())
    question = wire.receive(child, deadline=soon())
    assert question.kind == "case" and question.meta["call"] == "a:b" and len(question.arrays["x"]) == 3
    reply(child, question.meta["nonce"])
    assert job.receive(deadline=soon()).arrays["y"].tolist() == [1, 1]


def test_no_two_questions_have_the_same_number(ends):
    job, child, _ = ends
    numbers = set()
    for _ in range(20):
        job.send("case", {}, deadline=soon())
        numbers.add(wire.receive(child, deadline=soon()).meta["nonce"])
    assert len(numbers) == 20


@pytest.mark.parametrize("nonce", ["", "0" * 32, None, 0, ["x"]])
def test_an_answer_with_another_number_is_refused(ends, nonce):
    job, child, _ = ends
    job.send("case", {}, deadline=soon())
    reply(child, nonce)
    with pytest.raises(wire.WireError, match="answers no question"):
        job.receive(deadline=soon())


def test_an_answer_that_was_there_before_the_question_is_refused(ends):
    job, child, _ = ends
    job.send("case", {}, deadline=soon())
    first = wire.receive(child, deadline=soon()).meta["nonce"]
    reply(child, first)
    reply(child, first)
    job.receive(deadline=soon())
    job.send("case", {}, deadline=soon())
    with pytest.raises(wire.WireError, match="answers no question"):
        job.receive(deadline=soon())


def test_an_answer_that_comes_byte_by_byte_ends_at_the_deadline(ends):
    job, child, _ = ends
    job.send("case", {}, deadline=soon())
    stop = threading.Event()

    def dribble():
        while not stop.wait(0.01):
            child.send(b"M")

    child.sendall(wire.PREFIX.pack(wire.MAGIC, 60_000))
    writer = threading.Thread(target=dribble)
    writer.start()
    try:
        with pytest.raises(wire.DeadlineError):
            job.receive(deadline=time.monotonic() + 0.5)
    finally:
        stop.set()
        writer.join()


def test_an_answer_larger_than_any_lab_needs_is_refused_unread(ends):
    job, child, _ = ends
    job.send("case", {}, deadline=soon())
    header = b'{"kind": "answer", "meta": {}, "arrays": [["y", "int8", [20000, 20000]]]}'
    child.sendall(wire.PREFIX.pack(wire.MAGIC, len(header)) + header)
    with pytest.raises(wire.WireError, match=r"more than 67,108,864 bytes"):
        job.receive(deadline=soon())


@pytest.mark.parametrize(
    ("code", "words"), [(3, "ended itself with status 3"), (-9, "killed by signal 9"), ("x", "its process is gone")]
)
def test_the_supervisor_tells_how_a_child_ended(ends, code, words):
    job, _, peer = ends
    wire.send(peer, wire.Frame("ended", {"code": code}), deadline=soon())
    assert words in str(job.read_exit())


def test_a_supervisor_that_is_gone_without_a_word_means_that_the_sandbox_died(ends):
    job, _, peer = ends
    peer.close()
    with pytest.raises(SandboxDiedError):
        job.read_exit()


def test_a_child_that_closed_its_channel_but_lives_is_told_apart(ends, monkeypatch):
    monkeypatch.setattr("mlsys_grader.sandbox.launcher.EXIT_REPORT_S", 0.5)
    job, child, _ = ends
    child.close()
    assert str(job.read_exit()) == "its process does not answer any more"
