"""Approach 2: parabolas through runs of equal compute (Hoffmann et al. 2022, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mlsys_lab.errors import InputError
from mlsys_lab.scaling.curves import Runs
from mlsys_lab.scaling.laws import FloatArray, Frontier, PowerLaw, positive_array


@dataclass(frozen=True)
class Parabola:
    """Parabola L = loss_opt + curvature · ln(N / n_opt)² at one compute, fitted to n_low to n_high parameters."""

    flops: float
    n_opt: float
    loss_opt: float
    curvature: float
    n_low: float
    n_high: float

    def __call__(self, n_params: ArrayLike) -> FloatArray:
        """Loss in nats a token that the parabola gives for N parameters; elementwise."""
        return self.loss_opt + self.curvature * np.log(positive_array("parameters", n_params) / self.n_opt) ** 2

    @property
    def has_minimum(self) -> bool:
        """Whether the parabola opens upward and has its lowest point among the sizes that were tried."""
        return self.curvature > 0 and self.n_low <= self.n_opt <= self.n_high


@dataclass(frozen=True)
class IsoFlop:
    """Fit of approach 2: one parabola a budget, in order of compute, and the power law through those with a minimum."""

    parabolas: tuple[Parabola, ...]
    frontier: Frontier


def budgets(runs: Runs, *, tolerance: float = 0.1) -> NDArray[np.int64]:
    """Index of each run's budget, (R,), smallest first; runs with 6ND within `tolerance` of a neighbour's share one."""
    order = np.argsort(runs.flops, kind="stable")
    gaps = np.diff(np.log(runs.flops[order])) > np.log1p(tolerance)
    groups = np.empty(len(runs), dtype=np.int64)
    groups[order] = np.concatenate([[0], np.cumsum(gaps)])
    return groups


def fit_parabola(runs: Runs) -> Parabola:
    """Fit the loss to ln N and (ln N)² by least squares, for runs of one compute; InputError below three sizes."""
    sizes = np.unique(runs.n_params)
    flops = float(np.exp(np.log(runs.flops).mean()))
    if len(sizes) < 3:
        raise InputError("a parabola needs at least 3 sizes", got=f"{len(sizes)} at {flops:.3g} FLOPs")
    centre = np.log(runs.n_params).mean()
    square, slope, level = np.polyfit(np.log(runs.n_params) - centre, runs.loss, 2)
    vertex = -slope / (2 * square) if square else np.inf
    with np.errstate(over="ignore"):
        n_opt = float(np.exp(centre + vertex))
    return Parabola(flops, n_opt, float(level + slope * vertex / 2), float(square), float(sizes[0]), float(sizes[-1]))


def fit_isoflop(runs: Runs, *, tolerance: float = 0.1) -> IsoFlop:
    """A parabola for each budget, then the power law of their minima: N_opt = k·C^a.

    A parabola without a minimum among its sizes says where the minimum is not, and takes no part in the power law.
    The parabola is the loss's second-order expansion about the optimum: with alpha ≠ beta a wide range of sizes shifts
    its lowest point by a constant factor, which leaves the exponent right and the coefficient off.
    `InputError` unless at least two budgets have a minimum.
    """
    groups = budgets(runs, tolerance=tolerance)
    parabolas = tuple(fit_parabola(runs.take(groups == group)) for group in range(groups.max() + 1))
    good = [parabola for parabola in parabolas if parabola.has_minimum]
    if len(good) < 2:
        raise InputError(
            "too few budgets have a minimum among their sizes",
            got=f"{len(good)} of {len(parabolas)}",
            expected="at least 2",
            help="try smaller and larger sizes at each budget",
        )
    line = PowerLaw.fit([parabola.flops for parabola in good], [parabola.n_opt for parabola in good])
    return IsoFlop(parabolas, Frontier.from_params(line))
