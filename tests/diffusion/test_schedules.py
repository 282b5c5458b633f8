"""Schedules: the papers' values, levels they stand for, and grids that are refused in one line."""

from __future__ import annotations

import math

import pytest
import torch

from mlsys_lab.diffusion import schedules
from mlsys_lab.diffusion.schedules import (
    alphas_cumprod,
    check_grid,
    cosine_betas,
    edm_grid,
    flow_grid,
    linear_betas,
    respace,
)
from mlsys_lab.diffusion.schedules import sigmas as sigmas_of
from mlsys_lab.errors import InputError


def test_ddpm_s_schedule_ends_where_the_paper_says():
    """§4: L_T, the divergence of the last level from a unit Gaussian, is about 1e-5 bits a dimension for data in ±1."""
    kept = float(alphas_cumprod(linear_betas())[-1])
    assert kept == pytest.approx(4.036e-5, rel=1e-3)
    assert kept / 2 / math.log(2) == pytest.approx(1e-5, rel=2)  # x₀² at most 1; log terms are of order ᾱ²


def test_the_cosine_schedule_is_the_squared_cosine_until_it_is_held():
    kept = alphas_cumprod(cosine_betas(1000))
    times = torch.arange(1, 1001, dtype=torch.float64) / 1000

    def f(t):
        return torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2

    torch.testing.assert_close(kept[:990], (f(times) / f(torch.zeros(1, dtype=torch.float64)))[:990], rtol=1e-9, atol=0)
    assert float(cosine_betas(1000)[-1]) == 0.999


def test_levels_are_noise_over_signal():
    kept = alphas_cumprod(linear_betas(10, 0.1, 0.2))
    torch.testing.assert_close(1 / (1 + sigmas_of(kept) ** 2), kept)
    assert bool((sigmas_of(kept).diff() > 0).all())


def test_edm_s_grid_is_equation_5():
    grid = edm_grid(18)
    assert len(grid) == 19 and float(grid[-1]) == 0
    assert [float(grid[0]), float(grid[17])] == pytest.approx([80, 0.002])
    i = 5
    assert float(grid[i]) == pytest.approx((80 ** (1 / 7) + i / 17 * (0.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7)


def test_a_flow_s_grid_is_even_in_time():
    grid = flow_grid(10, sigma_max=9)
    torch.testing.assert_close(grid / (1 + grid), torch.linspace(0.9, 0, 11, dtype=torch.float64))


@pytest.mark.parametrize("steps", [1, 2, 7, 50, 1000])
def test_respacing_keeps_both_ends(steps):
    levels = sigmas_of(alphas_cumprod(linear_betas()))
    grid = respace(levels, steps)
    assert len(grid) == steps + 1 and grid[0] == levels[-1] and grid[-1] == 0
    assert steps == 1 or grid[-2] == levels[0]
    assert set(grid[:-1].tolist()) <= set(levels.tolist())


def test_one_step_is_a_grid_of_every_kind():
    assert all(len(grid) == 2 for grid in (edm_grid(1), flow_grid(1)))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: linear_betas(0), "steps must be at least 1: got 0"),
        (lambda: linear_betas(10, 0.3, 0.1), "betas out of range: got 0.3 to 0.1"),
        (lambda: alphas_cumprod(torch.tensor([0.1, 1.0])), "not a schedule of variances: got shape (2,): 0.1, 1"),
        (lambda: alphas_cumprod(torch.tensor([0.1, math.nan])), "not a schedule of variances"),
        (lambda: alphas_cumprod(torch.ones(0)), "not a schedule of variances"),
        (
            lambda: respace(torch.arange(1.0, 11), 11),
            "more steps than the schedule has, or none: got 11",
        ),
        (lambda: edm_grid(5, sigma_min=0), "levels out of range"),
        (lambda: edm_grid(5, sigma_min=2, sigma_max=1), "levels out of range"),
        (lambda: flow_grid(5, sigma_max=math.inf), "sigma_max out of range: got inf"),
        (lambda: check_grid(torch.tensor([1.0, 2.0, 0.0])), "not levels to walk down"),
        (lambda: check_grid(torch.tensor([1.0, -1.0])), "not levels to walk down"),
        (lambda: check_grid(torch.tensor([math.inf, 1.0])), "not levels to walk down"),
        (lambda: check_grid(torch.tensor([1.0])), "not levels to walk down"),
    ],
)
def test_a_bad_schedule_is_one_line(wrong, said):
    with pytest.raises(InputError) as caught:
        wrong()
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_every_result_is_in_float64():
    made = [linear_betas(5), cosine_betas(5), alphas_cumprod(linear_betas(5).float()), edm_grid(5), flow_grid(5)]
    assert {values.dtype for values in made} == {torch.float64} and schedules.sigmas is sigmas_of
