"""Metrics of a served load: TTFT, TPOT and ITL of its requests, throughput, SLO attainment and goodput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_positive

PERCENTILES = (50, 95, 99)


@dataclass
class Served:
    """A request that arrived at `arrived_s`, and when each of its tokens was generated, in seconds."""

    arrived_s: float
    tokens_s: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        """Seconds from the request's arrival to its first token."""
        return self.tokens_s[0] - self.arrived_s

    @property
    def gaps_s(self) -> list[float]:
        """Inter-token latencies (ITL): from each token to the next, 0 between those of one step."""
        return [after - before for before, after in pairwise(self.tokens_s)]

    @property
    def tpot_s(self) -> float | None:
        """Time per output token: the mean of the gaps, None if there is only one token."""
        gaps = self.gaps_s
        return sum(gaps) / len(gaps) if gaps else None


@dataclass(frozen=True)
class Objective:
    """Service-level objective (SLO): longest time to the first token and longest time per output token, in seconds."""

    ttft_s: float
    tpot_s: float

    def __post_init__(self) -> None:
        require_positive(ttft_s=self.ttft_s, tpot_s=self.tpot_s)

    def missed(self, one: Served) -> list[str]:
        """Which limits a request exceeds: "ttft", "tpot", both or none."""
        late = {"ttft": one.ttft_s > self.ttft_s, "tpot": (one.tpot_s or 0.0) > self.tpot_s}
        return [name for name, missed in late.items() if missed]


@dataclass(frozen=True)
class Report:
    """Metrics of a run, in seconds; percentiles are keyed by number, as in `ttft_s[95]`.

    `slo_attainment` is the fraction of the requests that meet the objective, `goodput` how many do so per second
    (DistServe, arXiv:2401.09670).
    """

    requests: int
    time_s: float
    tokens_per_s: float
    ttft_s: dict[int, float]
    tpot_s: dict[int, float]
    itl_s: dict[int, float]
    slo_attainment: float | None
    goodput: float | None


def report(served: Sequence[Served], objective: Objective | None = None, *, time_s: float | None = None) -> Report:
    """Metrics of finished requests over `time_s` seconds, by default those from the first arrival to the last token.

    InputError if there is none.
    """
    if not served:
        raise InputError("a report on no request", expected="one or more")
    if time_s is None:
        time_s = max(one.tokens_s[-1] for one in served) - min(one.arrived_s for one in served)
    slo_attainment = None if objective is None else sum(not objective.missed(one) for one in served) / len(served)
    return Report(
        requests=len(served),
        time_s=time_s,
        tokens_per_s=sum(len(one.tokens_s) for one in served) / time_s,
        ttft_s=_percentiles([one.ttft_s for one in served]),
        tpot_s=_percentiles([one.tpot_s for one in served if one.tpot_s is not None]),
        itl_s=_percentiles([gap for one in served for gap in one.gaps_s]),
        slo_attainment=slo_attainment,
        goodput=None if slo_attainment is None else slo_attainment * len(served) / time_s,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Percentile with linear interpolation, as numpy's default.

    >>> percentile([4.0, 1.0, 3.0, 2.0], 50)
    2.5
    """
    ordered = sorted(values)
    index, fraction = divmod((len(ordered) - 1) * percent / 100, 1)
    below, above = ordered[int(index)], ordered[min(int(index) + 1, len(ordered) - 1)]
    return below + (above - below) * fraction


def _percentiles(values: Sequence[float]) -> dict[int, float]:
    return {percent: percentile(values, percent) for percent in PERCENTILES} if values else {}
