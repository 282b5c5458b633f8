"""Lab 06's judge: its cluster behaves like the service of the notebook, tells no secret, and its oracles are right."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import least_squares

from mlsys_checks.trusted.scaling_laws import planning
from mlsys_checks.trusted.scaling_laws.law import Truth, huber, refit, residuals
from mlsys_checks.trusted.scaling_laws.runs import (
    LARGE,
    NOISE,
    RUNS,
    Cluster,
    cluster_of,
    scouting,
    sweeping,
    uncertainty,
    wasted_share,
)
from mlsys_lab.scaling import ChinchillaLaw, ExperimentService, PowerLaw, World, compute_optimal


def world_of(cluster: Cluster) -> World:
    rate = PowerLaw(cluster.rate * 1e8**-cluster.rate_exponent, cluster.rate_exponent)
    law = ChinchillaLaw(**vars(cluster.law))
    return World(law, rate, cluster.sensitivity, cluster.divergence, schedule_gap=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_the_judges_cluster_has_the_losses_of_the_notebooks_service(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = Cluster.draw(rng, LARGE)
    world, requests = world_of(cluster), np.tile(sweeping(cluster, 1e20, rng), 20)
    requests[2] *= np.exp(rng.uniform(-1, 1, requests.shape[1]))
    expected = world.loss(*requests)
    got = cluster.losses(requests, rng)
    back = ~np.isnan(got)
    assert np.mean(~back) == pytest.approx(0.05, abs=0.03)
    noise = np.log((got[back] - world.law.E) / (expected[back] - world.law.E))
    assert np.std(noise) == pytest.approx(NOISE, rel=0.15)
    service = ExperimentService(1e25, seed, noise=NOISE, world=world)
    outcomes = [service.run(int(n), int(d), rate).loss for n, d, rate in requests.T]
    assert np.mean(np.isnan(outcomes)) == pytest.approx(0.05, abs=0.03)
    theirs = np.log((np.array(outcomes) - world.law.E) / (expected - world.law.E))
    assert np.nanstd(theirs) == pytest.approx(NOISE, rel=0.15)


def test_rates_far_too_high_diverge_in_both() -> None:
    cluster = Cluster.draw(np.random.default_rng(0), LARGE)
    requests = np.array([[1e8] * 9, [1e9] * 9, [cluster.rate * cluster.divergence * 1.01] * 9])
    assert np.all(np.isnan(cluster.losses(requests, np.random.default_rng(1))))
    service = ExperimentService(1e20, 0, failure_rate=0.0, world=world_of(cluster))
    assert service.run(10**8, 10**9, float(requests[2, 0])).status == "diverged"


def test_a_cluster_travels_in_its_secret() -> None:
    cluster = Cluster.draw(np.random.default_rng(3), LARGE)
    assert cluster_of(cluster.secret()) == cluster


@pytest.mark.parametrize("seed", range(3))
def test_optimum_and_least_flops_are_those_of_the_closed_form(seed: int) -> None:
    law = Truth.draw(np.random.default_rng(seed))
    closed = ChinchillaLaw(**vars(law))
    best = compute_optimal(closed, 3e22)
    assert law.best_size(3e22) == pytest.approx(best.n_params, rel=1e-10)
    assert law.least_loss(3e22) == pytest.approx(best.loss, rel=1e-12)
    assert wasted_share(law, best.n_params, best.tokens, 3e22) == pytest.approx(0, abs=1e-6)
    doubled = wasted_share(law, best.n_params * 2, best.tokens / 2, 3e22)
    loss = float(closed.loss(best.n_params * 2, best.tokens / 2))
    assert doubled == pytest.approx(1 - float(closed.least_flops(loss)) / 3e22, rel=1e-6)


def test_scipys_fit_finds_nothing_below_the_oracles() -> None:
    n, d, loss = np.array(RUNS).T
    law = refit(Truth(3.0, 50.0, 300.0, 0.45, 0.45), n, d, loss)

    def off(x: np.ndarray) -> np.ndarray:
        return residuals(Truth(np.exp(x[0]), np.exp(x[1]), np.exp(x[2]), x[3], x[4]), n, d, loss)

    start = [np.log(law.E), np.log(law.A), np.log(law.B), law.alpha, law.beta]
    found = least_squares(off, np.array(start) * 1.01, loss="huber", f_scale=1e-3, x_scale="jac", max_nfev=5000)
    assert huber(residuals(law, n, d, loss)) <= huber(off(found.x)) * (1 + 1e-6)


def test_the_stated_uncertainty_is_how_far_fits_stray() -> None:
    rng = np.random.default_rng(0)
    cluster = Cluster.draw(rng, LARGE)
    n, d, _ = sweeping(cluster, 1e20, rng)
    law, target = cluster.law, 1e22
    of_size, of_loss = uncertainty(law, n, d, target)
    sizes, losses = [], []
    for _ in range(150):
        loss = law.E + (law.loss(n, d) - law.E) * np.exp(NOISE * rng.standard_normal(len(n)))
        fitted = refit(law, n, d, loss)
        sizes.append(np.log(fitted.best_size(target)))
        losses.append(fitted.least_loss(target) / law.least_loss(target))
    # Huber's weights with so small a delta are near the median's, which is less certain than the mean: up to π/2.
    assert of_size * 0.8 < np.std(sizes) < of_size * 1.7
    assert of_loss * 0.8 < np.std(losses) < of_loss * 1.7


def test_scouting_of_the_judge_keeps_to_the_rule_of_the_task() -> None:
    n, d, _ = scouting(1e20)
    assert (6 * n * d).sum() <= planning.SCOUTING_SHARE * 1e20
