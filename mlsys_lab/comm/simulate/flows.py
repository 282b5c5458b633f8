"""Max-min fair bandwidth sharing among concurrent transfers.

All rates rise together until a link is full; flows over it keep that rate, and the others continue to rise (progressive
filling: Bertsekas and Gallager, Data Networks, §6.5.2). TCP and InfiniBand come close to this on average. Left out:
packets, buffers, and the time until rates settle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mlsys_lab.comm.cost.topology import Route

ROUNDING = 1e-12  # fair shares that differ by less are equal: subtracted bandwidths are rounded


def fair_rates(routes: Mapping[int, Route], capacity: Mapping[str, float]) -> dict[int, float]:
    """Bytes per second of each flow over its route: no flow can get more without taking from one that has less.

    Flows 0 and 1 share a link of 10, but flow 1 also crosses a link of 2:

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
    """Bytes left at time `since`, and the rate from then on; `version` counts the changes of the rate."""

    route: Route
    left_bytes: float
    since: float
    rate: float = -1.0
    version: int = 0


class End(NamedTuple):
    """When a flow ends at its current rate; outdated once `Flows.version` differs."""

    time_s: float
    flow: int
    version: int


class Flows:
    """Flows between `begin` and `finish`; rates are recomputed only for flows that a change can affect."""

    def __init__(self, capacity: Mapping[str, float]) -> None:
        self._capacity = capacity
        self._flows: dict[int, _Flow] = {}
        self._users: dict[str, dict[int, None]] = {}
        self._changed: dict[str, None] = {}

    def begin(self, flow: int, size_bytes: float, route: Route, now: float) -> None:
        """Start to send `size_bytes` over a route at time `now`."""
        self._flows[flow] = _Flow(route, size_bytes, now)
        for link in route:
            self._users.setdefault(link, {})[flow] = None
            self._changed[link] = None

    def finish(self, flow: int) -> None:
        """Remove a flow that has sent all its bytes from its links."""
        for link in self._flows.pop(flow).route:
            del self._users[link][flow]
            if self._users[link]:
                self._changed[link] = None

    def version(self, flow: int) -> int:
        """How many rates the flow has had, including the current one; 0 for a flow that is not active."""
        return self._flows[flow].version if flow in self._flows else 0

    def settle(self, now: float) -> list[End]:
        """Recompute rates after all changes at time `now`; return the new ends of flows whose rate has changed."""
        rates: dict[int, float] = {}
        for group in self._affected_groups():
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

    def _affected_groups(self) -> list[list[int]]:
        """Connected groups of flows that share links, directly or not, with a changed link."""
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
