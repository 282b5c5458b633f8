"""Two jobs that run at once cannot tell each other anything without the judge."""

import json
import os
import secrets
import time

import numpy as np
import pytest

from mlsys_grader.sandbox.inside.seccomp import FUTEX, REFUSED

pytestmark = pytest.mark.sandbox

COLUMN = {"x86_64": 0, "aarch64": 1}[os.uname().machine]
USTAT = REFUSED["ustat"][0]
"""On aarch64 there is no such call."""
FUTEX_NUMBER, SET_TID_ADDRESS = FUTEX[COLUMN], (218, 96)[COLUMN]
NAME = f"/usr/lib/{secrets.token_hex(8)}"
TOOLS = """\
import ctypes, fcntl, os, socket, struct, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [*[ctypes.c_void_p] * 5, ctypes.c_long]
room = ctypes.create_string_buffer(256)
def call(number, *arguments):
    return libc.syscall(number, *(x if isinstance(x, (bytes, ctypes.Array)) else ctypes.c_long(x) for x in arguments))
def number_in(*arguments, format, at=0):
    return struct.unpack_from(format, room, at)[0] if call(*arguments) == 0 else 0
word = libc.mmap(None, 4096, 1, 2, os.open(os.__file__, os.O_RDONLY), 0)  # MAP_PRIVATE, and yet one page for all jobs
woken = []
def wait():
    held, seconds = ctypes.c_uint32.from_address(word).value, struct.pack('qq', 20, 0)
    woken.append(call(NUMBER, word, 0, held, ctypes.create_string_buffer(seconds)))
def begin_to_wait():
    threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.2)  # until it sleeps
    return False
def fork_and_ask():
    if (child := os.fork()) == 0:
        os._exit(0)
    try:
        return os.fstat(os.pidfd_open(child)).st_ino
    finally:
        os.waitpid(child, 0)
def quiet(ask):
    try:
        return ask()
    except OSError:
        return None
""".replace("NUMBER", str(FUTEX_NUMBER))

HEARD_OF_A_WAKE = "0 in woken if woken else begin_to_wait()"
WAYS = {
    "a futex that is woken": (
        f"[call({FUTEX_NUMBER}, word, 1, 99) or time.sleep(0.01) for _ in range(50)]",
        HEARD_OF_A_WAKE,
    ),
    "a futex that the kernel wakes at a thread's end": (
        f"(t := threading.Thread(target=call, args=({SET_TID_ADDRESS}, word))).start() or t.join() or time.sleep(0.2)",
        HEARD_OF_A_WAKE,
    ),
    "flags of a descriptor": ("fcntl.fcntl(0, fcntl.F_SETFL, os.O_APPEND)", "fcntl.fcntl(0, fcntl.F_GETFL)"),
    "signals of a descriptor": ("fcntl.fcntl(1, 10, 37)", "fcntl.fcntl(1, 11)"),
    "times of a device": ("quiet(lambda: os.utime('/dev/null'))", "os.stat('/dev/null').st_mtime_ns"),
    "names that were looked up": (
        f"os.path.exists('{NAME}')",
        f"[call({REFUSED['openat2'][COLUMN]}, -100, b'{NAME}', struct.pack('QQQ', 0, 0, 32), 24), ctypes.get_errno()]",
    ),
    "threads of the machine": (
        "[threading.Thread(target=time.sleep, args=(60,), daemon=True).start() for _ in range(100)]",
        f"number_in({REFUSED['sysinfo'][COLUMN]}, room, format='H', at=80)",
    ),
    "processes of the machine": ("[os.waitpid(os.fork() or os._exit(0), 0) for _ in range(20)]", "quiet(fork_and_ask)"),
    "sockets of the machine": (
        "[quiet(lambda: socket.socket().getsockopt(1, 57, 8)) for _ in range(20)]",
        "quiet(lambda: socket.socket().getsockopt(1, 57, 8).hex())",
    ),
    "blocks of another's file system": (
        "open('/scratch/full', 'wb').write(bytes(5 << 20))",
        f"sum(number_in({USTAT}, os.stat('/scratch').st_dev + by, room, format='i') for by in range(-40, 40))",
    ),
}
"""What one job does, and what another reads before and after."""


def load(job, expression):
    """Load a submission whose function raises what an expression gives."""
    source = f"{TOOLS}import json\ndef double(x):\n    raise ValueError(json.dumps({expression}))\n"
    order = {"name": "t.ipynb", "source": source, "time_limit_s": 60.0, "memory_bytes": 1 << 30, "cpu_s": 60}
    assert job.request("job", order, deadline=time.monotonic() + 120).kind == "loaded"


def evaluate(job):
    """The value of the expression that a job has loaded."""
    case = {"call": "tiny_calls:double", "uses": ["double"], "time_limit_s": 60.0, "memory_bytes": None}
    reply = job.request("case", {**case, "random_seed": 1}, {"x": np.zeros(3)}, deadline=time.monotonic() + 120)
    got = reply.meta["got"]
    assert got.startswith("ValueError: "), got
    return json.loads(got.removeprefix("ValueError: ").rpartition(", at ")[0])


@pytest.mark.parametrize("way", WAYS)
def test_a_job_does_not_hear_another(sandbox, way):
    act, listen = WAYS[way]
    with sandbox.job() as speaker, sandbox.job() as listener:
        load(speaker, f"[{act}, 0][1]")
        load(listener, listen)
        before = evaluate(listener)
        assert evaluate(speaker) == 0
        assert evaluate(listener) == before
