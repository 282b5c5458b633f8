"""What runs and a decision are worth in a world whose law is known: what they leave open, and what they waste."""

from __future__ import annotations

import numpy as np

from mlsys_lab.checks.deciding.scaling_laws.cluster import NOISE
from mlsys_lab.checks.deciding.scaling_laws.isoflop import parabola_minimum, power_law
from mlsys_lab.checks.deciding.scaling_laws.oracle import Truth, bisect
from mlsys_lab.checks.learner.spec import Arrays


def fitted_rate(runs: Arrays, at: float) -> float | None:
    """The best rate of a size: a valley in ln η for each (N, D), a power law in N; None where they leave it open."""
    valleys = []
    for n_params, tokens in sorted(set(zip(runs["n_params"].tolist(), runs["tokens"].tolist(), strict=True))):
        rows = (runs["n_params"] == n_params) & (runs["tokens"] == tokens)
        if (found := parabola_minimum(runs["learning_rate"][rows], runs["loss"][rows])) is not None:
            valleys.append((n_params, found[0]))
    if len({n_params for n_params, _ in valleys}) < 2:
        return None
    coefficient, exponent = power_law(*np.array(valleys).T)
    return float(coefficient * at**exponent)


def uncertainty(law: Truth, n_params: np.ndarray, tokens: np.ndarray, target: float) -> tuple[float, float]:
    """Standard deviations, after a fit to runs of these sizes, of ln N_opt at a budget and of the loss there, relative.

    The information that a run holds of (E, ln A, ln B, alpha, beta) is the square of the loss's slopes over the
    variance of its noise; its inverse is the least covariance that any unbiased fit can have (Cramér and Rao).
    Infinite where the runs leave a direction open.
    """
    noise = NOISE * (law.loss(n_params, tokens) - law.E)
    slopes = _slopes(law, n_params, tokens) / noise  # (5, R)
    scale = np.sqrt((slopes**2).sum(axis=1))
    information = (slopes / scale[:, None]) @ (slopes / scale[:, None]).T
    if np.linalg.cond(information) > 1e12:
        return np.inf, np.inf
    covariance = np.linalg.inv(information) / np.outer(scale, scale)
    n = law.best_size(target)
    # ln N_opt = (ln alpha + ln A − ln beta − ln B + beta·ln(C/6)) / (alpha + beta)
    both, log_n = law.alpha + law.beta, np.log(n)
    of_size = np.array([0, 1, -1, 1 / law.alpha - log_n, np.log(target / 6) - 1 / law.beta - log_n]) / both
    of_loss = _slopes(law, np.array([n]), np.array([target / 6 / n]))[:, 0]  # moving N at the optimum changes nothing
    least = law.least_loss(target)
    return float(np.sqrt(of_size @ covariance @ of_size)), float(np.sqrt(of_loss @ covariance @ of_loss)) / least


def _slopes(law: Truth, n_params: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """dL by E, ln A, ln B, alpha, beta, (5, R)."""
    of_n, of_d = law.A * n_params**-law.alpha, law.B * tokens**-law.beta
    return np.stack([np.ones_like(of_n), of_n, of_d, -of_n * np.log(n_params), -of_d * np.log(tokens)])


def wasted_share(law: Truth, n_params: float, tokens: float, target: float) -> float:
    """The share of the target's FLOPs that the best model of the same loss does not need."""
    loss = float(law.loss(n_params, tokens))
    return 1 - bisect(lambda flops: loss - law.least_loss(flops), target * 1e-12, target) / target
