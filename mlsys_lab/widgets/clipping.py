"""Interactive clipping of weights: a range and a number of bits to choose, and the error of clipping and of rounding.

The figure computes from a histogram what `clipping_error` computes in Python; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import anywidget
import numpy as np
import traitlets

from mlsys_lab.errors import InputError
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table

BINS = 400
BITS = range(2, 9)
"""Bits that can be chosen."""
LIMITS = np.linspace(0.05, 1, 96)
"""Ranges among which the best is searched, as fractions of the largest magnitude."""


def clipping_error(centres: Sequence[float], counts: Sequence[int], limit: float, bits: int) -> tuple[float, float]:
    """Mean squared error of clipping to ±limit, and of rounding what is inside to 2ᵇ - 1 symmetric levels.

    The weights are a histogram: `counts` of them at each of `centres`.
    """
    x, weight = np.asarray(centres), np.asarray(counts) / np.sum(counts)
    step = limit / (2 ** (bits - 1) - 1)
    inside = np.abs(x) <= limit
    rounding = np.where(inside, np.floor(x / step + 0.5) * step - x, 0)
    clipping = np.where(inside, 0, np.abs(x) - limit)
    return float(weight @ clipping**2), float(weight @ rounding**2)


def clipping_data(weights: Sequence[float], *, bits: int = 4) -> dict[str, Any]:
    """Data of the figure: a histogram of the weights, divided by their largest magnitude, and the bits at first.

    InputError for weights that are not finite or all zero, and for bits outside 2 to 8.
    """
    if bits not in BITS:
        raise InputError("bits of a weight", got=bits, expected=f"{BITS[0]} to {BITS[-1]}")
    values = np.asarray(weights, dtype=np.float64)
    largest = np.abs(values).max(initial=0)
    if not np.isfinite(largest) or largest == 0:
        raise InputError("weights to clip", got=f"largest magnitude {largest}", expected="finite numbers, not all 0")
    counts, edges = np.histogram(values / largest, BINS, (-1, 1))
    kept = counts.nonzero()[0]
    centres = ((edges[1:] + edges[:-1]) / 2)[kept]
    return {"centres": centres.round(5).tolist(), "counts": counts[kept].tolist(), "bits": bits, "limit": 1.0}


def best_limit(data: Mapping[str, Any], bits: int) -> float:
    """The range with the least mean squared error."""
    return float(min(LIMITS, key=lambda limit: sum(clipping_error(data["centres"], data["counts"], limit, bits))))


def clipping_table(data: Mapping[str, Any]) -> str:
    """Errors without clipping and with the best range, for each number of bits, as an HTML table."""
    rows = []
    for bits in BITS:
        best = best_limit(data, bits)
        whole, least = (
            sum(clipping_error(data["centres"], data["counts"], limit, bits)) ** 0.5 for limit in (1.0, best)
        )
        rows.append((bits, f"{whole:.3g}", f"{best:.2f}", f"{least:.3g}"))
    return table(("bits", "error of the whole range", "best range", "error"), rows)


class Clipping(anywidget.AnyWidget):
    """Notebook figure of weights that one clips: `Clipping.of(weights, bits=3)`.

    centres, counts: the histogram. limit: the range ±limit, as a fraction of the largest magnitude.
    """

    _esm = esm("clipping")
    centres: traitlets.List[float] = traitlets.List(traitlets.Float(), minlen=1).tag(sync=True)
    counts: traitlets.List[int] = traitlets.List(traitlets.Int(), minlen=1).tag(sync=True)
    bits = traitlets.Int(4).tag(sync=True)
    limit = traitlets.Float(1.0).tag(sync=True)

    @classmethod
    def of(cls, weights: Sequence[float], *, bits: int = 4) -> Self:
        """Figure of these weights; arguments as in `clipping_data`."""
        return cls(**clipping_data(weights, bits=bits))
