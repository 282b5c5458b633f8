"""How many devices a load needs: for each degree of tensor parallelism the fewest replicas that keep an objective.

Replicas share the load evenly, each simulated with the engine's scheduler and the bounds of `mlsys_lab.flops`; what
those leave out, the `efficiency` of the load's clock stands for.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from mlsys_lab.errors import InputError
from mlsys_lab.flops.amounts import require_at_least_one, require_positive
from mlsys_lab.flops.bounds import Machine
from mlsys_lab.flops.cache import bytes_per_token, copies
from mlsys_lab.flops.config import TransformerConfig
from mlsys_lab.flops.estimate import serving_memory
from mlsys_lab.flops.layout import Layout
from mlsys_lab.inference.engine.scheduler import Limits
from mlsys_lab.inference.simulator.clock import BoundClock
from mlsys_lab.inference.simulator.load import Lengths, poisson
from mlsys_lab.inference.simulator.metrics import Objective, Report, report
from mlsys_lab.inference.simulator.pools import Pool
from mlsys_lab.inference.simulator.simulate import Simulation, simulate

PAGE = 16
REQUESTS = 200
"""Requests of a simulation."""
GOOD = 0.95
"""Share of the requests that must meet the objective."""
MOST_REPLICAS = 4096
ALONE = 20
"""Requests of a simulation that asks whether a replica with next to no load keeps the objective."""


@dataclass(frozen=True)
class Service:
    """What is to be served: requests a second, their lengths, the objective, and how the machine is used.

    `memory` is the share of a device's memory that may be used, `efficiency` the share of its peaks that steps reach.
    """

    rate: float
    lengths: Lengths
    objective: Objective
    weight_bytes: float = 2
    cache_bytes: float = 2
    memory: float = 0.9
    efficiency: float = 0.6

    def __post_init__(self) -> None:
        require_positive(rate=self.rate, weight_bytes=self.weight_bytes, cache_bytes=self.cache_bytes)
        for name in ("memory", "efficiency"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"{name} out of range", got=getattr(self, name), expected="above 0, at most 1")


@dataclass(frozen=True)
class ServingPlan:
    """Replicas of a layout, what one of them does, and what would go wrong with one replica less.

    `pages` are those of a replica's cache, of `PAGE` tokens each. `binds` takes most of the steps' time: "compute",
    "memory", "link" or "network"; `short` is what one replica less misses: "ttft", "tpot" or "" where there is only
    one. `replicas` is None where no number keeps the objective; `short` then is what is missed however few come.
    """

    layout: Layout
    replicas: int | None
    pages: int
    simulation: Simulation
    report: Report
    binds: str
    short: str

    @property
    def devices(self) -> int | None:
        """Devices of all replicas."""
        return None if self.replicas is None else self.replicas * self.layout.devices

    def cost_per_million_tokens(self, price_per_hour: float, rate: float) -> float | None:
        """Cost of a million written tokens at a price an hour and device, while `rate` requests a second come."""
        if self.devices is None:
            return None
        written = sum(len(one.tokens_s) for one in self.simulation.served) / len(self.simulation.served)
        return self.devices * price_per_hour / 3600 / (rate * written) * 1e6


def build_pool(
    config: TransformerConfig, machine: Machine, service: Service, limits: Limits, layout: Layout, *, count: int = 1
) -> Pool:
    """Pool of `count` replicas of a layout, whose pages fill what weights and activations leave; 0 where none fit.

    `limits` are those of each of the layout's expert-parallel ranks. InputError where the model does not divide so.
    """
    ranks = layout.expert
    clock = BoundClock(
        config,
        machine,
        tensor=layout.tensor,
        expert=ranks,
        weight_bytes=service.weight_bytes,
        cache_bytes=service.cache_bytes,
        efficiency=service.efficiency,
    )
    pages = ranks * cache_pages(config, machine, service, layout, tokens=limits.tokens)
    together = replace(limits, sequences=ranks * limits.sequences, tokens=ranks * limits.tokens)
    return Pool(clock, pages, together, count, PAGE)


def cache_pages(config: TransformerConfig, machine: Machine, service: Service, layout: Layout, *, tokens: int) -> int:
    """Pages for which a data-parallel rank has room beside weights and activations of a step of `tokens`."""
    held = serving_memory(
        config,
        layout,
        batch=layout.data,
        tokens=tokens,
        weight_bytes=service.weight_bytes,
        cache_bytes=service.cache_bytes,
    )
    room = service.memory * machine.memory_bytes - held.weights - held.activations
    page_bytes = PAGE * bytes_per_token(config, service.cache_bytes) * copies(config, layout.tensor) / layout.tensor
    return max(0, math.floor(room / page_bytes))


def plan_serving(
    config: TransformerConfig, machine: Machine, service: Service, *, limits: Limits, expert: int = 1, seed: int = 0
) -> list[ServingPlan]:
    """Plans for every degree of tensor parallelism within a node that the model fits on: fewest devices first.

    Experts are divided among `expert` ranks, each with as many tensor-parallel devices; `limits` are those of a rank.
    Plans that cannot keep the objective come last. InputError where the model fits on no degree.
    """
    if expert > 1:
        Layout(data=expert, expert=expert).check(config)
    plans, needed = [], expert * _largest_request(service, seed)
    for tensor in (2**power for power in range(machine.node.bit_length())):
        layout = Layout(data=expert, tensor=tensor, expert=expert)
        try:
            pool = build_pool(config, machine, service, limits, layout)
        except InputError:
            continue
        if pool.pages >= needed:
            plans.append(_plan(config, machine, service, layout=layout, limits=limits, seed=seed))
    if not plans:
        raise InputError(
            f"{config.name} and the longest request fit on no replica",
            got=f"up to {expert * machine.node} devices of {machine.memory_bytes / 1e9:.0f} GB",
            help="take a larger device, narrower weights (--weights) or shorter texts",
        )
    return sorted(plans, key=lambda one: (one.devices is None, one.devices or 0, one.layout.tensor))


def _plan(
    config: TransformerConfig, machine: Machine, service: Service, *, layout: Layout, limits: Limits, seed: int
) -> ServingPlan:
    def run(replicas: int, requests: int = REQUESTS) -> tuple[int, Simulation, Report, str, str]:
        """A replica's pages and share of the load: what came of it, what took its time, what was missed most."""
        pool = build_pool(config, machine, service, limits, layout)
        arrivals = poisson(service.rate / replicas, requests, service.lengths, seed=seed)
        done = simulate(arrivals, pool.clock, pages=pool.pages, page=PAGE, limits=pool.limits)
        figures = report(done.served, service.objective)
        missed = Counter(name for one in done.served for name in service.objective.missed(one))
        assert figures.good is not None and isinstance(pool.clock, BoundClock)
        short = "" if figures.good >= GOOD else missed.most_common(1)[0][0]
        return pool.pages, done, figures, max(pool.clock.spent_s, key=pool.clock.spent_s.__getitem__), short

    idle = run(MOST_REPLICAS, requests=ALONE)
    if idle[4]:
        return ServingPlan(layout, None, *idle)
    too_few, short = 0, ""
    enough, found = 1, run(1)
    while found[4] and enough < MOST_REPLICAS:
        too_few, short = enough, found[4]
        enough *= 2
        found = run(enough)
    if found[4]:
        return ServingPlan(layout, None, *found)
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        tried = run(middle)
        if tried[4]:
            too_few, short = middle, tried[4]
        else:
            enough, found = middle, tried
    return ServingPlan(layout, enough, *found[:4], short)


def _largest_request(service: Service, seed: int) -> int:
    """Pages of the longest text of the load."""
    arrivals = poisson(service.rate, REQUESTS, service.lengths, seed=seed)
    require_at_least_one(requests=len(arrivals))
    return max(-(-(len(one.prompt) + one.writes) // PAGE) for one in arrivals)
