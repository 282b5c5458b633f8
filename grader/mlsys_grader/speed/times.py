"""Statistics of round times: intervals of medians, and the ratio to the baseline.

Points follow from the ratio's low end. It keeps the submission's time for making inputs and committing, which the
baseline's time excludes: however a process speeds these up, its call took no longer than is counted. An honest
submission loses the fraction of a round that they take. The median subtracts the honest cost from both.

One trick is not prevented: a kernel that computes the commitments along with the output and never stores the output. It
gains the time of that store, limited by the lower bound in `speed.bench`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % confidence interval (order statistics, distribution-free)."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Interval:
        """The interval of samples; with fewer than six it is their range."""
        ordered = sorted(samples)
        count, outside, place = len(ordered), 0.0, 0
        while place < (count - 1) // 2:  # the chance that a median lies below the sample at this place, and above
            outside += 2 * math.comb(count, place) / 2**count
            if outside > 0.05:
                break
            place += 1
        place = max(place - 1, 0)
        return cls(ordered[place], statistics.median(ordered), ordered[count - 1 - place])

    @property
    def width(self) -> float:
        """Width relative to the median."""
        return (self.high - self.low) / abs(self.median) if self.median else math.inf


@dataclass
class Times:
    """Seconds per call. `baseline` has an interval per block; `empty` is the cost of the protocol."""

    baseline: list[Interval] = field(default_factory=list)
    empty: list[float] = field(default_factory=list)
    submission: list[float] = field(default_factory=list)

    @property
    def widest(self) -> float:
        """Width of the widest interval in the ratio."""
        return max(Interval.of(self.submission).width, *(block.width for block in self.baseline))

    @property
    def net(self) -> Interval:
        """The submission's time per call minus the cost of the protocol."""
        own, cost = Interval.of(self.submission), statistics.median(self.empty)
        return Interval(own.low - cost, own.median - cost, own.high - cost)

    @property
    def ratio(self) -> Interval:
        """Baseline time over submission time; the low end holds whatever the submission did."""
        low = min(block.low for block in self.baseline) / Interval.of(self.submission).high
        base = [block.median for block in self.baseline]
        median = statistics.median(base) / self.net.median if self.net.median > 0 else math.inf
        high = max(block.high for block in self.baseline) / self.net.low if self.net.low > 0 else math.inf
        return Interval(max(low, 0.0), max(median, 0.0), max(high, 0.0))
