"""Time of messages on a topology whose links they share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from mlsys_lab.comm.cost.topology import Topology
from mlsys_lab.comm.ledger import Ledger, Message
from mlsys_lab.errors import InputError


def round_s(messages: Iterable[Message], topology: Topology) -> float:
    """Seconds of messages that start together: the longest latency, and the time of the link with most to carry.

    A link that k messages cross carries them one after the other, which takes as long as all k at a k-th of its rate.
    """
    load: dict[str, int] = defaultdict(int)
    latency_s = 0.0
    for message in messages:
        latency_s = max(latency_s, topology.latency_s(message.source, message.destination))
        for link in topology.route(message.source, message.destination):
            load[link] += message.size_bytes
    return latency_s + max((size / topology.capacity[link] for link, size in load.items()), default=0.0)


def replay_s(ledger: Ledger, topology: Topology) -> float:
    """Seconds of a run's messages on a topology: its latency steps one after the other, each as long as `round_s` says.

    Ranks wait for each other after each step, which a real run need not do: an upper bound where steps differ in size.
    """
    if len(ledger.logs) != topology.size:
        raise InputError("the topology has another number of ranks", got=topology.size, expected=len(ledger.logs))
    rounds: dict[float, list[Message]] = defaultdict(list)
    for message in ledger.messages:
        rounds[message.start].append(message)
    return sum(round_s(messages, topology) for messages in rounds.values())
