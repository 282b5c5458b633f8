"""How many devices a load needs: for each degree of tensor parallelism the fewest replicas that keep an objective.

First comes arithmetic: what the load asks of compute, memory and links at the stated efficiency is the least number of
replicas. From there on, replicas that share the load evenly are simulated in steady state, each with the engine's
scheduler and the bounds of `mlsys_lab.flops`; what those leave out, the `efficiency` of the load's clock stands for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from random import Random

from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops.bounds import Machine, TimeBound
from mlsys_lab.flops.cache import bytes_per_token, copies
from mlsys_lab.flops.defaults import SERVING_EFFICIENCY, SERVING_MEMORY
from mlsys_lab.flops.estimate import serving_memory
from mlsys_lab.flops.layout import Layout
from mlsys_lab.inference.engine.scheduler import SchedulerConfig
from mlsys_lab.inference.simulator.clock import BoundClock
from mlsys_lab.inference.simulator.load import Arrival, Lengths, poisson
from mlsys_lab.inference.simulator.metrics import Objective, Report, Served, report
from mlsys_lab.inference.simulator.pools import Pool
from mlsys_lab.inference.simulator.simulate import Simulation, simulate
from mlsys_lab.inference.simulator.steady import REQUESTS, measure_steady_state
from mlsys_lab.validation import require_positive

BLOCK_SIZE = 16
DRAWS = 1000
"""Requests over which the demand of a load is averaged."""
MIN_SLO_ATTAINMENT = 0.95
"""Fraction of the requests that must meet the objective."""
MOST_REPLICAS = 4096
ALONE = 20
"""Requests of a simulation that asks whether a replica with next to no load keeps the objective."""


@dataclass(frozen=True)
class Service:
    """What is to be served: requests a second, their lengths, the objective, and how the machine is used.

    `memory` is the fraction of a device's memory that may be used, `efficiency` the fraction of its peaks that steps
    reach. Raises InputError for a rate that is not a positive finite number.
    """

    rate: float
    lengths: Lengths
    objective: Objective
    weight_bytes: float = 2
    cache_bytes: float = 2
    memory: float = SERVING_MEMORY
    efficiency: float = SERVING_EFFICIENCY

    def __post_init__(self) -> None:
        require_positive(rate=self.rate, weight_bytes=self.weight_bytes, cache_bytes=self.cache_bytes)
        if self.rate == math.inf:
            raise InputError("rate must be finite", got=self.rate, expected="requests a second")
        for name in ("memory", "efficiency"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"{name} out of range", got=getattr(self, name), expected="above 0, at most 1")


@dataclass(frozen=True)
class ServingPlan:
    """Replicas of a layout, what one of them does, and what would go wrong with one replica less.

    `num_blocks` are those of a replica's cache, of `BLOCK_SIZE` tokens each; `report` is of the steady state.
    `utilisation` is the fraction that the load takes of what each resource of the replicas can do at the stated
    efficiency: "compute", "memory" (bandwidth), "link", "network", and of the "cache"'s blocks. `binds` takes most of
    the steps' time: one of the first four. `short` is what one replica less misses: "ttft", "tpot", a resource of which
    the load takes more than there is, or "" if there is only one replica. `replicas` is None if no number of replicas
    keeps the objective; `short` then is what is missed at any rate.
    """

    layout: Layout
    replicas: int | None
    num_blocks: int
    simulation: Simulation
    report: Report
    utilisation: dict[str, float]
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
    config: TransformerConfig,
    machine: Machine,
    service: Service,
    scheduler_config: SchedulerConfig,
    layout: Layout,
    *,
    count: int = 1,
) -> Pool:
    """Pool of `count` replicas of a layout, whose blocks fill what weights and activations leave; 0 if none fit.

    `scheduler_config` is that of each of the layout's expert-parallel ranks. InputError if the model cannot be divided
    like this.
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
    max_num_batched_tokens = scheduler_config.max_num_batched_tokens
    num_blocks = ranks * num_cache_blocks(config, machine, service, layout, tokens=max_num_batched_tokens)
    all_ranks = replace(
        scheduler_config,
        max_num_seqs=ranks * scheduler_config.max_num_seqs,
        max_num_batched_tokens=ranks * max_num_batched_tokens,
    )
    return Pool(clock, num_blocks, all_ranks, count, BLOCK_SIZE)


def num_cache_blocks(
    config: TransformerConfig, machine: Machine, service: Service, layout: Layout, *, tokens: int
) -> int:
    """Number of blocks that fit on a data-parallel rank next to weights and the activations of `tokens` tokens."""
    held = serving_memory(
        config,
        layout,
        batch=layout.data,
        tokens=tokens,
        weight_bytes=service.weight_bytes,
        cache_bytes=service.cache_bytes,
    )
    room = service.memory * machine.memory_bytes - held.weights - held.activations
    token_bytes = bytes_per_token(config, service.cache_bytes) * copies(config, layout.tensor) / layout.tensor
    return max(0, math.floor(room / (BLOCK_SIZE * token_bytes)))


def mean_demand(pool: Pool, service: Service, *, seed: int = 0) -> TimeBound:
    """Least seconds of a replica that one request takes, of each resource, on average over the load's lengths.

    No more sequences are in a step than its limits and the blocks of the cache allow.
    """
    assert isinstance(pool.clock, BoundClock)
    random = Random(seed)
    drawn = [service.lengths(random) for _ in range(DRAWS)]
    held = sum(num_prompt + num_output / 2 for num_prompt, num_output in drawn) / DRAWS
    sequences = max(1.0, min(pool.scheduler_config.max_num_seqs, pool.num_blocks * pool.block_size / held))
    tokens = pool.scheduler_config.max_num_batched_tokens
    each = [pool.clock.demand(*lengths, sequences=sequences, tokens=tokens) for lengths in drawn]
    return TimeBound(*(sum(times_s) / DRAWS for times_s in zip(*map(astuple, each), strict=True)))


