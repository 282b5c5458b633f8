"""What the times of rounds say: intervals of medians, and the ratio to a baseline.

The ratio's low end, which the points go by, takes nothing from the submission's time for making inputs and committing,
though the baseline's time is without it: whatever a process did to be quick at these, its call took no longer than is
counted. An honest one loses the share that they have in a round. The median end takes the honest cost from both.

What is not stopped: a kernel that computes the committed numbers along with the output, and never writes the output to
memory. That gains what writing it takes, and no more than the floor of `speed.bench` leaves.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Interval:
    """A median, and an interval that holds the true one in 95 of 100 runs (order statistics, no shape assumed)."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Interval:
        """The interval of samples; with fewer than six it reaches from the least to the greatest."""
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
        """Width of the interval relative to the median."""
        return (self.high - self.low) / abs(self.median) if self.median else math.inf


@dataclass
class Times:
    """Seconds per call, sample by sample. `baseline` has an interval per block; `null` is the protocol's own cost."""

    baseline: list[Interval] = field(default_factory=list)
    null: list[float] = field(default_factory=list)
    submission: list[float] = field(default_factory=list)

    @property
    def widest(self) -> float:
        """The widest of the intervals that the ratio is made of."""
        return max(Interval.of(self.submission).width, *(block.width for block in self.baseline))

    @property
    def net(self) -> Interval:
        """The submission's time of a call, less the protocol's own cost."""
        own, cost = Interval.of(self.submission), statistics.median(self.null)
        return Interval(own.low - cost, own.median - cost, own.high - cost)

    @property
    def ratio(self) -> Interval:
        """The baseline's time over the submission's; the low end holds whatever the submission did."""
        low = min(block.low for block in self.baseline) / Interval.of(self.submission).high
        base = [block.median for block in self.baseline]
        median = statistics.median(base) / self.net.median if self.net.median > 0 else math.inf
        high = max(block.high for block in self.baseline) / self.net.low if self.net.low > 0 else math.inf
        return Interval(max(low, 0.0), max(median, 0.0), max(high, 0.0))
