"""Time of messages that share the links of a topology."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from mlsys_lab.comm.cost.topology import Topology
from mlsys_lab.comm.ledger import Ledger, Message
from mlsys_lab.errors import InputError


def busiest_link_s(messages: Iterable[tuple[int, int, float]], topology: Topology) -> float:
    """Seconds of the busiest link, for messages (source, destination, bytes) sent at the same time.

    k messages over a link take as long one after the other as all at once with 1/k of its bandwidth each.
    """
    load: dict[str, float] = defaultdict(float)
    for source, destination, size_bytes in messages:
        for link in topology.route(source, destination):
            load[link] += size_bytes
    return max((size / topology.capacity[link] for link, size in load.items()), default=0.0)


def round_s(messages: Collection[Message], topology: Topology) -> float:
    """Seconds of messages that start together: the longest latency, then the time of the busiest link."""
    latency_s = max((topology.latency_s(one.source, one.destination) for one in messages), default=0.0)
    return latency_s + busiest_link_s(((one.source, one.destination, one.size_bytes) for one in messages), topology)


def replay_s(ledger: Ledger, topology: Topology) -> float:
    """Seconds of a run's messages on a topology: the sum of `round_s` over its latency steps.

    Assumes a barrier after each step, which a real run does not need: an upper bound if messages differ in size.
    """
    if len(ledger.logs) != topology.size:
        raise InputError("the topology has another number of ranks", got=topology.size, expected=len(ledger.logs))
    rounds: dict[float, list[Message]] = defaultdict(list)
    for message in ledger.messages:
        rounds[message.start].append(message)
    return sum(round_s(messages, topology) for messages in rounds.values())


def egress_bytes_per_s(topology: Topology, inside: Collection[int]) -> float:
    """Bandwidth out of a group of ranks, such as a node, when each sends equally much to every rank outside.

    >>> from mlsys_lab.comm.cost.topology import rails
    >>> egress_bytes_per_s(rails(2, 8, inside_bytes_per_s=450e9, rail_bytes_per_s=50e9), range(8)) / 1e9
    400.0
    """
    outside = set(range(topology.size)) - set(inside)
    if not outside or not inside or not set(inside) <= set(range(topology.size)):
        raise InputError(
            "a group must leave some ranks of the topology out",
            got=f"{sorted(inside)} of {topology.size}",
        )
    messages = [(a, b, 1.0) for a in inside for b in outside]
    return len(messages) / busiest_link_s(messages, topology)
