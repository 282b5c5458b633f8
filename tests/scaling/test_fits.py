"""Each approach gets back the exponents of laws that made the runs; gradients by finite differences."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlsys_lab.errors import InputError
from mlsys_lab.scaling import (
    BESIROGLU_2024,
    HOFFMANN_2022,
    ChinchillaLaw,
    Curve,
    Runs,
    World,
    budgets,
    fit_envelope,
    fit_isoflop,
    fit_parabola,
    fit_parametric,
    objective,
)
from mlsys_lab.scaling.parametric import GRID

NOISE = 0.003
"""Deviation of the log of the loss. Of 20 seeds with Besiroglu's law the exponent a came out 0.0045 (standard
deviation) about the truth by approaches 2 and 3; below, 0.025 is allowed."""
seeds = st.integers(0, 2**32 - 1)


def curves(law, sizes=16, noise=0.0, seed=0):
    """Long runs of sizes as Chinchilla's, 70 million to 16 billion."""
    rng = np.random.default_rng(seed)
    tokens = np.geomspace(5e8, 5e12, 80)
    return [
        Curve(size, tokens, law.loss(size, tokens) * np.exp(rng.normal(0, noise)))
        for size in np.geomspace(70e6, 16e9, sizes)
    ]


@settings(max_examples=6)
@given(seeds)
def test_approach_3_finds_any_law_exactly_without_noise(experiment, seed):
    law = World.draw(seed).law
    fit = fit_parametric(experiment(law))
    assert fit.converged
    assert np.abs(fit.residuals).max() < 1e-6
    for name in ("E", "A", "B", "alpha", "beta"):
        assert getattr(fit.law, name) == pytest.approx(getattr(law, name), rel=1e-3), name


@settings(max_examples=6)
@given(seeds)
def test_approaches_2_and_3_find_the_exponent_through_noise(experiment, seed):
    law = World.draw(seed).law
    runs = experiment(law, NOISE, seed)
    assert fit_parametric(runs).frontier.a == pytest.approx(law.frontier().a, abs=0.025)
    assert fit_isoflop(runs).frontier.a == pytest.approx(law.frontier().a, abs=0.025)


@settings(max_examples=6)
@given(seeds)
def test_approach_1_finds_the_exponent(seed):
    """Sixteen sizes: the envelope is a staircase, whose ends shift the slope by about 0.005."""
    law = World.draw(seed).law
    assert fit_envelope(curves(law)).frontier.a == pytest.approx(law.frontier().a, abs=0.02)


@pytest.mark.parametrize("law", [HOFFMANN_2022, BESIROGLU_2024], ids=["Hoffmann", "Besiroglu"])
def test_without_noise_parabolas_give_the_exponent_and_a_coefficient_that_is_off(experiment, law):
    """Sizes of each budget spread alike about the best: the shift of the vertex is one factor for all budgets."""
    found, true = fit_isoflop(experiment(law)).frontier, law.frontier()
    assert found.a == pytest.approx(true.a, abs=1e-9)
    shift = found.params.coefficient / true.params.coefficient
    assert 0.5 < shift < 2 and shift != pytest.approx(1, rel=1e-3)


def test_more_sizes_bring_the_envelope_to_the_truth():
    errors = [abs(fit_envelope(curves(HOFFMANN_2022, n)).frontier.a - HOFFMANN_2022.frontier().a) for n in (8, 64)]
    assert errors[1] < errors[0] / 4
    assert errors[1] < 1e-3


def test_noise_bends_the_envelope_down():
    """Measured over 40 seeds: 0.023 low at noise of 0.3 %, with a deviation of 0.021, so 0.005 of the mean of 20."""
    law = BESIROGLU_2024
    off = [fit_envelope(curves(law, 16, 0.003, seed), points=400).frontier.a - law.frontier().a for seed in range(20)]
    assert -0.045 < np.mean(off) < -0.003


def test_the_envelope_is_below_every_curve_and_leaves_out_the_end_sizes():
    found = curves(BESIROGLU_2024, 12)
    envelope = fit_envelope(found)
    assert not {found[0].n_params, found[-1].n_params} & set(envelope.n_params)
    for curve in found:
        covered = (envelope.flops >= curve.flops[0]) & (envelope.flops <= curve.flops[-1])
        there = np.interp(np.log(envelope.flops[covered]), np.log(curve.flops), curve.loss)
        assert np.all(envelope.loss[covered] <= there + 1e-12)


@given(seeds, st.sampled_from([1e-3, 0.1]))
def test_the_gradient_is_that_of_finite_differences(experiment, seed, delta):
    rng = np.random.default_rng(seed)
    law = BESIROGLU_2024
    runs = experiment(law, 0.05, seed % 100)
    theta = np.array([np.log(law.A), np.log(law.B), np.log(law.E), law.alpha, law.beta]) + rng.normal(0, 0.02, 5)
    _, gradient = objective(theta, runs, delta)
    for i in range(5):
        step = np.zeros(5)
        step[i] = 1e-7
        slope = (objective(theta + step, runs, delta)[0] - objective(theta - step, runs, delta)[0]) / 2e-7
        # Within a step of a kink of the slope, a residual of ±delta, the difference quotient averages two slopes.
        assert gradient[i] == pytest.approx(slope, rel=1e-4, abs=1e-5 * delta * len(runs))