def plan_serving(
    config: TransformerConfig,
    machine: Machine,
    service: Service,
    *,
    scheduler_config: SchedulerConfig,
    expert: int = 1,
    seed: int = 0,
) -> list[ServingPlan]:
    """Plans for every degree of tensor parallelism within a node that the model fits on: fewest devices first.

    Experts are divided among `expert` ranks, each with as many tensor-parallel devices; `scheduler_config` is that
    of a rank.
    Plans that cannot keep the objective come last. InputError where the model fits on no degree, and where more than
    `MOST_REPLICAS` replicas are needed.
    """
    if expert > 1:
        Layout(data=expert, expert=expert).check(config)
    plans, needed = [], expert * _largest_request(service, seed)
    capacities = []
    for tensor in (2**power for power in range(machine.node.bit_length())):
        layout = Layout(data=expert, tensor=tensor, expert=expert)
        try:
            pool = build_pool(config, machine, service, scheduler_config, layout)
        except InputError:
            continue
        if pool.num_blocks < needed:
            continue
        demand = mean_demand(pool, service, seed=seed)
        capacities.append(1 / demand.time_s)
        if service.rate * demand.time_s <= MOST_REPLICAS:
            plans.append(_plan(pool, service, layout, demand, seed=seed))
    if not capacities:
        raise InputError(
            f"{config.name} and the longest request fit on no replica",
            got=f"up to {expert * machine.node} devices of {machine.memory_bytes / 1e9:.0f} GB",
            help="take a larger device, narrower weights (--weights) or shorter texts",
        )
    if not plans:
        expected = f"at most {MOST_REPLICAS * max(capacities):,.0f}: {MOST_REPLICAS} replicas at full load"
        raise InputError("the load is too large", got=f"{service.rate:g} requests/s", expected=expected)
    return sorted(plans, key=lambda one: (one.devices is None, one.devices or 0, one.layout.tensor))


def _plan(pool: Pool, service: Service, layout: Layout, demand: TimeBound, *, seed: int) -> ServingPlan:
    """The fewest replicas that keep the objective, sought from the least number that the demand allows."""
    least = math.ceil(service.rate * demand.time_s)
    clock = pool.clock
    assert isinstance(clock, BoundClock)

    def serve(arrivals: Sequence[Arrival]) -> Simulation:
        clock.spent_s.clear()
        return simulate(
            arrivals, clock, num_blocks=pool.num_blocks, block_size=BLOCK_SIZE, config=pool.scheduler_config
        )

    def describe(replicas: int, done: Simulation, figures: Report, measured: Sequence[Served]) -> ServingPlan:
        """The plan of these replicas; what they miss themselves is its `short`, "" where they keep the objective."""
        missed = Counter(name for one in measured for name in service.objective.missed(one))
        shares = {name.removesuffix("_s"): service.rate / replicas * time_s for name, time_s in asdict(demand).items()}
        return ServingPlan(
            layout,
            replicas,
            pool.num_blocks,
            done,
            figures,
            shares | {"cache": done.mean_cache},
            max(clock.spent_s, key=clock.spent_s.__getitem__),
            ""
            if figures.slo_attainment and figures.slo_attainment >= MIN_SLO_ATTAINMENT
            else (missed or Counter(["ttft"])).most_common(1)[0][0],
        )

    runs = [serve(poisson(service.rate / MOST_REPLICAS, ALONE, service.lengths, seed=seed))]

    def run(replicas: int) -> ServingPlan:
        def record(arrivals: Sequence[Arrival]) -> Sequence[Served]:
            runs.append(serve(arrivals))
            return runs[-1].served

        steady = measure_steady_state(
            record,
            service.rate / replicas,
            service.lengths,
            service.objective,
            slots=pool.scheduler_config.max_num_seqs,
            requests=max(REQUESTS, len(runs[-1].served)),  # as many as the run before needed
            seed=seed,
            capacity=1 / demand.time_s,
            min_slo_attainment=MIN_SLO_ATTAINMENT,
        )
        return describe(replicas, runs[-1], steady.report, steady.measured)

    alone = describe(MOST_REPLICAS, runs[0], report(runs[0].served, service.objective), runs[0].served)
    if alone.short:
        return replace(alone, replicas=None)
    too_few, short = least - 1, max(asdict(demand).items(), key=lambda one: one[1])[0].removesuffix("_s")
    enough, found = least, run(least)
    while found.short and enough < MOST_REPLICAS:
        too_few, short = enough, found.short
        enough = min(MOST_REPLICAS, math.ceil(1.1 * enough))
        found = run(enough)
    if found.short:
        return replace(found, replicas=None)
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        tried = run(middle)
        if tried.short:
            too_few, short = middle, tried.short
        else:
            enough, found = middle, tried
    return replace(found, short=short if too_few else "")


def _largest_request(service: Service, seed: int) -> int:
    """Number of blocks of the longest of the load's requests."""
    random = Random(seed)
    return max(-(-sum(service.lengths(random)) // BLOCK_SIZE) for _ in range(DRAWS))
