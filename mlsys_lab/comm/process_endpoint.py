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
from functools import lru_cache
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
from mlsys_lab.errors import CourseError, InputError

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128)
INTEGER = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
DTYPES = FLOATING + INTEGER
SHARED_BYTES = 1 << 16  # arrays from this size on are sent without a copy, if nothing else is in their storage
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
    """Sends and receives over torch.distributed, in the background, so that they overlap with computation.

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
        self.posts, self.is_gloo = 0, backend == "gloo"
        self.in_flight: set[_ProcessRequest] = set()
        self.device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
        self.timeout = timeout = datetime.timedelta(seconds=limit_s)
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
        """Start to send a header and the array's bytes; with NCCL on the thread of this peer and channel."""
        if array.dtype not in DTYPES or array.ndim > HEADER - 2:
            raise InputError("an array of unsupported dtype or too many axes", got=f"{array.dtype}, {array.ndim} axes")
        snapshot = Snapshot(array, share=self.is_gloo and array.nbytes >= SHARED_BYTES)
        self.log.append(Post("send", destination, array.nbytes, purpose, channel))
        request = _ProcessRequest(self, destination, channel, snapshot, None)
        if self.is_gloo:
            request.start()
        else:
            self.outboxes[destination, channel].submit(request)
        return request

    def post_receive(self, source: int, like: torch.Tensor | None, channel: str) -> Request:
        """Start to receive a header and the array that it describes, on the thread of this peer and channel.

        With gloo and `like` both start at once, without the thread, unless it is busy with an earlier receive, whose
        array could land in this one's buffer.
        """
        self.log.append(Post("recv", source, channel=channel))
        request, inbox = _ProcessRequest(self, source, channel, None, like), self.inboxes[source, channel]
        if self.is_gloo and like is not None and not inbox.is_busy:
            request.array = torch.empty(like.shape, dtype=like.dtype)
            request.start()
        else:
            inbox.submit(request)
        return request

    def close(self) -> None:
        """Wait until all posts are complete: leaving the group closes the connections."""
        for request in self.in_flight:
            with contextlib.suppress(CourseError):
                request.complete()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Context in which the parent sees this rank as waiting for other ranks, not computing."""
        self.busy_since[self.address] = math.inf
        try:
            yield
        finally:
            self.busy_since[self.address] = time.monotonic()


@lru_cache
def _header(dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    """Header of an array to send; one tensor for all arrays like it."""
    unused = [0] * (HEADER - 2 - len(shape))
    return torch.tensor([DTYPES.index(dtype), len(shape), *shape, *unused])


def _read_header(header: torch.Tensor) -> tuple[torch.dtype, torch.Size]:
    dtype, ndim, *lengths = header.tolist()
    return DTYPES[dtype], torch.Size(lengths[:ndim])


@lru_cache
def _tag(channel: str, dtype: torch.dtype | None = None, shape: torch.Size | None = None) -> int:
    """Tag by which gloo separates the headers of each channel, and the arrays of each channel, dtype and shape.

    So no array lands in a buffer for another dtype or shape. NCCL ignores tags and keeps posting order.
    """
    return zlib.crc32(f"{channel} {dtype} {shape}".encode()) >> 1


class _Worker:
    """A thread, started with its first request, that runs requests in order."""

    def __init__(self) -> None:
        self.requests: queue.SimpleQueue[_ProcessRequest] = queue.SimpleQueue()
        self.last: threading.Event | None = None

    @property
    def is_busy(self) -> bool:
        return self.last is not None and not self.last.is_set()

    def submit(self, request: _ProcessRequest) -> None:
        if self.last is None:
            threading.Thread(target=self._work, daemon=True).start()
        self.last = request.ran = threading.Event()
        self.requests.put(request)

    def _work(self) -> None:
        while True:
            self.requests.get().run()


class _ProcessRequest(Request):
    """A message in flight: a header over gloo, and the array, unless it is empty, over the backend's group.

    It is a receive if there is no snapshot. `array` is None until the array to receive has been allocated.
    """

    def __init__(
        self,
        endpoint: ProcessEndpoint,
        peer: int,
        channel: str,
        snapshot: Snapshot | None,
        like: torch.Tensor | None,
    ) -> None:
        self.endpoint, self.peer, self.channel, self.snapshot, self.like = endpoint, peer, channel, snapshot, like
        self.array = None if snapshot is None else snapshot.copy
        self.header = torch.zeros(HEADER, dtype=torch.int64)
        if self.array is not None:
            self.header = _header(self.array.dtype, self.array.shape)
        self.works: list[Any] = []  # of header and array, if started
        self.ran: threading.Event | None = None  # set by a worker, if run
        self.problem: Exception | None = None
        self.number, self.finished = endpoint.posts, False
        endpoint.posts += 1
        endpoint.in_flight.add(self)  # gloo drops a message once its work is deleted

    def start(self) -> None:
        """Start to transfer array and header, in this order: once the header has come, the array has."""
        try:
            works = self._start_array()
            self.works = [self._start_header(), *works]
        except Exception as problem:
            self.problem = problem

    def run(self) -> None:
        """Transfer the header, then the array, which the header describes."""
        try:
            self._start_header().wait()
            if self.array is None:
                dtype, shape = _read_header(self.header)
                self.array = torch.empty(shape, dtype=dtype, device=self.endpoint.device)
            for work in self._start_array():
                work.wait()
        except Exception as problem:
            self.problem = problem
        assert self.ran is not None
        self.ran.set()

    def _start_header(self) -> Any:
        return self._transfer(dist.group.WORLD, self.header, _tag(self.channel))

    def _start_array(self) -> list[Any]:
        array = self.array
        assert array is not None
        if not array.numel():
            return []
        tag = _tag(self.channel, array.dtype, array.shape)
        if not self.endpoint.is_gloo:
            array = as_bytes(array.to(self.endpoint.device))  # NCCL lacks some dtypes
        return [self._transfer(self.endpoint.torch_group, array, tag)]

    def _transfer(self, group: Any, array: torch.Tensor, tag: int) -> Any:
        return (group.recv if self.snapshot is None else group.send)([array], self.peer, tag)

    def wait(self) -> torch.Tensor | None:
        """Wait for the other side; return the array of a receive, None for a send."""
        rank = self.endpoint.address
        if not self.finished:
            self.complete()
            self.finished = True
            self.endpoint.in_flight.remove(self)
            self.endpoint.log.append(Finish(self.number))
        if self.snapshot is not None:
            self.snapshot.require_unchanged(rank, self.peer)
            return None
        assert self.array is not None
        check_received(self.array, self.like, self.peer, rank)
        return self.array

    def complete(self) -> None:
        """Wait until the message has been transferred; raises MessageError if its header shows that it never will."""
        rank, limit_s, start_s = self.endpoint.address, self.endpoint.limit_s, time.monotonic()
        action = "receive from" if self.snapshot is None else "send to"
        try:
            with self.endpoint.waiting():
                if self.ran is not None and not self.ran.wait(limit_s):
                    raise TimeoutError
                if self.problem is not None:
                    raise self.problem
                for i, work in enumerate(self.works):
                    work.wait(self.endpoint.timeout)
                    if i == 0 and self.like is not None:
                        dtype, shape = _read_header(self.header)
                        if (dtype, shape) != (self.like.dtype, self.like.shape):  # then the array will not come
                            check_received(torch.empty(shape, dtype=dtype), self.like, self.peer, rank)
        except MessageError:
            raise
        except Exception as problem:
            if time.monotonic() - start_s >= limit_s:
                raise DeadlockError(f"rank {rank} has waited {limit_s:g} s to {action} rank {self.peer}") from None
            raise ConnectionLostError(f"rank {rank} could not {action} rank {self.peer}") from problem
