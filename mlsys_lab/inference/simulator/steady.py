"""A load in steady state: long enough runs, without warm-up and drain, and a queue that grows is seen as one.

Any rate looks good in a short run: the first requests find an empty server, and while the last ones are answered no
more arrive. So a run lasts `LATENCIES` times as long as a request stays, and only requests that arrive in its middle
are measured. Where requests come faster than they are completed there is no steady state: the queue grows as long as
they come, and sooner or later every request misses its objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from mlsys_lab.errors import InputError
from mlsys_lab.inference.simulator.load import Arrival, Lengths, bursts
from mlsys_lab.inference.simulator.metrics import Objective, Report, Served, report

REQUESTS = 200
"""Requests of the shortest run, where nobody says how many."""
LEAST_REQUESTS, MOST_REQUESTS = 50, 100_000
BURSTS = 20
"""Bursts of the shortest run, where requests come in bursts."""
LATENCIES = 5
"""A run lasts as many times the mean latency of its requests; a fifth at each end is not measured."""
GROWTH = 1.5
"""Where the second half of the measured requests waits so many times as long for first tokens, the queue grows."""
MOST_REQUESTS = 100_000

Serve = Callable[[Sequence[Arrival]], Sequence[Served]]


@dataclass(frozen=True)
class Steady:
    """Requests in the middle of a run, and their figures; `tokens_per_s` counts the tokens generated meanwhile.

    `overloaded`: there is no steady state, because the queue grows. `slo_attainment` and `goodput` of the report are
    then 0.
    """

    measured: tuple[Served, ...]
    report: Report
    overloaded: bool


def measure_steady_state(
    serve: Serve,
    rate: float,
    lengths: Lengths,
    objective: Objective,
    *,
    slots: int,
    requests: int = REQUESTS,
    burst: int = 1,
    seed: int = 0,
    capacity: float = math.inf,
    min_slo_attainment: float = 0.0,
) -> Steady:
    """Serve `rate` requests a second for long enough, and measure those in the middle of the run.

    `requests` and `BURSTS` bursts are the shortest run. No run has many more requests than the `slots` sequences that
    are served at once: where requests stay so long that it would, or `rate` is above the known `capacity`, the load is
    too large. A run in which a smaller fraction than `min_slo_attainment` meets the objective is not repeated
    for longer. InputError for a number of requests out of range.
    """
    if not LEAST_REQUESTS <= requests <= MOST_REQUESTS or burst > MOST_REQUESTS / BURSTS:
        expected = f"{LEAST_REQUESTS} to {MOST_REQUESTS:,} requests, {BURSTS} bursts among them"
        raise InputError("the run cannot be so long", got=f"{requests} requests, {burst} at once", expected=expected)
    count = max(requests, BURSTS * burst) if burst > 1 else requests
    most = max(count, LATENCIES * slots)
    while True:
        served = sorted(serve(bursts(rate, count, lengths, size=burst, seed=seed)), key=lambda one: one.arrived_s)
        latency_s = sum(one.tokens_s[-1] - one.arrived_s for one in served) / count
        ends = count // LATENCIES
        measured = served[ends : count - ends]
        start_s, time_s = measured[0].arrived_s, len(measured) / rate
        wanted = math.ceil(LATENCIES * latency_s * rate)
        growing = wanted > count or _grows(measured)
        slo_attainment = sum(not objective.missed(one) for one in measured) / len(measured)
        if not growing or count == most or rate > capacity or slo_attainment < min_slo_attainment:
            break
        count = min(most, max(2 * count, wanted))  # a queue that only fluctuates does not grow in a longer run
    tokens = sum(start_s <= token_s < start_s + time_s for one in served for token_s in one.tokens_s)
    figures = replace(report(measured, objective, time_s=time_s), tokens_per_s=tokens / time_s)
    overloaded = growing or rate > capacity
    if overloaded:
        figures = replace(figures, slo_attainment=0.0, goodput=0.0)
    return Steady(tuple(measured), figures, overloaded)


def _grows(measured: Sequence[Served]) -> bool:
    """Whether the requests that came later waited longer for their first tokens."""
    middle = len(measured) // 2
    before_s, after_s = (median(one.ttft_s for one in half) for half in (measured[:middle], measured[middle:]))
    return after_s > GROWTH * before_s
