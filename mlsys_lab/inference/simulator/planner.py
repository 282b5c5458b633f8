"""Capacity planning: for each degree of tensor parallelism, the fewest replicas that meet an objective (SLO).

The load's demand of compute, memory and links at the stated efficiency gives a lower bound of the number of replicas.
From there on, replicas with equal loads are simulated in steady state, each with the engine's scheduler and the bounds
of `mlsys_lab.flops`; `efficiency` accounts for what the bounds leave out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
from mlsys_lab.inference.simulator.steady import DEFAULT_REQUESTS, measure_steady_state
from mlsys_lab.validation import require_positive

BLOCK_SIZE = 16
NUM_SAMPLES = 1000
"""Requests over which the demand of a load is averaged."""
MIN_SLO_ATTAINMENT = 0.95
"""Fraction of the requests that must meet the objective."""
MAX_REPLICAS = 4096
NUM_UNLOADED_REQUESTS = 20
"""Requests of a simulation that checks whether an almost idle replica meets the objective."""


@dataclass(frozen=True)
class Service:
    """A load (requests per second and their lengths), its objective, and how the machine is used.

    `memory` is the fraction of a device's memory that may be used, `efficiency` the fraction of peak that steps reach.
    InputError for a value out of range.
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
            raise InputError("rate must be finite", got=self.rate, expected="requests per second")
        for name in ("memory", "efficiency"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"{name} out of range", got=getattr(self, name), expected="above 0, at most 1")


@dataclass(frozen=True)
class ServingPlan:
    """Replicas of a layout, the simulation of one of them, and why one replica fewer would not be enough.

    `num_blocks` are the KV cache blocks of a replica, of `BLOCK_SIZE` tokens each, and `max_num_seqs` its batch limit;
    `report` is of the steady state.
    `utilisation` is the fraction used of each resource at the stated efficiency: "compute", "memory" (bandwidth),
    "link", "network", and "cache" (blocks); a measured clock has "engine" in place of the first four. `binds` is the
    one, apart from the cache, that bounds steps for the longest time. With one replica fewer, `shortage` is what the
    load would exceed: "ttft", "tpot" or a resource; it is "" if there is only one replica. `replicas` is None if no
    number of them meets the objective; `shortage` then holds at any rate.
    """

    layout: Layout
    replicas: int | None
    num_blocks: int
    max_num_seqs: int
    simulation: Simulation
    report: Report
    utilisation: dict[str, float]
    binds: str
    shortage: str

    @property
    def devices(self) -> int | None:
        """Devices of all replicas."""
        return None if self.replicas is None else self.replicas * self.layout.devices

    def cost_per_million_tokens(self, price_per_hour: float, rate: float) -> float | None:
        """Cost of a million output tokens, at a price per device and hour, for `rate` requests per second."""
        if self.devices is None:
            return None
        num_output_tokens = sum(len(one.tokens_s) for one in self.simulation.served) / len(self.simulation.served)
        return self.devices * price_per_hour / 3600 / (rate * num_output_tokens) * 1e6


