"""Transfers that are under way at once and share links: each has its max-min fair share of bandwidth at every moment.

All rates rise together until a link is full; what crosses it stays at that rate, and the others rise on (progressive
filling: Bertsekas and Gallager, Data Networks, §6.5.2). What TCP or InfiniBand do comes near it in the mean; packets,
buffers and the time until rates have settled are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mlsys_lab.comm.cost.topology import Route

ROUNDING = 1e-12  # shares of links that differ by less are the same: bandwidths are not subtracted exactly


def fair_rates(routes: Mapping[int, Route], capacity: Mapping[str, float]) -> dict[int, float]:
    """Bytes a second of each flow over its route of links: none could have more unless one with less had less still.

    Flows 0 and 1 share a link of 10, of which 1 can use no more than the link of 2 behind it lets through:

    >>> fair_rates({0: ("wide",), 1: ("wide", "thin")}, {"wide": 10.0, "thin": 2.0})
    {1: 2.0, 0: 8.0}
    """
    if len(routes) == 1:
        ((flow, route),) = routes.items()
        return {flow: min(capacity[link] for link in route)}
    users: dict[str, set[int]] = {}
    for flow, route in routes.items():
        for link in route:
            users.setdefault(link, set()).add(flow)
    left = {link: capacity[link] for link in users}
    rates: dict[int, float] = {}
    while users:
        shares = {link: left[link] / len(flows) for link, flows in users.items()}
        level = min(shares.values())
        full = [users[link] for link, share in shares.items() if share <= level * (1 + ROUNDING)]
        for flow in sorted(set().union(*full)):
            rates[flow] = level
            for link in routes[flow]:
                left[link] = max(0.0, left[link] - level)
                users[link].remove(flow)
        users = {link: flows for link, flows in users.items() if flows}
    return rates


@dataclass(slots=True)
class _Flow:
    """Bytes that were left at `since`, and the rate from then on; `version` counts the rates that it has had."""

    route: Route
    left_bytes: float
    since: float
    rate: float = -1.0
    version: int = 0


class End(NamedTuple):
    """When a flow ends at its present rate; overtaken once `Flows.version` of it is another."""

    time_s: float
    flow: int
    version: int


class Flows:
    """Flows between `begin` and `finish`; rates are worked out anew only for those that a change can reach."""

    def __init__(self, capacity: Mapping[str, float]) -> None:
        self._capacity = capacity
        self._flows: dict[int, _Flow] = {}
        self._users: dict[str, dict[int, None]] = {}
        self._changed: dict[str, None] = {}

    def begin(self, flow: int, size_bytes: float, route: Route, now: float) -> None:
        """Start to send so many bytes over a route, from `now`."""
        self._flows[flow] = _Flow(route, size_bytes, now)
        for link in route:
            self._users.setdefault(link, {})[flow] = None
            self._changed[link] = None

    def finish(self, flow: int) -> None:
        """Take a flow off its links, which has sent all."""
        for link in self._flows.pop(flow).route:
            del self._users[link][flow]
            if self._users[link]:
                self._changed[link] = None

    def version(self, flow: int) -> int:
        """Number of the flow's present rate, counted from 1; 0 for a flow that is not under way."""
        return self._flows[flow].version if flow in self._flows else 0

    def settle(self, now: float) -> list[End]:
        """Share links anew after all changes of this moment; returns the ends that have moved, but for those never."""
        rates: dict[int, float] = {}
        for group in self._reach():
            rates |= fair_rates({flow: self._flows[flow].route for flow in group}, self._capacity)
        ends = []
        for number, rate in rates.items():
            flow = self._flows[number]
            if rate == flow.rate:
                continue
            if flow.version:
                flow.left_bytes = max(0.0, flow.left_bytes - flow.rate * (now - flow.since))
            flow.since, flow.rate, flow.version = now, rate, flow.version + 1
            if rate or not flow.left_bytes:
                ends.append(End(now + (flow.left_bytes / rate if rate else 0.0), number, flow.version))
        return ends

    def _reach(self) -> list[list[int]]:
        """Flows on links that have changed, in groups: with those that share a link with them, and so on."""
        groups, seen = [], set()
        for changed in self._changed:
            group, links = [], [changed]
            while links:
                for flow in self._users[links.pop()]:
                    if flow not in seen:
                        seen.add(flow)
                        group.append(flow)
                        links += self._flows[flow].route
            if group:
                groups.append(group)
        self._changed.clear()
        return groups
