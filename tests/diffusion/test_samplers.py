"""Samplers against data whose law is known at every level: orders of convergence, end laws, ODE against SDE."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from mlsys_lab.diffusion.preconditioning import PREDICTIONS
from mlsys_lab.diffusion.process import slope
from mlsys_lab.diffusion.samplers import DDIM, MAX_CHURN, SAMPLERS, SDE, DPMSolver, Heun, State, find_sampler
from mlsys_lab.diffusion.sampling import Noise, Sampling, run_step
from mlsys_lab.diffusion.schedules import edm_grid
from mlsys_lab.errors import InputError
from tests.diffusion.gaussians import F64, GAUSSIAN, TWO, perfect

ORDERS = [(DDIM(), 1), (Heun(), 2), (DPMSolver(), 2)]


def ode_error(denoiser, sampler, steps):
    """Largest error of the ODE's solution for a Gaussian, walked from level 10 to 0.1.

    A point keeps its distance from the mean in deviations of its level: x(σ') - μ = (x - μ)·√((s² + σ'²)/(s² + σ²)).
    """
    grid = torch.logspace(1, -1, steps + 1, dtype=F64)
    run = Sampling(denoiser, grid, Noise((50, 2), 1, F64), sampler=sampler)
    shrunk = math.sqrt((0.7**2 + 0.1**2) / (0.7**2 + 10**2))
    exact = GAUSSIAN.means + (run.start().x - GAUSSIAN.means) * shrunk
    return float((run.run() - exact).abs().max())


def order(denoiser, sampler, steps=64):
    """Binary logarithm of what halving the steps' length gains."""
    return math.log2(ode_error(denoiser, sampler, steps) / ode_error(denoiser, sampler, 2 * steps))


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize(("sampler", "expected"), ORDERS, ids=["ddim", "heun", "dpm++"])
def test_order_of_convergence_whatever_the_network_predicts(sampler, expected, prediction):
    assert order(perfect(GAUSSIAN, prediction), sampler) == pytest.approx(expected, abs=0.12)


@dataclass(frozen=True)
class WrongHeun:
    """Heun whose second question names the first level: a fault that real code has had."""

    def advance(self, state, sigma, sigma_next, draw):
        first = slope((yield state.x, sigma), state.x, sigma)
        ahead = state.x + (sigma_next - sigma) * first
        second = slope((yield ahead, sigma), ahead, sigma_next)
        return State(state.x + (sigma_next - sigma) * (first + second) / 2, ahead, sigma)


def test_these_tests_see_a_second_question_at_the_wrong_level():
    assert order(perfect(GAUSSIAN, "v"), WrongHeun()) < 1.2 < 1.8 < order(perfect(GAUSSIAN, "v"), Heun())


def test_a_wrong_level_hides_where_the_network_does_not_look_at_it():
    """A network that answers with the noise of one straight path: every level gives the same slope."""

    class Straight:
        def __call__(self, x, sigma, label=None):
            return x - sigma[:, None] * noise

    noise = torch.tensor([[1.0, -2.0]], dtype=F64)
    state = State.begin(noise * 3)
    right, wrong = (
        run_step(sampler.advance(state, 3.0, 1.0, lambda: noise), Straight()) for sampler in (Heun(), DDIM())
    )
    torch.testing.assert_close(right.x, wrong.x)


@pytest.mark.parametrize("name", ["euler", "heun", "dpm++", "ddpm", "churn", "sde"])
def test_law_of_what_comes_out(name):
    """Share, means and deviations of both components of a mixture, 5,000 points down 60 levels.

    A share is known to 0.0065, a component's mean to 0.013, a deviation to 0.009; the bounds allow four of these and
    the error of the steps: less than 0.005 for methods of second order, 0.04 for those of first. Noise that is missing
    or twice too strong changes a deviation by more than 0.15.
    """
    slack = 0.005 if name in ("heun", "dpm++", "churn") else 0.04
    x = Sampling(TWO, edm_grid(60), Noise((5_000, 2), 0, F64), sampler=SAMPLERS[name]).run()
    of_first = x[:, 0] > 0.3  # beyond which lies the other in 2 of 10⁶
    assert float(of_first.double().mean()) == pytest.approx(0.3, abs=0.026 + slack)
    for part, mean in zip((x[of_first], x[~of_first]), TWO.means, strict=True):
        torch.testing.assert_close(part.mean(0), mean, rtol=0, atol=0.052 + slack)
        torch.testing.assert_close(part.std(0), torch.full((2,), 0.5, dtype=F64), rtol=0, atol=0.036 + slack)


def test_ode_and_sde_have_the_same_law_at_every_level():
    """Deviation of a Gaussian under noise at four levels on the way, where 2,000 points know it to 1.1 %."""
    grid = edm_grid(120, 0.05, 20)
    for sampler in (Heun(), DDIM(eta=0.5), DDIM(eta=1), SDE(), Heun(churn=0.1)):
        run = Sampling(GAUSSIAN, grid, Noise((2_000, 2), 3, F64), sampler=sampler)
        for i, state in enumerate(run.states()):
            if i % 40 == 0:
                expected = math.sqrt(0.7**2 + float(grid[i]) ** 2)
                got = (state.x - GAUSSIAN.means).square().mean().sqrt()  # noise of the start has no mean
                assert float(got) == pytest.approx(expected, rel=0.06)


def test_a_point_is_reached_by_every_sampler():
    """Data that is one point: the last step to level 0 gives it, whatever was drawn."""
    point = type(GAUSSIAN)(GAUSSIAN.means, GAUSSIAN.weights, 0.0)
    for sampler in SAMPLERS.values():
        x = Sampling(point, edm_grid(5), Noise((3, 2), 0, F64), sampler=sampler).run()
        torch.testing.assert_close(x, GAUSSIAN.means.expand(3, 2))


def test_evaluations_are_counted_as_they_are_made():
    for name, sampler in SAMPLERS.items():
        calls = []

        def counted(x, sigma, label=None, calls=calls):
            calls.append(sigma)
            return GAUSSIAN(x, sigma, label)

        Sampling(counted, edm_grid(7), Noise((2, 2), 0, F64), sampler=sampler).run()
        assert len(calls) == sampler.evaluations(7), name


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: DDIM(eta=1.5), "eta out of range: got 1.5"),
        (lambda: DDIM(eta=math.nan), "eta out of range: got nan"),
        (lambda: Heun(churn=0.5), "churn out of range: got 0.5, expected 0 to √2 - 1 = 0.414"),
        (lambda: find_sampler("huen"), "unknown sampler: got 'huen', expected one of .*did you mean 'heun'"),
    ],
)
def test_a_bad_option_is_one_line(wrong, said):
    with pytest.raises(InputError, match=said):
        wrong()
    assert Heun(churn=MAX_CHURN).churn == MAX_CHURN
