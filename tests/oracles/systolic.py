"""A systolic array, the matrix unit of a TPU: which shapes fill it, and how long a product takes on it.

The array holds a tile of weights, size × size, one in each of its cells. Rows of activations enter one a clock, each
number a clock after the one before it, and sums run down: size² multiply-adds a clock while the array is full, and
2 · size - 1 clocks until the first row has left it (Jouppi et al., arXiv:1704.04760, §2). The next tile of weights is
loaded beside the one at work, `size` clocks long, which fewer rows wait for; the first tile is there. Left out: memory,
and what a compiler pads rows to.

Letters: (m, k) · (k, n), the weights are (k, n).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlsys_lab.flops.peaks import peak_flops_per_s
from mlsys_lab.validation import require_at_least_one, require_positive


@dataclass(frozen=True)
class SystolicArrays:
    """`count` arrays of `size` × `size` cells at `clock_hz`, which share a product's tiles of weights.

    Raises InputError for fewer than one array or cell, and a clock that does not run.
    """

    count: int
    size: int
    clock_hz: float

    def __post_init__(self) -> None:
        require_at_least_one(count=self.count, size=self.size)
        require_positive(clock_hz=self.clock_hz)

    @property
    def peak_flops_per_s(self) -> float:
        """FLOP/s of all cells, each a multiply-add a clock."""
        return peak_flops_per_s(self.count, self.size**2, self.clock_hz)

    def padding_share(self, k: int, n: int) -> float:
        """Share of the cells that hold padding, over all tiles that (k, n) weights are cut into: in [0, 1)."""
        require_at_least_one(k=k, n=n)
        return 1 - k * n / (self.size**2 * self._tiles(k, n))

    def clocks(self, m: int, n: int, k: int) -> int:
        """Clocks of (m, k) · (k, n): each array's share of the tiles, one after the other, and filling and draining."""
        require_at_least_one(m=m, n=n, k=k)
        rounds = math.ceil(self._tiles(k, n) / self.count)
        return (rounds - 1) * max(m, self.size) + m + 2 * (self.size - 1)

    def time_s(self, m: int, n: int, k: int) -> float:
        """Least seconds of (m, k) · (k, n), as far as the arrays decide."""
        return self.clocks(m, n, k) / self.clock_hz

    def utilisation(self, m: int, n: int, k: int) -> float:
        """Share of the peak that (m, k) · (k, n) reaches, in (0, 1): padding, idle arrays and few rows lower it."""
        return m * n * k / (self.count * self.size**2 * self.clocks(m, n, k))

    def _tiles(self, k: int, n: int) -> int:
        return math.ceil(k / self.size) * math.ceil(n / self.size)
