"""The process that reads what was submitted: each of its bounds is one line, and it goes on."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from mlsys_grader.intake.bounded import ENTRY, Worker
from mlsys_lab.errors import InputError
from tests.grader.processes import alive, gone


@pytest.fixture
def worker():
    made = []

    def make(**bounds):
        made.append(Worker(**bounds))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.mark.parametrize(
    ("bounds", "call", "said"),
    [
        ({"cpu_s": 1}, (re.fullmatch, "(a+)+b", "a" * 60), "more than 1 s of processor time"),
        ({}, (bytes, 8 << 30), "more than 2 GiB of memory"),
        ({"output_bytes": 1 << 20}, (bytes, 2 << 20), "more than 1 MB"),
        ({"wall_s": 1.0}, (time.sleep, 600), "no answer after 1 s"),
        ({}, (os.abort,), "the process that reads it has ended"),
        ({}, (int, "1" * 5000), "ValueError: Exceeds the limit"),
    ],
)
def test_each_bound_is_one_line_and_the_next_call_is_answered(worker, bounds, call, said):
    bounded = worker(**bounds)
    with pytest.raises(InputError, match=re.escape(f"it cannot be read: got {said}")):
        bounded.call(*call)
    assert bounded.call(re.escape, "\ud800.") == "\ud800\\."
    assert bounded.call(bytes, 3) == b"\0\0\0"


def test_one_process_serves_many_calls_and_time_is_counted_for_each(worker):
    bounded = worker(cpu_s=1)
    pids = {bounded.call(os.getpid)}
    while bounded.call(time.process_time) < 3:
        bounded.call(sum, range(5_000_000))
        pids.add(bounded.call(os.getpid))
    assert len(pids) == 1


def test_an_interrupt_ends_the_wait_and_the_process(worker):
    bounded = worker()
    pid = bounded.call(os.getpid)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        bounded.call(time.sleep, 600)
    assert not alive(pid)


def test_another_thread_can_end_the_wait(worker):
    bounded, said = worker(), []

    def wait():
        with pytest.raises(InputError) as caught:
            bounded.call(time.sleep, 600)
        said.append(str(caught.value))

    bounded.call(os.getpid)
    thread = threading.Thread(target=wait)
    thread.start()
    while thread.is_alive():  # it may not have asked yet
        time.sleep(0.1)
        bounded.stop()
    assert len(said) == 1


def test_a_worker_does_not_outlive_its_grader():
    worker = "import os, time; from mlsys_grader.intake.bounded import run_bounded"
    program = f"{ENTRY.partition('; from')[0]}; {worker}; print(run_bounded(os.getpid), flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as grader:
        pid = int(grader.stdout.readline())
        grader.kill()
    assert gone([pid])
