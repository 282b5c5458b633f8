"""Simulated ranks with streams, on which tasks run in order of issue, as kernels do on CUDA streams.

A task starts when the tasks in `after` have ended and its streams are free. As long as no task slows another one down,
its start and end are known when it is issued, and the simulation is a single pass. On a topology, whose links transfers
share, it runs after all tasks are known, which takes about ten times as long.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from mlsys_lab.comm.simulate.events import Issued, play
from mlsys_lab.comm.simulate.timeline import Timeline
from mlsys_lab.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from mlsys_lab.comm.cost.topology import Route, Topology  # a lab may withhold costs

Task = int
"""Index of a task, in order of issue."""
Link = tuple[int, int] | str
"""Source and destination rank, or on a topology the name of a link."""


class Cluster:
    """`ranks` devices, each with four streams: compute, collectives, sends and receives.

    topology: what `transfer` sends over; concurrent transfers share a link's bandwidth (max-min fair). slow: factors by
    which ranks compute more slowly (stragglers). jitter, link_jitter: standard deviation of the logarithm of each
    compute time, and of each message's time without contention, drawn from `seed`. link_rate: fraction of its bandwidth
    that a link has left, by (source, destination) or by its name in the topology; 0 for a failed link, whose messages
    never arrive.

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
        topology: Topology | None = None,
        slow: Mapping[int, float] | None = None,
        jitter: float = 0.0,
        link_jitter: float = 0.0,
        seed: int = 0,
        link_rate: Mapping[tuple[int, int], float] | Mapping[str, float] | None = None,
    ) -> None:
        if ranks < 1 or not min(jitter, link_jitter) >= 0:
            got = f"{ranks}, {jitter}, {link_jitter}"
            raise InputError("a cluster has at least one rank and a jitter of at least 0", got=got)
        if topology and topology.size != ranks:
            raise InputError("the topology has another number of ranks", got=topology.size, expected=ranks)
        self.ranks, self.topology = ranks, topology
        self._slow = [1.0] * ranks
        for rank, factor in (slow or {}).items():
            self._check(rank)
            if not factor > 0:
                raise InputError("a rank is slower by a positive factor", got=f"slow[{rank}]={factor}")
            self._slow[rank] = factor
        self._jitter, self._random = jitter, random.Random(seed)
        self._link_jitter, self._link_random = link_jitter, random.Random(f"links {seed}")
        self._link_rate = self._checked(link_rate or {})
        # One entry for each task; streams are numbered, four for each rank: compute, collectives, sends, receives.
        self._free = [0.0] * (4 * ranks)
        self._start: list[float] = []
        self._end: list[float] = []
        self._streams: list[tuple[int, ...]] = []
        self._names: list[str] = []
        # On a topology, instead of starts and ends: each task's dependencies, and the last task of each stream.
        self._issued: list[Issued] = []
        self._last: dict[int, Task] = {}
        self._held: list[tuple[int, Task, Task | None, float]] = []

    def compute(self, rank: int, seconds: float, name: str = "compute", after: Iterable[Task] = ()) -> Task:
        """Issue a computation on a rank."""
        self._check(rank, seconds)
        seconds *= self._slow[rank]
        if self._jitter:
            seconds *= self._random.lognormvariate(0.0, self._jitter)
        return self._issue((4 * rank,), seconds, name, after)

    def collective(
        self, ranks: Sequence[int], seconds: float, name: str = "collective", after: Iterable[Task] = ()
    ) -> Task:
        """Issue a collective of these ranks as one task: it starts when all are ready and ends for all at once."""
        for rank in ranks:
            self._check(rank, seconds)
        return self._issue(tuple(4 * rank + 1 for rank in ranks), seconds, name, after)

    def send(
        self, source: int, destination: int, seconds: float, name: str = "send", after: Iterable[Task] = ()
    ) -> Task:
        """Issue a message: it occupies the source's send stream and the destination's receive stream."""
        self._check_pair(source, destination, seconds)
        if self._link_jitter:
            seconds *= self._link_random.lognormvariate(0.0, self._link_jitter)
        if self._link_rate and not self.topology:
            rate = self._link_rate.get((source, destination), 1.0)
            seconds = seconds / rate if rate else math.inf
        return self._issue((4 * source + 2, 4 * destination + 3), seconds, name, after)

    def transfer(
        self, source: int, destination: int, size_bytes: float, name: str = "transfer", after: Iterable[Task] = ()
    ) -> Task:
        """Issue a message over the topology: its latency, then its bytes, sharing each link on its route.

        It occupies the same two streams as a `send`: a rank sends and receives one message at a time.
        """
        if not self.topology:
            raise InputError("a transfer needs a topology", got="none", help="Cluster(ranks, topology=…), or send")
        self._check_pair(source, destination, 0.0)
        if not 0 <= size_bytes < math.inf:
            raise InputError("a transfer has a number of bytes of at least 0", got=size_bytes)
        slowdown = self._link_random.lognormvariate(0.0, self._link_jitter) if self._link_jitter else 1.0
        latency_s, route = self.topology.latency_s(source, destination), self.topology.route(source, destination)
        streams = (4 * source + 2, 4 * destination + 3)
        return self._issue(streams, slowdown * latency_s, name, after, slowdown * size_bytes, route)

    def hold(self, rank: int, size_bytes: float, start: Task, until: Task | None = None) -> None:
        """Count memory on a rank from the start of a task to the end of another one, or to the end of the run."""
        self._check(rank)
        self._held.append((rank, start, until, size_bytes))

    def timeline(self) -> Timeline:
        """Timeline of all tasks."""
        start, end = self._start, self._end
        if self.topology:
            capacity = {link: rate * self._link_rate.get(link, 1.0) for link, rate in self.topology.capacity.items()}
            start, end = play(self._issued, capacity)
        return Timeline(self.ranks, start, end, self._streams, self._names, self._held)

    def _issue(
        self,
        streams: tuple[int, ...],
        seconds: float,
        name: str,
        after: Iterable[Task],
        size_bytes: float = 0.0,
        route: Route = (),
    ) -> Task:
        self._streams.append(streams)
        self._names.append(name)
        task = len(self._names) - 1
        if self.topology:
            before = [self._last[stream] for stream in streams if stream in self._last]
            self._issued.append(Issued(seconds, (*after, *before), size_bytes, route))
            self._last.update(dict.fromkeys(streams, task))
        else:
            self._run(streams, seconds, after)
        return task

    def _run(self, streams: tuple[int, ...], seconds: float, after: Iterable[Task]) -> None:
        """Start a task as early as possible."""
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

    def _checked(self, link_rate: Mapping[tuple[int, int], float] | Mapping[str, float]) -> dict[Link, float]:
        """Validate `link_rate`: existing links, fractions from 0 to 1."""
        checked: dict[Link, float] = {}
        for link, rate in link_rate.items():
            if not 0 <= rate <= 1:
                raise InputError("a link has a fraction from 0 to 1 of its bandwidth", got=f"{link}: {rate}")
            if self.topology and link not in self.topology.capacity:
                help = did_you_mean(str(link), self.topology.capacity)
                raise InputError("unknown link in the topology", got=link, help=help)
            if not self.topology and isinstance(link, str):
                raise InputError("links have names in a topology only", got=link, expected="(source, destination)")
            if isinstance(link, tuple):
                self._check_pair(*link)
            checked[link] = rate
        return checked

    def _check_pair(self, source: int, destination: int, seconds: float = 0.0) -> None:
        self._check(source, seconds)
        self._check(destination)
        if source == destination:
            raise InputError("a rank sends to another rank", got=f"from {source} to {destination}")

    def _check(self, rank: int, seconds: float = 0.0) -> None:
        if not 0 <= rank < self.ranks:
            raise InputError("no such rank in the cluster", got=rank, expected=f"0 to {self.ranks - 1}")
        if not seconds >= 0:
            raise InputError("a task takes a time of at least 0", got=f"{seconds} s")