def test_the_objective_is_huber_s_loss_of_the_log_loss(experiment):
    runs = experiment(HOFFMANN_2022, 0.02)
    law, delta = HOFFMANN_2022, 1e-3
    value, _ = objective(np.array([np.log(law.A), np.log(law.B), np.log(law.E), law.alpha, law.beta]), runs, delta)
    residuals = np.abs(np.log(law.loss(runs.n_params, runs.tokens) / runs.loss))
    huber = np.where(residuals <= delta, residuals**2 / 2, delta * (residuals - delta / 2))
    assert value == pytest.approx(huber.sum(), rel=1e-12)


def test_following_every_start_of_the_grid_finds_nothing_better(experiment):
    """The 24 starts that are lowest at the outset lead where 150 do."""
    for seed in range(2):
        runs = experiment(World.draw(seed).law, 0.01, seed).take(slice(None, None, 3))
        few, many = fit_parametric(runs), fit_parametric(runs, refine=150)
        assert few.objective == pytest.approx(many.objective, rel=1e-6)
    assert len(GRID) == 4500


def test_a_fit_in_mean_instead_of_sum_stops_early(experiment):
    """What befell the published fit (Besiroglu et al. 2024): one start, and a tolerance that the mean of losses of
    delta = 1e-3 meets at once: dividing by R·delta⁻¹ is the same as raising the tolerance by it."""
    runs = experiment(BESIROGLU_2024, 0.01, 1)
    start = [ChinchillaLaw(E=np.e**0.5, A=np.e**5, B=np.e**5, alpha=0.5, beta=0.5)]
    scipy_default = 1e-5
    early = fit_parametric(runs, starts=start, gradient_tolerance=scipy_default * len(runs) / 1e-3)
    full = fit_parametric(runs, starts=start)
    assert full.converged and not early.converged
    assert early.objective > 1.5 * full.objective
    assert abs(early.frontier.a - BESIROGLU_2024.frontier().a) > 2 * abs(full.frontier.a - BESIROGLU_2024.frontier().a)


def test_outliers_move_a_huber_fit_little(experiment):
    runs = experiment(BESIROGLU_2024, 0.002, 3)
    spoilt = runs.loss.copy()
    spoilt[::20] *= 1.3
    law = fit_parametric(Runs(runs.n_params, runs.tokens, spoilt)).law
    assert law.frontier().a == pytest.approx(BESIROGLU_2024.frontier().a, abs=0.02)


def test_budgets_are_told_apart_in_any_order(experiment):
    runs = experiment(HOFFMANN_2022)
    order = np.random.default_rng(0).permutation(len(runs))
    expected = np.repeat(np.arange(9), 11)
    np.testing.assert_array_equal(budgets(runs), expected)
    np.testing.assert_array_equal(budgets(runs.take(order)), expected[order])


def test_a_parabola_is_fitted_exactly():
    sizes = np.array([1e8, 3e8, 1e9, 5e9])
    loss = 2.5 + 0.07 * np.log(sizes / 7e8) ** 2
    parabola = fit_parabola(Runs(sizes, 1e20 / (6 * sizes), loss))
    assert (parabola.n_opt, parabola.loss_opt, parabola.curvature) == pytest.approx((7e8, 2.5, 0.07), rel=1e-9)
    np.testing.assert_allclose(parabola(sizes), loss, rtol=1e-12)
    assert parabola.has_minimum and parabola.flops == pytest.approx(1e20)


def test_a_parabola_without_a_minimum_takes_no_part(experiment):
    runs = experiment(HOFFMANN_2022)
    small = (budgets(runs) == 0) & (runs.n_params < runs.n_params[3])
    fit = fit_isoflop(runs.take((budgets(runs) > 0) | small))
    assert [parabola.has_minimum for parabola in fit.parabolas] == [False] + [True] * 8
    assert fit.frontier.a == pytest.approx(HOFFMANN_2022.frontier().a, abs=1e-6)


one = np.ones(8)
BAD = {
    "too few runs": (lambda: fit_parametric(Runs(one[:3], one[:3], one[:3])), "five constants need at least 6 runs"),
    "no starts": (lambda: fit_parametric(Runs(*3 * [np.arange(8) + 1]), starts=[]), "no starts"),
    "theta": (lambda: objective([1, 2], Runs([1], [1], [1])), r"theta of another shape: got \(2,\)"),
    "one size": (lambda: fit_parametric(Runs(one, np.arange(8) + 1, one)), "a law needs at least 3 sizes: got 1"),
    "two sizes": (lambda: fit_parabola(Runs([1, 2], [2, 1], [3, 3])), "a parabola needs at least 3 sizes: got 2"),
    "no minimum": (
        lambda: fit_isoflop(Runs([1, 2, 4, 2, 4, 8], [8, 4, 2, 40, 20, 10], [3, 2, 1, 3, 2, 1])),
        "too few budgets have a minimum among their sizes: got 0 of 2",
    ),
    "few curves": (lambda: fit_envelope(curves(HOFFMANN_2022, 3)), "an envelope needs curves of at least 4 sizes"),
    "lengths": (lambda: Runs([1, 2], [1], [1, 2]), "as long as each other"),
    "tokens that fall": (lambda: Curve(1e6, [2, 1], [3, 3]), "tokens along a curve must rise"),
    "no curves": (lambda: Runs.from_curves([]), "no curves"),
}


@pytest.mark.parametrize(("call", "line"), BAD.values(), ids=BAD)
def test_what_cannot_be_fitted_is_one_line(call, line):
    with pytest.raises(InputError, match=line) as caught:
        call()
    assert "\n" not in str(caught.value)
