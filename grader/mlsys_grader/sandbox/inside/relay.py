"""The first process of a container: relays frames between standard input and output and the child that serves them.

A container is discarded with its submission, so the child needs no isolation of its own (`inside.jail`). The relay does
not read what passes.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
from typing import NoReturn

from mlsys_grader.sandbox.inside import jail, replies, seccomp, wire, worker

CHUNK_BYTES = 1 << 16
KILLED = 128


def main(modules: list[str]) -> NoReturn:
    """Import torch and the call modules, fork the child, and relay until one side closes.

    Exits with the child's status, or 128 plus the number of the signal that ended it.
    """
    worker.warm_up()
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    near, far = socket.socketpair()
    _, budget_pipe = os.pipe()  # unused: the container limits all its processes together
    pid = os.fork()
    if pid == 0:
        _child(far, budget_pipe)
    far.close()
    if not _hand_on(near):
        os._exit(0)  # the exit of process 1 kills all others
    near.close()
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(KILLED - code if code < 0 else code)


def _child(channel: socket.socket, budget_pipe: int) -> NoReturn:
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        status = jail.open_status()
        worker.keep_only(channel.fileno(), status.fileno(), budget_pipe)
        seccomp.install(gpu=jail.has_gpu())
        wire.send(channel, wire.Frame("ready"))
        worker.serve(channel, status, budget_pipe, jailed=True)
    except BaseException as error:
        with contextlib.suppress(BaseException):
            wire.send(channel, replies.describe_failure(error))
    os._exit(0)


def _hand_on(near: socket.socket) -> bool:
    """Relay until the child closes its end (True) or the judge closes standard input (False)."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    ways = {0: (0, near.fileno()), near.fileno(): (near.fileno(), 1)}
    with contextlib.suppress(OSError):
        while True:
            for ready in select.select(list(ways), [], [])[0]:
                source, target = ways[ready]
                chunk = os.read(source, CHUNK_BYTES)
                if not chunk:
                    return ready != 0
                while chunk:
                    chunk = chunk[os.write(target, chunk) :]
    return True
