"""Ranks with streams, on which tasks run in the order in which they are issued, as kernels do on CUDA streams.

A task starts when those named in `after` have ended and its streams are free of what was issued before. Since both are
known when it is issued, so are its start and end: the simulation is one pass, as long as the program that issues tasks.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence

from mlsys_lab.comm.simulate.timeline import Timeline
from mlsys_lab.errors import InputError

Task = int
"""A task's number, in order of issue: what `after` takes."""


class Cluster:
    """`ranks` devices, each with a compute stream, a stream for collectives, and one for sends and one for receives.

    slow: how many times as long a rank computes (stragglers), by rank. jitter: standard deviation of the logarithm of
    each compute time, drawn from `seed`. link_rate: share of its bandwidth that a link (source, destination) still has;
    0 for one that has failed, whose messages never arrive.

    >>> cluster = Cluster(2)
    >>> first, second = (cluster.compute(rank, 1.0, "backward") for rank in range(2))
    >>> reduced = cluster.collective([0, 1], 0.5, "all-reduce", after=[first, second])
    >>> _ = cluster.compute(0, 1.0, "next layer")
    >>> cluster.timeline().end_s, cluster.timeline().exposed_s(0)
    (2.0, 0.0)
    """

    def __init__(
        self,
        ranks: int,
        *,
        slow: Mapping[int, float] | None = None,
        jitter: float = 0.0,
        seed: int = 0,
        link_rate: Mapping[tuple[int, int], float] | None = None,
    ) -> None:
        if ranks < 1 or jitter < 0:
            raise InputError("a cluster has at least one rank and a jitter of at least 0", got=f"{ranks}, {jitter}")
        self.ranks = ranks
        self._slow = [1.0] * ranks
        for rank, factor in (slow or {}).items():
            self._check(rank)
            if not factor > 0:
                raise InputError("a rank is slower by a positive factor", got=f"slow[{rank}]={factor}")
            self._slow[rank] = factor
        self._jitter, self._random = jitter, random.Random(seed)
        self._link_rate = dict(link_rate or {})
        if bad := [link for link, rate in self._link_rate.items() if not 0 <= rate <= 1]:
            raise InputError("a link has a share from 0 to 1 of its rate", got=f"{bad[0]}: {self._link_rate[bad[0]]}")
        # Columns of the tasks; a stream is a number, four to a rank: compute, collectives, sends, receives.
        self._free = [0.0] * (4 * ranks)
        self._start: list[float] = []
        self._end: list[float] = []
        self._streams: list[tuple[int, ...]] = []
        self._names: list[str] = []
        self._held: list[tuple[int, Task, Task | None, float]] = []

    def compute(self, rank: int, seconds: float, name: str = "compute", after: Iterable[Task] = ()) -> Task:
        """Issue work to the compute stream of a rank."""
        self._check(rank, seconds)
        seconds *= self._slow[rank]
        if self._jitter:
            seconds *= self._random.lognormvariate(0.0, self._jitter)
        return self._issue((4 * rank,), seconds, name, after)

    def collective(
        self, ranks: Sequence[int], seconds: float, name: str = "collective", after: Iterable[Task] = ()
    ) -> Task:
        """Issue a collective of these ranks as one task: it starts when all are there, and takes as long for all."""
        for rank in ranks:
            self._check(rank, seconds)
        return self._issue(tuple(4 * rank + 1 for rank in ranks), seconds, name, after)

    def send(
        self, source: int, destination: int, seconds: float, name: str = "send", after: Iterable[Task] = ()
    ) -> Task:
        """Issue a message: it takes the sending stream of one rank and the receiving stream of another."""
        self._check(source, seconds)
        self._check(destination)
        if self._link_rate:
            rate = self._link_rate.get((source, destination), 1.0)
            seconds = seconds / rate if rate else math.inf
        return self._issue((4 * source + 2, 4 * destination + 3), seconds, name, after)

    def hold(self, rank: int, size_bytes: float, start: Task, until: Task | None = None) -> None:
        """Count memory on a rank from the start of a task to the end of another, or to the end of the run."""
        self._check(rank)
        self._held.append((rank, start, until, size_bytes))

    def timeline(self) -> Timeline:
        """When every task ran, and what follows from it."""
        return Timeline(self.ranks, self._start, self._end, self._streams, self._names, self._held)

    def _issue(self, streams: tuple[int, ...], seconds: float, name: str, after: Iterable[Task]) -> Task:
        free, ends = self._free, self._end
        start = 0.0
        for stream in streams:
            if free[stream] > start:
                start = free[stream]
        for task in after:
            if ends[task] > start:
                start = ends[task]
        end = start + seconds
        for stream in streams:
            free[stream] = end
        self._start.append(start)
        ends.append(end)
        self._streams.append(streams)
        self._names.append(name)
        return len(ends) - 1

    def _check(self, rank: int, seconds: float = 0.0) -> None:
        if not 0 <= rank < self.ranks:
            raise InputError("no such rank in the cluster", got=rank, expected=f"0 to {self.ranks - 1}")
        if not seconds >= 0:
            raise InputError("a task takes a time of at least 0", got=f"{seconds} s")
