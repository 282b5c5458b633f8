"""One rank's process: runs its program, and carries out its sends and receives over torch.distributed."""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import pickle
import queue
import signal
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, MutableSequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore, Store  # type: ignore[attr-defined]

from mlsys_lab.comm.errors import ConnectionLostError, DeadlockError, MessageError, RankError
from mlsys_lab.comm.ledger import Finish, Log, Post
from mlsys_lab.comm.rank import Endpoint, Rank, Request, Snapshot, as_bytes, check_received
from mlsys_lab.comm.seeds import seed_rank
from mlsys_lab.errors import InputError

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128)
INTEGER = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
DTYPES = FLOATING + INTEGER
HEADER = 10  # numbers in a header: dtype, number of axes, then the length of each axis


def run_rank(
    function: Callable[..., Any],
    rank: int,
    given: Any,
    size: int,
    backend: str,
    limit_s: float,
    folder: Path,
    writer: Connection,
    busy_since: Any,
) -> None:
    """Body of a rank's process: run the program, write (result, log) or the error to the pipe, and end the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends all of us
    torch.set_num_threads(1)  # a forked child lacks the parent's OpenMP threads and would wait for them forever
    log: Log = []
    report: Any
    try:
        if backend == "nccl":
            torch.cuda.set_device(rank)
        store = FileStore(str(folder / "store"), size)
        endpoint = ProcessEndpoint(rank, size, backend, limit_s, log, busy_since, store)
        seed_rank(rank)
        report = (function(Rank(endpoint), given), log)
        endpoint.close()
    except (MessageError, DeadlockError, ConnectionLostError) as problem:
        report = problem
    except BaseException as problem:
        report = RankError.from_exception(rank, problem)
    try:
        message = pickle.dumps(report)
    except Exception as problem:
        message = pickle.dumps(RankError(f"rank {rank} failed: its result cannot leave the process: {problem}", rank))
    with contextlib.suppress(OSError):
        writer.send_bytes(message)
    writer.close()
    os._exit(0)


class ProcessEndpoint(Endpoint):
    """Sends and receives over torch.distributed, on threads for each peer and channel, so that both can overlap.

    `log` receives all posts; `busy_since` has the time since when each rank computes, for the parent to see. Ranks
    rendezvous in a store, or without one by the environment (MASTER_ADDR, MASTER_PORT).
    """

    def __init__(
        self,
        rank: int,
        size: int,
        backend: str,
        limit_s: float,
        log: MutableSequence[Post | Finish],
        busy_since: Any,
        store: Store | None = None,
    ) -> None:
        self.address, self.size, self.limit_s, self.log, self.busy_since = rank, size, limit_s, log, busy_since
        self.posts = 0
        self.device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
        timeout = datetime.timedelta(seconds=limit_s)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
        self.torch_group = dist.new_group(backend="nccl", timeout=timeout) if backend == "nccl" else dist.group.WORLD
        self.outboxes: dict[tuple[int, str], _Worker] = defaultdict(_Worker)
        self.inboxes: dict[tuple[int, str], _Worker] = defaultdict(_Worker)
        if store is not None:  # a rank that ends before all others have connected would close their connections
            if store.add("connected", 1) == size:
                store.set("all connected", "")
            with self.waiting():
                store.wait(["all connected"], timeout)

    def post_send(self, array: torch.Tensor, destination: int, purpose: str, channel: str) -> Request:
        """Start to send a header and the array's bytes, on the thread of this peer and channel."""
        if array.dtype not in DTYPES or array.ndim > HEADER - 2:
            raise InputError("an array of unsupported dtype or too many axes", got=f"{array.dtype}, {array.ndim} axes")
        header = torch.zeros(HEADER, dtype=torch.int64)
        header[: 2 + array.ndim] = torch.tensor([DTYPES.index(array.dtype), array.ndim, *array.shape])
        snapshot, tag = Snapshot(array), _tag(channel)
        self.log.append(Post("send", destination, array.nbytes, purpose, channel))

        def send() -> None:
            dist.send(header, destination, tag=tag)
            if array.numel():
                dist.send(as_bytes(snapshot.copy.to(self.device)), destination, group=self.torch_group, tag=tag)

        task = self.outboxes[destination, channel].submit(send)
        return _ProcessRequest(self, task, "send", destination, snapshot, None)

    def post_receive(self, source: int, like: torch.Tensor | None, channel: str) -> Request:
        """Start to receive a header and the array that it describes, on the thread of this peer and channel."""
        self.log.append(Post("recv", source, channel=channel))
        tag = _tag(channel)

        def receive() -> torch.Tensor:
            header = torch.zeros(HEADER, dtype=torch.int64)
            dist.recv(header, source, tag=tag)
            dtype, ndim, *lengths = header.tolist()
            array = torch.empty(lengths[:ndim], dtype=DTYPES[dtype], device=self.device)
            if array.numel():
                dist.recv(as_bytes(array), source, group=self.torch_group, tag=tag)
            return array

        task = self.inboxes[source, channel].submit(receive)
        return _ProcessRequest(self, task, "recv", source, None, like)

    def close(self) -> None:
        """Wait until all posts are complete: leaving the group closes the connections."""
        with self.waiting():
            for box in (*self.outboxes.values(), *self.inboxes.values()):
                if box.last is not None:
                    box.last.done.wait(self.limit_s)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Context in which the parent sees this rank as waiting for other ranks, not computing."""
        self.busy_since[self.address] = math.inf
        try:
            yield
        finally:
            self.busy_since[self.address] = time.monotonic()


def _tag(channel: str) -> int:
    """Tag by which gloo separates messages of different channels; NCCL ignores it and keeps posting order."""
    return zlib.crc32(channel.encode()) >> 1


class _Task:
    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.done = threading.Event()
        self.result: Any = None
        self.problem: Exception | None = None

    def run(self) -> None:
        try:
            self.result = self.call()
        except Exception as problem:
            self.problem = problem
        self.done.set()


class _Worker:
    """A thread, started with its first task, that runs tasks in order."""

    def __init__(self) -> None:
        self.tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self.last: _Task | None = None

    def submit(self, call: Callable[[], Any]) -> _Task:
        if self.last is None:
            threading.Thread(target=self._work, daemon=True).start()
        self.last = _Task(call)
        self.tasks.put(self.last)
        return self.last

    def _work(self) -> None:
        while True:
            self.tasks.get().run()


class _ProcessRequest(Request):
    def __init__(
        self,
        endpoint: ProcessEndpoint,
        task: _Task,
        kind: str,
        peer: int,
        snapshot: Snapshot | None,
        like: torch.Tensor | None,
    ) -> None:
        self.endpoint, self.task, self.kind, self.peer = endpoint, task, kind, peer
        self.snapshot, self.like = snapshot, like
        self.number, self.finished = endpoint.posts, False
        endpoint.posts += 1

    def wait(self) -> torch.Tensor | None:
        """Wait for the other side; return the array of a receive, None for a send."""
        rank, limit_s = self.endpoint.address, self.endpoint.limit_s
        action = "send to" if self.kind == "send" else "receive from"
        with self.endpoint.waiting():
            done = self.task.done.wait(limit_s)
        if not done:
            raise DeadlockError(f"rank {rank} has waited {limit_s:g} s to {action} rank {self.peer}")
        if self.task.problem is not None:
            raise ConnectionLostError(f"rank {rank} could not {action} rank {self.peer}") from self.task.problem
        if not self.finished:
            self.finished = True
            self.endpoint.log.append(Finish(self.number))
        if self.snapshot is not None:
            self.snapshot.require_unchanged(rank, self.peer)
            return None
        array: torch.Tensor = self.task.result
        check_received(array, self.like, self.peer, rank)
        return array
