"""Approach 3: fit L = E + A/N^alpha + B/D^beta to all runs at once (Hoffmann et al. 2022, section 3.3 and D.2).

With a = ln A, b = ln B, e = ln E the model's log loss is logsumexp(a - alpha·ln N, b - beta·ln D, e), and the fit
minimises the sum over runs of Huber(log loss of the model - log loss of the run), by L-BFGS from a grid of starts.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mlsys_lab.errors import InputError
from mlsys_lab.scaling.curves import Runs
from mlsys_lab.scaling.laws import ChinchillaLaw, FloatArray, Frontier

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

GRID = tuple(
    itertools.product(
        np.arange(0, 26, 5.0),  # a
        np.arange(0, 26, 5.0),  # b
        np.arange(-1, 1.1, 0.5),  # e
        np.arange(0, 2.1, 0.5),  # alpha
        np.arange(0, 2.1, 0.5),  # beta
    )
)
"""The 4,500 starting points of Hoffmann et al. 2022, section D.2."""
BOUNDS = ((-20.0, 60.0), (-20.0, 60.0), (-20.0, 20.0), (1e-4, 4.0), (1e-4, 4.0))
"""Bounds of a and b (at the middle of the data), e, alpha and beta: they leave out nothing but overflow."""
TOGETHER = 50
"""So many starts are tried in one array: for a hundred runs it stays in the cache."""
FLAT = 1e-4


@dataclass(frozen=True)
class ParametricFit:
    """Result of fitting a law to runs: the law, its objective, its residuals (R,), and whether the fit converged.

    `objective` is the sum of Huber losses; `residuals` are ln(law's loss / run's loss). `converged`: no slope of the
    sum, within the bounds, is above FLAT times what R runs could make it.
    """

    law: ChinchillaLaw
    objective: float
    residuals: FloatArray
    converged: bool

    @property
    def frontier(self) -> Frontier:
        """Compute-optimal split of the fitted law, in closed form."""
        return self.law.frontier()


def objective(theta: FloatArray, runs: Runs, delta: float = 1e-3) -> tuple[float, FloatArray]:
    """Sum of Huber losses at theta = (a, b, e, alpha, beta), and its gradient (5,).

    Huber's loss of a residual r is r²/2 up to delta and delta·(|r| - delta/2) beyond. It is summed over runs: a mean
    is smaller by the number of runs, and with it the gradient, which an optimizer may then take for convergence
    (what stopped the published fit early, by Besiroglu et al. 2024, section 3).
    """
    constants = np.asarray(theta, dtype=np.float64)
    if constants.shape != (5,):
        raise InputError("theta of another shape", got=constants.shape, expected="(5,): a, b, e, alpha, beta")
    value, gradient = _objective(constants, _logs(runs), delta)
    return float(value), gradient


def fit_parametric(
    runs: Runs,
    *,
    delta: float = 1e-3,
    starts: Iterable[ChinchillaLaw] | None = None,
    refine: int = 24,
    gradient_tolerance: float = 1e-8,
) -> ParametricFit:
    """The best law that L-BFGS finds from the `refine` most promising starts of the grid, or from all of `starts`.

    The objective is computed at every start of Hoffmann's grid, which takes milliseconds, and the lowest are followed
    to convergence; `refine=len(GRID)` follows all. `starts` is for a bootstrap, which begins at the fit of all runs.
    `gradient_tolerance` is where L-BFGS stops, by the largest slope of the sum in units of delta.
    `InputError` for fewer than six runs, or where sizes or tokens do not vary.
    """
    if len(runs) < 6:
        raise InputError("five constants need at least 6 runs", got=f"{len(runs)} runs")
    for name, column in (("sizes", runs.n_params), ("token counts", runs.tokens)):
        if len(np.unique(column)) < 3:
            raise InputError(f"a law needs at least 3 {name}", got=len(np.unique(column)))
    if not delta > 0 or refine < 1:
        raise InputError("delta and refine must be positive", got=f"{delta} and {refine}")
    logs = _logs(runs)
    # ln N and ln D about their means: a and alpha then hardly depend on each other, nor b and beta.
    middle = logs[:2].mean(axis=1)
    logs[:2] -= middle[:, None]
    if starts is None:
        grid = _shift(np.array(GRID), middle)
        few = np.array_split(grid, len(grid) // TOGETHER)
        rank = np.argsort(np.concatenate([_objective(part, logs, delta)[0] for part in few]), kind="stable")
        begin = grid[rank[:refine]]
    else:
        given = [_theta(law) for law in starts]
        if not given:
            raise InputError("no starts", expected="at least one law, or starts=None for the grid")
        begin = _shift(np.array(given), middle)
    theta = _minimise(begin, logs, delta, gradient_tolerance)
    law = _law(_shift(theta[None], -middle)[0])
    value, gradient = _objective(theta, logs, delta)
    downhill = np.clip(theta - gradient / (delta * len(runs)), *np.array(BOUNDS).T) - theta
    converged = bool(np.abs(downhill).max() < FLAT)
    return ParametricFit(law, float(value), np.log(law.loss(runs.n_params, runs.tokens) / runs.loss), converged)


def _objective(theta: FloatArray, logs: FloatArray, delta: float) -> tuple[FloatArray, FloatArray]:
    """Values (...) and gradients (..., 5) at laws theta (..., 5), for the logs (3, R) of N, D and the loss."""
    a, b, e, alpha, beta = theta.T[..., None]  # each (..., 1)
    log_n, log_d, log_loss = logs
    exponent_n, exponent_d = a - alpha * log_n, b - beta * log_d  # (..., R)
    highest = np.maximum(np.maximum(exponent_n, exponent_d), e)
    power_n, power_d, power_e = np.exp(exponent_n - highest), np.exp(exponent_d - highest), np.exp(e - highest)
    total = power_n + power_d + power_e
    residual = highest + np.log(total) - log_loss
    slope = np.minimum(np.maximum(residual, -delta), delta)  # of Huber's loss, which is then slope·(residual - slope/2)
    value = (slope * (residual - slope / 2)).sum(axis=-1)
    share = slope / total
    by_a, by_b, by_e = power_n * share, power_d * share, power_e * share  # each term's part of the slope
    sums = [by_a.sum(axis=-1), by_b.sum(axis=-1), by_e.sum(axis=-1), -(by_a @ log_n), -(by_b @ log_d)]
    return value, np.array(sums).T


def _minimise(begin: FloatArray, logs: FloatArray, delta: float, tolerance: float) -> FloatArray:
    """The lowest of the local minima that L-BFGS reaches from the starts (S, 5), as theta (5,)."""
    from scipy.optimize import minimize

    def scale(theta: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = _objective(theta, logs, delta)
        return float(value) / delta, gradient / delta

    low, high = np.array(BOUNDS).T
    options = {"maxiter": 5000, "maxfun": 20000, "ftol": 1e-14, "gtol": tolerance, "maxcor": 20}
    with _blas().limit(limits=1, user_api="blas"):  # waking threads for products of five costs forty times the work
        found = [
            minimize(scale, np.clip(theta, low, high), jac=True, method="L-BFGS-B", bounds=BOUNDS, options=options)
            for theta in begin
        ]
    best = min(found, key=lambda result: float(result.fun))
    return np.asarray(best.x, dtype=np.float64)


@functools.cache
def _blas() -> ThreadpoolController:
    """Controller of this process's BLAS libraries, found once: finding them takes longer than a fit."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _shift(theta: FloatArray, middle: FloatArray) -> FloatArray:
    """Shift laws theta (S, 5) so that ln N and ln D are counted from `middle`."""
    moved = theta.copy()
    moved[:, :2] -= theta[:, 3:] * middle
    return moved


def _logs(runs: Runs) -> FloatArray:
    return np.log(np.stack([runs.n_params, runs.tokens, runs.loss]))  # (3, R)


def _theta(law: ChinchillaLaw) -> list[float]:
    return [float(np.log(law.A)), float(np.log(law.B)), float(np.log(max(law.E, 1e-9))), law.alpha, law.beta]


def _law(theta: FloatArray) -> ChinchillaLaw:
    a, b, e, alpha, beta = map(float, theta)
    return ChinchillaLaw(E=float(np.exp(e)), A=float(np.exp(a)), B=float(np.exp(b)), alpha=alpha, beta=beta)
