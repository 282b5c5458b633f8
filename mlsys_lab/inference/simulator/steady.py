"""Steady state of a load: long runs without warm-up and drain, and detection of a growing queue.

A short run flatters any rate: the first requests find an empty server, and no requests arrive while the last ones are
served. So a run lasts `LATENCIES` times the mean latency of a request, and only requests that arrive in its middle are
measured. If requests arrive faster than they are completed, there is no steady state: the queue grows, and sooner or
later every request misses its objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from mlsys_lab.errors import InputError
from mlsys_lab.inference.simulator.load import Arrival, Lengths, bursts
from mlsys_lab.inference.simulator.metrics import Objective, Report, Served, report

DEFAULT_REQUESTS = 200
"""Requests of the shortest run."""
MIN_REQUESTS, MAX_REQUESTS = 50, 100_000
BURSTS = 20
"""Bursts of the shortest run, if requests arrive in bursts."""
LATENCIES = 5
"""Length of a run in mean latencies of its requests; the first and the last fifth are not measured."""
GROWTH = 1.5
"""The queue grows if the median TTFT of the second half of the requests is this many times that of the first."""

Serve = Callable[[Sequence[Arrival]], Sequence[Served]]


@dataclass(frozen=True)
class Steady:
    """Requests in the middle of a run, and their report; its `tokens_per_s` counts all tokens generated meanwhile.

    If `is_overloaded`, there is no steady state because the queue grows; SLO attainment and goodput are then 0.
    """

    measured: tuple[Served, ...]
    report: Report
    is_overloaded: bool


def measure_steady_state(
    serve: Serve,
    rate: float,
    lengths: Lengths,
    objective: Objective,
    *,
    max_num_seqs: int,
    requests: int = DEFAULT_REQUESTS,
    burst: int = 1,
    seed: int = 0,
    capacity: float = math.inf,
    min_slo_attainment: float = 0.0,
) -> Steady:
    """Serve `rate` requests per second until the state is steady, and measure requests in the middle of the run.

    The shortest run has `requests` requests and `BURSTS` bursts, the longest `LATENCIES` · `max_num_seqs` requests. The
    load is too large if that is not long enough, or `rate` is above the known `capacity`. A run whose SLO attainment is
    below `min_slo_attainment` is not repeated. InputError for a number of requests out of range.
    """
    if not MIN_REQUESTS <= requests <= MAX_REQUESTS or burst > MAX_REQUESTS / BURSTS:
        expected = f"{MIN_REQUESTS} to {MAX_REQUESTS:,} requests, {BURSTS} bursts among them"
        raise InputError(
            "length of the run out of range", got=f"{requests} requests, {burst} at once", expected=expected
        )
    count = max(requests, BURSTS * burst) if burst > 1 else requests
    max_count = max(count, LATENCIES * max_num_seqs)
    while True:
        served = sorted(serve(bursts(rate, count, lengths, size=burst, seed=seed)), key=lambda one: one.arrived_s)
        latency_s = sum(one.tokens_s[-1] - one.arrived_s for one in served) / count
        margin = count // LATENCIES
        measured = served[margin : count - margin]
        start_s, time_s = measured[0].arrived_s, len(measured) / rate
        needed = math.ceil(LATENCIES * latency_s * rate)
        is_growing = needed > count or _is_growing(measured)
        slo_attainment = sum(not objective.missed(one) for one in measured) / len(measured)
        if not is_growing or count == max_count or rate > capacity or slo_attainment < min_slo_attainment:
            break
        count = min(max_count, max(2 * count, needed))  # a queue that only fluctuates does not grow in a longer run
    tokens = sum(start_s <= token_s < start_s + time_s for one in served for token_s in one.tokens_s)
    result = replace(report(measured, objective, time_s=time_s), tokens_per_s=tokens / time_s)
    is_overloaded = is_growing or rate > capacity
    if is_overloaded:
        result = replace(result, slo_attainment=0.0, goodput=0.0)
    return Steady(tuple(measured), result, is_overloaded)


def _is_growing(measured: Sequence[Served]) -> bool:
    """Whether TTFT was longer for the later half of the requests."""
    middle = len(measured) // 2
    before_s, after_s = (median(one.ttft_s for one in half) for half in (measured[:middle], measured[middle:]))
    return after_s > GROWTH * before_s
