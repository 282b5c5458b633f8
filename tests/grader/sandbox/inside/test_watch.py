import json
import os
import subprocess
import sys
import time

import pytest

from mlsys_grader.intake.submission import read_submission
from mlsys_grader.judging.judge import judge
from mlsys_grader.sandbox.inside import watch
from tests.grader.inside import MEBIBYTE, ask, named, nobody_is_left

TOGETHER = """\
import os, time
for _ in range({processes}):
    if os.fork() == 0:
        held = np.ones({mebibytes} << 20, np.uint8)
        time.sleep(600)
time.sleep(600)"""


@pytest.mark.sandbox
def test_processes_of_a_job_share_one_budget_of_memory(sandbox):
    body = named("hoard") + TOGETHER.format(processes=8, mebibytes=60)  # each for itself is within it
    assert (
        ask(sandbox, body, memory_bytes=100 * MEBIBYTE, deadline_s=60.0)
        == f"its processes took {watch.MEMORY} together"
    )
    assert nobody_is_left("hoard")


@pytest.mark.sandbox
def test_memory_of_processes_that_left_their_parents_counts(sandbox):
    body = (
        named("flight")
        + "for _ in range(8):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork(): os._exit(0)\n"
    )
    body += "        held = np.ones(60 << 20, np.uint8)\n        time.sleep(600)\ntime.sleep(600)"
    assert watch.MEMORY in ask(sandbox, body, memory_bytes=100 * MEBIBYTE, deadline_s=60.0)
    assert nobody_is_left("flight")


@pytest.mark.sandbox
def test_ranks_within_the_budget_go_on(sandbox):
    body = "import os\npids = []\nfor _ in range(4):\n    pids.append(os.fork())\n    if not pids[-1]:\n"
    body += "        np.ones(20 << 20, np.uint8).sum()\n        os._exit(0)\n"
    body += "assert [os.waitpid(p, 0)[1] for p in pids] == [0] * 4\nreturn 2 * x"
    reply = ask(sandbox, body, memory_bytes=200 * MEBIBYTE)
    assert getattr(reply, "kind", "") == "answer", reply


@pytest.mark.sandbox
def test_memory_that_is_mapped_unwritable_still_costs_its_page_tables(sandbox):
    # A table for each 2 MiB: 2 GiB of them, more than what CUDA's build of torch has mapped and never touched.
    lines = (
        "import mmap\nm = mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)\n"
    )
    lines += "for at in range(0, 1 << 40, 2 << 20): m[at]\nreturn 2 * x"
    assert watch.MEMORY in ask(sandbox, lines, memory_bytes=64 * MEBIBYTE, deadline_s=120.0)


@pytest.mark.sandbox
def test_processor_time_of_all_processes_counts(sandbox):
    body = "import os\nfor _ in range(12):\n    if os.fork() == 0:\n        while True: pass\nos.wait()"
    assert watch.PROCESSOR in ask(sandbox, body, cpu_s=1, deadline_s=240.0)


@pytest.mark.sandbox
def test_sockets_of_all_processes_count(sandbox):
    body = "import os, socket, time\nfor _ in range(12):\n    if os.fork() == 0:\n"
    body += "        held = [socket.socketpair() for _ in range(60)]\n        time.sleep(600)\ntime.sleep(600)"
    assert watch.SOCKETS in ask(sandbox, body, deadline_s=60.0)


TCP = """\
import contextlib, socket, time
held = []
for _ in range(100):
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    one.setblocking(False)
    other.setblocking(False)
    held += [one, other]
    for turn in range(400):
        with contextlib.suppress(BlockingIOError):
            one.send(bytes(200_000))
        with contextlib.suppress(BlockingIOError):
            other.recv(1 << 20 if turn < 200 else 1)
time.sleep(600)"""


@pytest.mark.sandbox
def test_what_waits_in_connections_counts_as_memory(sandbox):
    """The kernel gives larger buffers to a connection on which much is read; then nobody reads it any more."""
    assert watch.MEMORY in ask(sandbox, TCP, memory_bytes=64 * MEBIBYTE, deadline_s=120.0)


@pytest.mark.sandbox
def test_the_judge_says_why(sandbox, oracles, hand_in, tiny, tmp_path):
    path = tmp_path / "01-tiny.ipynb"
    body = "import os, time\nimport numpy as np\ndef total(x):\n    for _ in range(8):\n        if not os.fork():\n"
    body += "            held = np.ones(60 << 20, np.uint8)\n            time.sleep(600)\n    time.sleep(600)\n"
    path.write_text(json.dumps(hand_in(total=body)))
    verdicts = judge(read_submission(path, tiny).artifact, sandbox, oracles, time_factor=10.0)
    assert [verdict.passed for verdict in verdicts] == [True, True, False]
    assert (
        verdicts[-1].reason
        == "it needs too much memory: got its processes took too much memory together, expected less"
    )


def monitor(code):
    """A watch over a program that announces its budget and then runs on; and the program."""
    read, write = os.pipe()
    announce = f"watch.send_budget({write}, memory_bytes=64 << 20, cpu_s=1)"
    lines = f"from mlsys_grader.sandbox.inside import watch\n{announce}\ninput()\n{code}"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    running = subprocess.Popen([sys.executable, "-c", lines], pass_fds=[write], **pipes)
    os.close(write)
    proc = os.open("/proc", os.O_RDONLY)
    found = watch.Monitor(proc, running.pid)
    found.read_budget(read)
    running.stdin.write(b"go on\n")  # what it takes before the watch has begun is not its own doing
    running.stdin.flush()
    return found, running


def test_a_watch_says_nothing_of_an_honest_program_and_of_one_that_is_gone():
    found, running = monitor("import sys; print(1, flush=True); sys.stdin.read()")
    running.stdout.read(2)
    assert found.excess() == ""
    running.kill()
    running.communicate()
    assert found.excess() == ""


def test_a_watch_counts_memory_beyond_what_was_there_at_the_start():
    found, running = monitor("held = bytearray(b'1' * (200 << 20)); print(1, flush=True); import time; time.sleep(600)")
    running.stdout.read(2)
    assert found.excess() == watch.MEMORY
    running.kill()
    running.communicate()


CROWD = """\
import os, time
parent = os.getpid()
for _ in range(20):
    if os.fork() == 0:
        while os.getppid() == parent: pass
        os._exit(0)
time.sleep(600)"""


def test_threads_of_a_job_that_wait_for_each_other_do_not_add_up_to_a_busy_machine():
    start, cpu_s = time.monotonic(), 0.0
    found, running = monitor(CROWD)
    while cpu_s < 2.0:
        time.sleep(0.2)
        cpu_s, waited_s = found.time_used()
    passed_s = time.monotonic() - start
    running.kill()
    running.communicate()
    assert waited_s < passed_s


CHAIN = """\
import contextlib, os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(12):
    if os.fork() == 0:
        end = time.process_time() + 0.1
        while time.process_time() < end: pass
        os.write(1, b"1")
        os.read(0, 1)
        os._exit(0)
    with contextlib.suppress(ChildProcessError): os.wait()
os.write(1, b"2")
time.sleep(600)"""


def test_what_children_had_used_counts_where_nobody_waits_for_them():
    """The kernel adds a child's time to its parent's when that waits for it, and drops it else."""
    found, running = monitor(CHAIN)
    while os.read(running.stdout.fileno(), 1) == b"1":  # one has done its work, and waits to be let go
        found.time_used()
        os.write(running.stdin.fileno(), b"1")
    assert found.time_used()[0] > 1.1
    running.kill()
    running.communicate()
