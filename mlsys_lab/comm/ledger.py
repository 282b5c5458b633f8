"""Ledger of a run: from each rank's log of sends and receives to messages, bytes by link, and latency steps.

A rank posts a send or a receive, and later finishes it. The k-th send from a to b on a channel matches the k-th receive
from a that b posts there, so the logs determine all messages, however the ranks were interleaved: threads, processes
and the judge of submissions write the same ledger.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Link = tuple[int, int, str]
"""Source, destination and channel: messages with the same three keep their order."""
Duration = Callable[[int, int, int], float]
"""Time of a message, as a function of (source, destination, size_bytes)."""


@dataclass(frozen=True)
class Post:
    """A rank starts a send of `size_bytes` to `peer`, or a receive from `peer`, whose size the sender decides.

    `channel` names the group: "" for all ranks. Sends and receives match within a group only.
    """

    kind: Literal["send", "recv"]
    peer: int
    size_bytes: int = 0
    purpose: str = ""
    channel: str = ""

    def link(self, rank: int) -> Link:
        """Source, destination and channel of this post by `rank`."""
        return (rank, self.peer, self.channel) if self.kind == "send" else (self.peer, rank, self.channel)

    def describe(self, rank: int) -> str:
        """What `rank`, which posted this, waits for: "rank 0 waits to send to rank 1"."""
        return f"rank {rank} waits to {'send to' if self.kind == 'send' else 'receive from'} rank {self.peer}"


@dataclass(frozen=True)
class Finish:
    """A rank waits until the post with this number, counted over its own posts, is complete."""

    post: int


Log = list[Post | Finish]


@dataclass(frozen=True)
class Message:
    """One message: source, destination, bytes, purpose, and the times between which it was in flight.

    Times are in the unit of the schedule: latency steps, or seconds if a topology determines the time of a message.
    """

    source: int
    destination: int
    size_bytes: int
    purpose: str
    start: float
    end: float


class Ledger:
    """All messages of a run, and their totals.

    >>> ring = [[Post("send", 1, 40), Post("recv", 1), Finish(0), Finish(1)],
    ...         [Post("send", 0, 40), Post("recv", 0), Finish(0), Finish(1)]]
    >>> ledger = Ledger(ring)
    >>> ledger.total_bytes, ledger.steps
    (80, 1)

    duration: seconds of a message; by default each takes one step.
    """

    def __init__(self, logs: Sequence[Log], duration: Duration | None = None) -> None:
        self.logs = logs
        self.messages = schedule(logs, duration or _one_step)
        self._in_steps = duration is None

    @property
    def steps(self) -> int:
        """Latency steps: messages on the longest chain, if a rank sends and receives one message at a time.

        A root that sends to p - 1 ranks in turn takes p - 1 steps, a ring in which all send to the right takes one.
        """
        messages = self.messages if self._in_steps else schedule(self.logs, _one_step)
        return int(max((message.end for message in messages), default=0))

    @property
    def end(self) -> float:
        """Time at which the last message has arrived: seconds under a cost model, else steps."""
        return max((message.end for message in self.messages), default=0.0)

    @property
    def unmatched(self) -> list[tuple[int, Post]]:
        """Posts without a matching send or receive, each with the rank that posted it."""
        posts: dict[tuple[Link, str], list[tuple[int, Post]]] = defaultdict(list)
        for rank, log in enumerate(self.logs):
            for event in log:
                if isinstance(event, Post):
                    posts[event.link(rank), event.kind].append((rank, event))
        opposite = {"send": "recv", "recv": "send"}
        return [
            one for (link, kind), made in posts.items() for one in made[len(posts.get((link, opposite[kind]), ())) :]
        ]

    @property
    def total_bytes(self) -> int:
        """Bytes of all messages together."""
        return sum(message.size_bytes for message in self.messages)

    def sent_bytes(self, purpose: str | None = None) -> list[int]:
        """Bytes that each rank sent; with `purpose`, only in messages with this tag."""
        return self._by_rank("source", purpose)

    def received_bytes(self, purpose: str | None = None) -> list[int]:
        """Bytes that each rank received; with `purpose`, only in messages with this tag."""
        return self._by_rank("destination", purpose)

    def sent_messages(self) -> list[int]:
        """Number of messages that each rank sent."""
        counts = Counter(message.source for message in self.messages)
        return [counts[rank] for rank in range(len(self.logs))]

    def link_bytes(self) -> dict[tuple[int, int], int]:
        """Bytes by directed pair (source, destination), for pairs with messages."""
        links: dict[tuple[int, int], int] = defaultdict(int)
        for message in self.messages:
            links[message.source, message.destination] += message.size_bytes
        return dict(links)

    def purpose_bytes(self) -> dict[str, int]:
        """Bytes of all ranks, by purpose."""
        purposes: dict[str, int] = defaultdict(int)
        for message in self.messages:
            purposes[message.purpose] += message.size_bytes
        return dict(purposes)

    def _by_rank(self, end: Literal["source", "destination"], purpose: str | None) -> list[int]:
        totals = [0] * len(self.logs)
        for message in self.messages:
            if purpose in (None, message.purpose):
                totals[getattr(message, end)] += message.size_bytes
        return totals

    def __repr__(self) -> str:
        count = len(self.messages)
        return f"Ledger({len(self.logs)} ranks, {count} messages, {self.total_bytes} bytes, {self.steps} steps)"


def _one_step(source: int, destination: int, size_bytes: int) -> float:
    return 1


def schedule(logs: Sequence[Log], duration: Duration) -> list[Message]:
    """Schedule all messages, in order of start: a replay of the logs in which only messages take time.

    A message starts once both sides have posted it and their ports are free: a rank sends and receives one message at a
    time (full-duplex, one port). The message that is ready first starts first; ties go to the lower source, then to its
    earlier post. Unmatched posts are left out.
    """
    replay = _Replay(logs, duration)
    while replay.ready:
        replay.deliver()
    return sorted(replay.messages, key=lambda message: (message.start, message.source, message.destination))


class _Replay:
    def __init__(self, logs: Sequence[Log], duration: Duration) -> None:
        ranks = range(len(logs))
        self.logs, self.duration = logs, duration
        self.now = [0.0 for _ in ranks]
        self.next_event = [0 for _ in ranks]
        self.done: list[list[float | None]] = [[] for _ in ranks]  # by post, the time at which it completed
        self.sends: dict[Link, list[tuple[float, int, Post]]] = defaultdict(list)
        self.receives: dict[Link, list[tuple[float, int]]] = defaultdict(list)
        self.matched: Counter[Link] = Counter()
        self.out_free, self.in_free = [0.0 for _ in ranks], [0.0 for _ in ranks]
        self.ready: list[tuple[float, int, int, int, int, Post]] = []
        self.messages: list[Message] = []
        for rank in ranks:
            self._advance(rank)

    def _advance(self, rank: int) -> None:
        """Let a rank post until it waits for something incomplete."""
        log = self.logs[rank]
        while self.next_event[rank] < len(log):
            event = log[self.next_event[rank]]
            if isinstance(event, Finish):
                end = self.done[rank][event.post]
                if end is None:
                    return
                self.now[rank] = max(self.now[rank], end)
            else:
                self._post(rank, event)
            self.next_event[rank] += 1

    def _post(self, rank: int, post: Post) -> None:
        number = len(self.done[rank])
        self.done[rank].append(None)
        link = post.link(rank)
        if post.kind == "send":
            self.sends[link].append((self.now[rank], number, post))
        else:
            self.receives[link].append((self.now[rank], number))
        k = self.matched[link]
        if k < len(self.sends[link]) and k < len(self.receives[link]):
            self.matched[link] += 1
            (sent, send, announced), (posted, receive) = self.sends[link][k], self.receives[link][k]
            heapq.heappush(self.ready, (max(sent, posted), link[0], send, link[1], receive, announced))

    def deliver(self) -> None:
        """Deliver the message that is ready first, or requeue it for when its ports are free."""
        when, source, send, destination, receive, post = heapq.heappop(self.ready)
        start = max(when, self.out_free[source], self.in_free[destination])
        if start > when:
            heapq.heappush(self.ready, (start, source, send, destination, receive, post))
            return
        end = start + self.duration(source, destination, post.size_bytes)
        self.out_free[source] = self.in_free[destination] = end
        self.done[source][send] = self.done[destination][receive] = end
        self.messages.append(Message(source, destination, post.size_bytes, post.purpose, start, end))
        self._advance(source)
        self._advance(destination)
