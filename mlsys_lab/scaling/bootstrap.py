"""Percentile intervals of a fit over resampled runs (Efron 1979)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mlsys_lab.errors import InputError
from mlsys_lab.scaling.curves import Curve, Runs
from mlsys_lab.scaling.laws import FloatArray

Data = TypeVar("Data", Runs, Sequence[Curve])
MOST_FAILURES = 0.2
"""Largest fraction of resamples that may be impossible to fit before the interval is refused."""


@dataclass(frozen=True)
class Interval:
    """A fitted quantity: its value on all data, and the percentiles over resamples that enclose `level` of them.

    `estimate`, `low` and `high` have the shape of what the fit returns; `samples` is (S, ...) with the S resamples
    that could be fitted.
    """

    estimate: FloatArray
    low: FloatArray
    high: FloatArray
    level: float
    samples: FloatArray = field(repr=False)


def bootstrap(
    fit: Callable[[Data], ArrayLike],
    data: Data,
    *,
    resamples: int = 100,
    level: float = 0.8,
    seed: int = 0,
    strata: ArrayLike | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Interval:
    """Apply `fit` to `resamples` draws with replacement of the runs, or of whole curves, and take percentiles.

    `fit` returns a number or an array: `lambda runs: fit_isoflop(runs).frontier.a`. `strata` (R,) says to which group
    each run belongs, and each group is resampled by itself: use `budgets(runs)` for approach 2, whose design fixes how
    many runs a budget has. Draws on which `fit` raises `InputError` are left out, at most a fifth of them. `progress`
    is called with how many draws are done, and of how many. Hoffmann et al. take the 10th and 90th percentile (level
    0.8) over 100 draws of 80 % of the runs.

    Measured on simulated runs with noise of 1 %, intervals of level 0.8 held the truth for 85 of 100 seeds by approach
    2 and 48 of 60 by approach 3, but with noise of 0.3 % for 8 of 60 by approach 1: an envelope follows the luckiest
    curves, and no resampling of them shows that bias.
    """
    if resamples < 2 or not 0 < level < 1:
        raise InputError("cannot make intervals", got=f"{resamples} resamples at level {level:g}")
    groups = np.zeros(len(data), dtype=np.int64) if strata is None else np.asarray(strata)
    if groups.shape != (len(data),):
        raise InputError("strata must name a group for each run", got=groups.shape, expected=(len(data),))
    members = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    rng = np.random.default_rng(seed)
    estimate = np.asarray(fit(data), dtype=np.float64)
    samples, failed = [], 0
    for done in range(resamples):
        rows = np.concatenate([rng.choice(rows, size=len(rows)) for rows in members])
        try:
            samples.append(np.asarray(fit(_take(data, rows)), dtype=np.float64))
        except InputError as error:
            failed += 1
            if failed > MOST_FAILURES * resamples:
                raise InputError("too many resamples cannot be fitted", got=f"{failed}", help=str(error)) from None
        if progress is not None:
            progress(done + 1, resamples)
    stack = np.stack(samples)
    low, high = np.quantile(stack, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Interval(estimate, low, high, level, stack)


def _take(data: Data, rows: NDArray[np.int64]) -> Data:
    chosen: Any = data.take(rows) if isinstance(data, Runs) else [data[row] for row in rows]
    return cast(Data, chosen)
