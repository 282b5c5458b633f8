"""Capacity planning with a measured clock: batch limits, KV cache blocks and replicas of one machine's engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from mlsys_lab.errors import InputError
from mlsys_lab.flops.layout import Layout
from mlsys_lab.inference.engine.scheduler import SchedulerConfig
from mlsys_lab.inference.simulator.clock import LineClock
from mlsys_lab.inference.simulator.planner import (
    BLOCK_SIZE,
    MAX_REPLICAS,
    NUM_SAMPLES,
    Service,
    ServingPlan,
    largest_request,
    plan_pool,
)
from mlsys_lab.inference.simulator.pools import Pool


def plan_measured(
    clock: LineClock,
    service: Service,
    *,
    blocks: Sequence[int],
    scheduler_config: SchedulerConfig,
    seed: int = 0,
    log: Callable[[str], None] = lambda words: None,
) -> list[ServingPlan]:
    """Plans for each of the numbers of `blocks`, and for batch limits of powers of two up to the scheduler's.

    A replica is a machine like the one on which the clock was measured. Fewest replicas come first, of as many the
    fewest blocks, then the shortest time per token; plans that cannot meet the objective come last. InputError if the
    longest request does not fit into some number of blocks, and if more than `MAX_REPLICAS` replicas are needed.
    """
    needed = largest_request(service, seed)
    if min(blocks) < needed:
        got, expected = f"{min(blocks)} blocks", f"at least {needed} blocks of {BLOCK_SIZE} tokens"
        raise InputError("the longest request does not fit into the cache", got=got, expected=expected)
    largest = scheduler_config.max_num_seqs
    limits = [*(2**power for power in range((largest - 1).bit_length())), largest]
    plans, capacity = [], 0.0
    for num_blocks in sorted(set(blocks)):
        for limit in limits:
            pool = Pool(clock, num_blocks, replace(scheduler_config, max_num_seqs=limit), 1, BLOCK_SIZE)
            demand_s = _mean_demand(clock, pool, service, seed)
            capacity = max(capacity, 1 / demand_s)
            if service.rate * demand_s <= MAX_REPLICAS:
                words = f"of {num_blocks} blocks and up to {limit} sequences"
                plans.append(plan_pool(pool, service, Layout(), {"engine": demand_s}, words=words, seed=seed, log=log))
    if not plans:
        expected = f"at most {MAX_REPLICAS * capacity:,.0f}: {MAX_REPLICAS} replicas at full load"
        raise InputError("the load is too large", got=f"{service.rate:g} requests/s", expected=expected)
    return sorted(plans, key=_rank)


def _mean_demand(clock: LineClock, pool: Pool, service: Service, seed: int) -> float:
    """Seconds of the engine that a request takes at least, on average over the load's lengths, in the largest batch."""
    random, config = Random(seed), pool.scheduler_config
    drawn = [service.lengths(random) for _ in range(NUM_SAMPLES)]
    limits = {"sequences": config.max_num_seqs, "tokens": config.max_num_batched_tokens}
    return sum(clock.demand_s(*lengths, **limits) for lengths in drawn) / NUM_SAMPLES


def _rank(one: ServingPlan) -> tuple[bool, int, int, float]:
    return one.replicas is None, one.replicas or 0, one.num_blocks, one.report.tpot_s.get(95, math.inf)
