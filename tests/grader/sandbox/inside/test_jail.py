import os

import pytest

from mlsys_grader.sandbox.inside import jail, worker
from tests.grader.inside import answer, ask, begin, named, nobody_is_left

pytestmark = pytest.mark.sandbox
BOMB = """\
import threading, time
while True:
    try:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    except RuntimeError:
        return 2 * x"""
THREADS = """\
import threading
wait = threading.Event()
threads = [threading.Thread(target=wait.wait) for _ in range(100)]
for thread in threads: thread.start()
wait.set()
return 2 * x"""


def test_a_job_that_starts_all_it_may_takes_no_thread_from_another(sandbox):
    with sandbox.job() as bombed:
        deadline = begin(bombed, named("stays") + BOMB)
        assert bombed.receive(deadline=deadline).kind == "answer"  # all its threads are there, and stay
        assert not nobody_is_left("stays")
        reply = ask(sandbox, THREADS)
        assert getattr(reply, "kind", "") == "answer", reply
    assert nobody_is_left("stays")
    many = "import threading\nwait = threading.Event()\ntry:\n"
    many += "    while True: threading.Thread(target=wait.wait).start()\n"
    assert "can't start new thread" in ask(sandbox, f"{many}finally: wait.set()").meta["got"]


def test_each_job_of_a_launcher_that_is_root_is_another_user(sandbox):
    users = {answer(sandbox, "os.getuid()") for _ in range(3)}
    assert len(users) == 3 if os.geteuid() == 0 else users == {jail.NOBODY}


def test_no_right_can_be_had_back(sandbox):
    lines = ("import ctypes\nlibc = ctypes.CDLL(None)", "libc.setresuid(0, 0, 0)", "libc.setresgid(0, 0, 0)")
    found = answer(
        sandbox, f"[{', '.join(lines[1:])}, libc.prctl(23, 21, 0, 0, 0), libc.prctl(39, 0, 0, 0, 0)]", before=lines[0]
    )
    assert found == [-1, -1, 0, 1]  # no id, not even in the bounding set, no new privileges


def test_the_loopback_is_the_jobs_own(sandbox):
    serve = "import socket, time\ns = socket.create_server(('127.0.0.1', 4567))\nt = socket.socket(socket.AF_UNIX)\n"
    serve += "t.bind('\\0abstract'); t.listen()\nreturn 2 * x"
    seek = "import socket\ndef reach(family, at):\n    try:\n        with socket.socket(family) as s: s.connect(at)\n"
    seek += "    except OSError as e: return e.strerror\n"
    with sandbox.job() as serving:
        assert serving.receive(deadline=begin(serving, serve)).kind == "answer"
        reach = "[reach(socket.AF_INET, ('127.0.0.1', 4567)), reach(socket.AF_UNIX, '\\0abstract')]"
        assert answer(sandbox, reach, before=seek) == ["Connection refused"] * 2


def test_the_kernels_own_memory_for_empty_files_is_bounded(sandbox):
    full = ask(sandbox, "for i in range(10_000): open(f'{i}', 'w').close()")
    assert "No space left" in full.meta["got"]


def test_what_a_job_may_take_is_limited(sandbox):
    found = answer(
        sandbox,
        "[resource.getrlimit(getattr(resource, f'RLIMIT_{n}')) for n in names]",
        before=("import resource\nnames = ['NPROC', 'NOFILE', 'SIGPENDING', 'MSGQUEUE', 'CORE', 'CPU']"),
        cpu_s=7,
    )
    assert found == [[n, n] for n in (worker.PROCESSES, jail.OPEN_FILES, jail.PENDING_SIGNALS, 0, 0, 7)]


def test_processor_time_ends_without_anybody_watching(sandbox):
    spin = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    assert "killed by signal 9" in ask(sandbox, spin, cpu_s=2, deadline_s=120.0)