def build_pool(
    config: TransformerConfig,
    machine: Machine,
    service: Service,
    scheduler_config: SchedulerConfig,
    layout: Layout,
    *,
    count: int = 1,
) -> Pool:
    """Pool of `count` replicas of a layout, with as many blocks as fit next to weights and activations (maybe 0).

    `scheduler_config` is that of each of the layout's expert-parallel ranks. InputError if the layout does not
    divide the model.
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
    free_bytes = service.memory * machine.memory_bytes - held.weights - held.activations
    token_bytes = bytes_per_token(config, service.cache_bytes) * copies(config, layout.tensor) / layout.tensor
    return max(0, math.floor(free_bytes / (BLOCK_SIZE * token_bytes)))


def mean_demand(pool: Pool, service: Service, *, seed: int = 0) -> TimeBound:
    """Time of each of a replica's resources that one request takes at least, on average over the load's lengths.

    Steps have as many sequences as the scheduler's limits and the KV cache allow.
    """
    assert isinstance(pool.clock, BoundClock)
    random = Random(seed)
    drawn = [service.lengths(random) for _ in range(NUM_SAMPLES)]
    held = sum(num_prompt + num_output / 2 for num_prompt, num_output in drawn) / NUM_SAMPLES
    sequences = max(1.0, min(pool.scheduler_config.max_num_seqs, pool.num_blocks * pool.block_size / held))
    tokens = pool.scheduler_config.max_num_batched_tokens
    each = [pool.clock.demand(*lengths, sequences=sequences, tokens=tokens) for lengths in drawn]
    return TimeBound(*(sum(times_s) / NUM_SAMPLES for times_s in zip(*map(astuple, each), strict=True)))


def plan_serving(
    config: TransformerConfig,
    machine: Machine,
    service: Service,
    *,
    scheduler_config: SchedulerConfig,
    expert: int = 1,
    seed: int = 0,
    log: Callable[[str], None] = lambda words: None,
) -> list[ServingPlan]:
    """Plans for every degree of tensor parallelism within a node that the model fits on.

    Fewest devices come first, and of as many the shortest time per token. Experts are sharded over `expert` ranks, each
    with as many tensor-parallel devices; `scheduler_config` is that of a rank. `log` is called with a line before each
    simulation.
    Plans that cannot meet the objective come last. InputError if the model fits at no degree, and if more than
    `MAX_REPLICAS` replicas are needed.
    """
    if expert > 1:
        Layout(data=expert, expert=expert).check(config)
    plans, needed = [], expert * largest_request(service, seed)
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
        if service.rate * demand.time_s <= MAX_REPLICAS:
            demand_s = {name.removesuffix("_s"): time_s for name, time_s in asdict(demand).items()}
            words = f"with tensor parallelism {tensor}"
            plans.append(plan_pool(pool, service, layout, demand_s, words=words, seed=seed, log=log))
    if not capacities:
        raise InputError(
            f"{config.name} and the longest request fit on no replica",
            got=f"up to {expert * machine.node} devices of {machine.memory_bytes / 1e9:.0f} GB",
            help="take a larger device, narrower weights (--weights) or shorter requests",
        )
    if not plans:
        expected = f"at most {MAX_REPLICAS * max(capacities):,.0f}: {MAX_REPLICAS} replicas at full load"
        raise InputError("the load is too large", got=f"{service.rate:g} requests/s", expected=expected)
    return sorted(plans, key=lambda one: (one.devices is None, one.devices or 0, one.report.tpot_s.get(95, math.inf)))


def plan_pool(
    pool: Pool,
    service: Service,
    layout: Layout,
    demand_s: Mapping[str, float],
    *,
    words: str,
    seed: int,
    log: Callable[[str], None],
) -> ServingPlan:
    """Search the fewest replicas of a pool that meet the objective.

    The search starts at the lower bound given by `demand_s`, the time of each of a replica's resources that a request
    takes at least. `words` say in the log what is tried.
    """
    busiest = max(demand_s, key=demand_s.__getitem__)
    lower_bound = math.ceil(service.rate * demand_s[busiest])
    clock = pool.clock
    spent_s = clock.spent_s if isinstance(clock, BoundClock) else {}

    def serve(arrivals: Sequence[Arrival]) -> Simulation:
        spent_s.clear()
        return simulate(
            arrivals, clock, num_blocks=pool.num_blocks, block_size=BLOCK_SIZE, config=pool.scheduler_config
        )

    def describe(replicas: int, simulation: Simulation, result: Report, measured: Sequence[Served]) -> ServingPlan:
        """Plan of these replicas, whose `shortage` is what they themselves exceed, "" if they meet the objective."""
        missed = Counter(name for one in measured for name in service.objective.missed(one))
        utilisation = {name: service.rate / replicas * time_s for name, time_s in demand_s.items()}
        return ServingPlan(
            layout,
            replicas,
            pool.num_blocks,
            pool.scheduler_config.max_num_seqs,
            simulation,
            result,
            utilisation | {"cache": simulation.mean_cache},
            max(spent_s or demand_s, key=(spent_s or demand_s).__getitem__),
            ""
            if result.slo_attainment and result.slo_attainment >= MIN_SLO_ATTAINMENT
            else (missed or Counter(["ttft"])).most_common(1)[0][0],
        )

    runs = [serve(poisson(service.rate / MAX_REPLICAS, NUM_UNLOADED_REQUESTS, service.lengths, seed=seed))]

    def run(replicas: int) -> ServingPlan:
        log(f"simulating {replicas} replica{'s' * (replicas != 1)} {words}")

        def record(arrivals: Sequence[Arrival]) -> Sequence[Served]:
            runs.append(serve(arrivals))
            return runs[-1].served

        steady = measure_steady_state(
            record,
            service.rate / replicas,
            service.lengths,
            service.objective,
            max_num_seqs=pool.scheduler_config.max_num_seqs,
            requests=max(DEFAULT_REQUESTS, len(runs[-1].served)),  # as many as the previous run needed
            seed=seed,
            capacity=1 / demand_s[busiest],
            min_slo_attainment=MIN_SLO_ATTAINMENT,
        )
        return describe(replicas, runs[-1], steady.report, steady.measured)

    unloaded = describe(MAX_REPLICAS, runs[0], report(runs[0].served, service.objective), runs[0].served)
    if unloaded.shortage:
        return replace(unloaded, replicas=None)
    too_few, shortage = lower_bound - 1, busiest
    enough, found = lower_bound, run(lower_bound)
    while found.shortage and enough < MAX_REPLICAS:
        too_few, shortage = enough, found.shortage
        enough = min(MAX_REPLICAS, math.ceil(1.1 * enough))
        found = run(enough)
    if found.shortage:
        return replace(found, replicas=None)
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        tried = run(middle)
        if tried.shortage:
            too_few, shortage = middle, tried.shortage
        else:
            enough, found = middle, tried
    return replace(found, shortage=shortage if too_few else "")


def largest_request(service: Service, seed: int) -> int:
    """Number of blocks of the longest of the load's requests."""
    random = Random(seed)
    return max(-(-sum(service.lengths(random)) // BLOCK_SIZE) for _ in range(NUM_SAMPLES))
