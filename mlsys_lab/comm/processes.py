"""Backends "gloo" and "nccl": one process for each rank, connected through host memory or between GPUs.

torch.distributed only carries the bytes. Each array is preceded by a header with its dtype and shape, since gloo itself
adds ten elements to twelve without an error. Processes are forked, so that a function defined in a notebook can run in
them, and rendezvous through a file, so that no port can be in use already.
"""

from __future__ import annotations

import math
import multiprocessing
import multiprocessing.connection
import pickle
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import torch

from mlsys_lab.comm.errors import ConnectionLostError, DeadlockError, MessageError, RankError
from mlsys_lab.comm.ledger import Log
from mlsys_lab.comm.process_endpoint import run_rank
from mlsys_lab.errors import CourseError, MissingToolError

POLL_S = 0.1
GRACE_S = 2.0  # for other ranks to report after the first failure, which another rank may have caused


def run_processes(
    function: Callable[..., Any], inputs: Sequence[Any], backend: Literal["gloo", "nccl"], limit_s: float
) -> tuple[list[Any], list[Log]]:
    """Run `function(rank, input)` in a process for each input; returns results and logs. See `mlsys_lab.comm.run`."""
    size = len(inputs)
    if backend == "nccl" and torch.cuda.device_count() < size:
        raise MissingToolError(
            "NCCL needs a GPU for each rank", got=f"{torch.cuda.device_count()} for {size} ranks", help='backend="gloo"'
        )
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="mlsys-ranks-") as folder:
        pipes = [context.Pipe(duplex=False) for _ in inputs]
        busy_since = context.RawArray("d", [time.monotonic()] * size)
        processes = [
            context.Process(
                target=run_rank,
                args=(function, rank, given, size, backend, limit_s, Path(folder), pipes[rank][1], busy_since),
            )
            for rank, given in enumerate(inputs)
        ]
        try:
            for process, (_, writer) in zip(processes, pipes, strict=True):
                process.start()
                writer.close()
            reports = _collect(processes, [reader for reader, _ in pipes], busy_since, limit_s)
        finally:
            for process in processes:
                if process.pid is not None:
                    process.kill()
                    process.join()
    return [result for result, _ in reports], [log for _, log in reports]


Report = tuple[Any, Log]


def _collect(
    processes: Sequence[Any], readers: Sequence[Connection], busy_since: Sequence[float], limit_s: float
) -> list[Report]:
    """Each rank's result and log; raises the failure of the rank that caused all others."""
    reports: dict[int, Report] = {}
    failures: dict[int, CourseError] = {}
    waiting = {reader: rank for rank, reader in enumerate(readers)}
    deadline = math.inf
    while waiting and time.monotonic() < deadline:
        for reader in multiprocessing.connection.wait(list(waiting), POLL_S):
            assert isinstance(reader, Connection)
            rank = waiting.pop(reader)
            report = _receive(reader, rank, processes[rank])
            if isinstance(report, CourseError):
                failures[rank] = report
            else:
                reports[rank] = report
        for rank in waiting.values():
            if time.monotonic() - busy_since[rank] > limit_s:
                failures[rank] = RankError(
                    f"rank {rank} has run for {limit_s:g} s without a message: does it loop?", rank
                )
        if failures:
            deadline = min(deadline, time.monotonic() + GRACE_S)
    if failures:
        raise _find_cause(failures, reports)
    return [reports[rank] for rank in range(len(readers))]


def _receive(reader: Connection, rank: int, process: Any) -> Report | CourseError:
    """What a rank's process reports at its end, or an error if it died without a report."""
    try:
        report: Report | CourseError = pickle.loads(reader.recv_bytes())
    except (EOFError, OSError):
        process.join()
        code = process.exitcode
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return RankError(f"rank {rank} died: {how}", rank)
    return report


def _find_cause(failures: dict[int, CourseError], reports: dict[int, Report]) -> CourseError:
    """The failure to raise: that of a rank that died or raised, else of one that timed out, else a lost connection."""
    first = min(failures.values(), key=lambda failure: CAUSES.index(type(failure)))
    if isinstance(first, ConnectionLostError):
        ended = "; ".join(f"rank {rank} has ended" for rank in sorted(reports))
        return DeadlockError(
            "; ".join([*(str(failures[rank]) for rank in sorted(failures)), *([ended] if ended else [])])
        )
    return first


CAUSES = [RankError, MessageError, DeadlockError, ConnectionLostError]
