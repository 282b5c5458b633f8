"""Run lines of code in a job of a running sandbox, as the body of a submission's function."""

import contextlib
import json
import os
import time
from pathlib import Path

import numpy as np

from mlsys_grader.sandbox.inside import wire

MEBIBYTE = 1 << 20
RUN = os.getpid() % 10_000_000
"""Tells this run of the tests from another at the same time."""


def begin(job, body, *, memory_bytes=2048 * MEBIBYTE, deadline_s=120.0, cpu_s=60):
    """Load `body` as the function `double` in a job and call it; returns the deadline for the answer."""
    source = "import numpy as np\ndef double(x):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    order = {
        "name": "t.ipynb",
        "source": source,
        "time_limit_s": deadline_s / 2,
        "memory_bytes": memory_bytes,
        "cpu_s": cpu_s,
    }
    case = {"call": "tiny_calls:double", "uses": ["double"], "time_limit_s": deadline_s / 2, "memory_bytes": None}
    deadline = time.monotonic() + deadline_s
    assert job.request("job", order, deadline=deadline).kind == "loaded"
    job.send("case", {**case, "random_seed": 1}, {"x": np.zeros(3)}, deadline=deadline)
    return deadline


def ask(sandbox, body, **options):
    """Run `body` in a job of its own; the frame that comes back, or the job's ending."""
    with sandbox.job() as job:
        deadline = begin(job, body, **options)
        try:
            return job.receive(deadline=deadline)
        except wire.ClosedError:
            return str(job.read_exit())


def answer(sandbox, expression, *, before="", **options):
    """What an expression gives inside the sandbox, after the lines `before`."""
    lines = f"import os, json\n{before}\nraise ValueError(json.dumps({expression}))"
    reply = ask(sandbox, lines, **options)
    got = reply.meta["got"] if isinstance(reply, wire.Frame) else reply
    assert got.startswith("ValueError: "), got
    return json.loads(got.removeprefix("ValueError: ").rpartition(", at ")[0])


def nobody_is_left(name):
    """Whether no process that these tests named (see `named`) is alive on this machine."""
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if comm.read_text().strip() == f"{name}{RUN}":
                return False
    return True


def named(name):
    """Lines that give the process a name of up to 8 letters, and so all that it forks (prctl PR_SET_NAME)."""
    return f"import ctypes, os, signal, time\nctypes.CDLL(None).prctl(15, b'{name}{RUN}', 0, 0, 0)\n"
