"""Pools of equal replicas that share a load: one that does everything, or one that reads prompts and one that writes.

Prefill and decode on separate devices, as in DistServe (arXiv:2401.09670) and Splitwise (arXiv:2311.18677): a prompt is
read in one pool, which gives the first token; its keys and values then go over the network to the other, which writes
the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlsys_lab.inference.engine.scheduler import Limits
from mlsys_lab.inference.simulator.clock import Clock
from mlsys_lab.inference.simulator.load import Arrival
from mlsys_lab.inference.simulator.metrics import Served
from mlsys_lab.inference.simulator.simulate import simulate
from mlsys_lab.validation import require_at_least_one, require_positive


@dataclass(frozen=True)
class Pool:
    """`count` equal replicas, each with `pages` pages of `page` tokens; requests are dealt to them in turn."""

    clock: Clock
    pages: int
    limits: Limits
    count: int = 1
    page: int = 16

    def __post_init__(self) -> None:
        require_at_least_one(count=self.count)

    def serve(self, arrivals: Sequence[Arrival], *, cached: bool = False) -> list[Served]:
        """Serve a load, in the order of which the answers are; with `cached`, prompts come with keys and values."""
        order = sorted(range(len(arrivals)), key=lambda number: arrivals[number].time_s)
        served: dict[int, Served] = {}
        for dealt in (order[first :: self.count] for first in range(self.count)):
            part = [arrivals[number] for number in dealt]
            done = simulate(part, self.clock, pages=self.pages, page=self.page, limits=self.limits, cached=cached)
            served |= zip(dealt, done.served, strict=True)
        return [served[number] for number in range(len(arrivals))]


@dataclass(frozen=True)
class Wire:
    """Link on which a replica sends keys and values away: bytes of a token, and bytes a second (`inf` for no wait)."""

    token_bytes: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        require_positive(token_bytes=self.token_bytes, bytes_per_s=self.bytes_per_s)


@dataclass(frozen=True)
class Disaggregated:
    """Requests in the order of arrival, served by two pools, and bytes of keys and values sent between them."""

    served: tuple[Served, ...]
    sent_bytes: float


def disaggregate(arrivals: Sequence[Arrival], prefill: Pool, decode: Pool, wire: Wire) -> Disaggregated:
    """Serve a load by a pool that reads prompts and one that writes all tokens but the first.

    Each replica of `prefill` sends the caches of its prompts one after the other over its own `wire`, once a prompt is
    read whole; an answer of one token sends nothing. A prompt's pages are free as soon as it is read: what waits to be
    sent is taken to have room beside them. A text that `decode` preempts is read again there.
    """
    coming = sorted(arrivals, key=lambda one: one.time_s)
    served = prefill.serve([one._replace(writes=1) for one in coming])
    going = [number for number, one in enumerate(coming) if one.writes > 1]
    free_s = [0.0] * prefill.count
    sent: list[Arrival] = []
    arrived: list[int] = []
    for number in sorted(going, key=lambda number: served[number].tokens_s[0]):
        one, sender = coming[number], number % prefill.count
        start_s = max(served[number].tokens_s[0], free_s[sender])
        free_s[sender] = start_s + len(one.prompt) * wire.token_bytes / wire.bytes_per_s
        sent.append(Arrival(free_s[sender], (*one.prompt, 0), one.writes - 1))
        arrived.append(number)
    for number, rest in zip(arrived, decode.serve(sent, cached=True), strict=True):
        served[number].tokens_s += rest.tokens_s
    return Disaggregated(tuple(served), wire.token_bytes * sum(len(one.prompt) - 1 for one in sent))
