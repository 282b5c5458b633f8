"""Event-driven simulation of transfers that share links, so that the end of one depends on all others."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mlsys_lab.comm.simulate.flows import End, Flows

if TYPE_CHECKING:
    from mlsys_lab.comm.cost.topology import Route


class Issued(NamedTuple):
    """A task and its dependencies: it takes `seconds`, and then the time of its bytes over a route's links."""

    seconds: float
    after: tuple[int, ...]
    size_bytes: float = 0.0
    route: Route = ()


def play(tasks: Sequence[Issued], capacity: Mapping[str, float]) -> tuple[list[float], list[float]]:
    """Start and end of every task in seconds; infinity for tasks that wait forever.

    A task starts when all of its `after`, which have lower indices, have ended. Transfers share links as in `flows`.
    """
    start, end = [math.inf] * len(tasks), [math.inf] * len(tasks)
    waits = [0] * len(tasks)
    followers: list[list[int]] = [[] for _ in tasks]
    flows = Flows(capacity)
    events: list[End] = []  # version 0 before the bytes start

    def issue(task: int, now: float) -> None:
        start[task] = now
        if tasks[task].seconds < math.inf:
            heapq.heappush(events, End(now + tasks[task].seconds, task, 0))

    for task, one in enumerate(tasks):
        before = set(one.after)
        waits[task] = len(before)
        for other in before:
            followers[other].append(task)
    for task, count in enumerate(waits):
        if not count:
            issue(task, 0.0)
    while events:
        now = events[0].time_s
        while events and events[0].time_s == now:
            _, task, version = heapq.heappop(events)
            if version != flows.version(task):
                continue
            if not version and tasks[task].route:
                flows.begin(task, tasks[task].size_bytes, tasks[task].route, now)
                continue
            if version:
                flows.finish(task)
            end[task] = now
            for follower in followers[task]:
                waits[follower] -= 1
                if not waits[follower]:
                    issue(follower, now)
        for moved in flows.settle(now):
            heapq.heappush(events, moved)
    return start, end
