"""The forward process: moments of what is noised, and the posterior against the papers' own formulas."""

from __future__ import annotations

import math

import pytest
import torch

from mlsys_lab.diffusion.process import per_image, posterior, q_sample, score, slope
from mlsys_lab.errors import InputError
from tests.diffusion.gaussians import F64, GAUSSIAN, TWO


def test_moments_of_what_is_noised():
    """200,000 draws: a mean is known to 0.0022·√(0.49 + σ²), a variance to 0.32 %; five of those fail once in 10⁶.

    Scaled by 1.02 in place of 1, the noise would be off by 12 of them.
    """
    generator = torch.Generator().manual_seed(0)
    count = 200_000
    x0, _ = GAUSSIAN.sample(count, generator)
    sigma = torch.full((count,), 3.0, dtype=F64)
    x = q_sample(x0, sigma, torch.randn(x0.shape, generator=generator, dtype=F64))
    variance = 0.7**2 + 3**2
    error = 5 * math.sqrt(variance / count)
    torch.testing.assert_close(x.mean(0), GAUSSIAN.means[0], rtol=0, atol=error)
    torch.testing.assert_close(x.var(0), torch.full((2,), variance, dtype=F64), rtol=5 * math.sqrt(2 / count), atol=0)


def test_the_posterior_is_ddpm_s():
    """Equations 6 and 7 of the paper, in its scaled coordinates."""
    generator = torch.Generator().manual_seed(1)
    x0, x_t = torch.randn(2, 5, 3, generator=generator, dtype=F64)
    before, now = 0.7, 0.6  # ᾱ of steps t - 1 and t
    beta = 1 - now / before
    mean = math.sqrt(before) * beta / (1 - now) * x0 + math.sqrt(1 - beta) * (1 - before) / (1 - now) * x_t
    variance = (1 - before) / (1 - now) * beta
    sigma, sigma_next = (math.sqrt((1 - kept) / kept) for kept in (now, before))
    got, deviation = posterior(x0, x_t / math.sqrt(now), sigma, sigma_next)
    torch.testing.assert_close(math.sqrt(before) * got, mean)
    assert before * deviation**2 == pytest.approx(variance)


@pytest.mark.parametrize("eta", [0.0, 0.3, 1.0])
def test_a_step_is_ddim_s(eta):
    """Equations 12 and 16 of the paper, in its scaled coordinates."""
    generator = torch.Generator().manual_seed(2)
    x0, x_t = torch.randn(2, 5, 3, generator=generator, dtype=F64)
    before, now = 0.7, 0.2
    s = eta * math.sqrt((1 - before) / (1 - now)) * math.sqrt(1 - now / before)
    epsilon = (x_t - math.sqrt(now) * x0) / math.sqrt(1 - now)
    sigma, sigma_next = (math.sqrt((1 - kept) / kept) for kept in (now, before))
    got, deviation = posterior(x0, x_t / math.sqrt(now), sigma, sigma_next, eta)
    torch.testing.assert_close(math.sqrt(before) * got, math.sqrt(before) * x0 + math.sqrt(1 - before - s**2) * epsilon)
    assert math.sqrt(before) * deviation == pytest.approx(s)


def test_the_score_is_the_gradient_of_the_log_density():
    x = torch.tensor([[0.3, 0.2], [-1.5, 2.0], [4.0, -3.0]], dtype=F64, requires_grad=True)
    sigma = 0.8
    variance = TWO.deviation**2 + sigma**2
    terms = TWO.weights.log() - (x[:, None] - TWO.means).square().sum(-1) / (2 * variance)
    (gradient,) = torch.autograd.grad(terms.logsumexp(1).sum(), x)
    denoised = TWO(x.detach(), torch.full((3,), sigma, dtype=F64))
    torch.testing.assert_close(score(denoised, x.detach(), sigma), gradient)
    torch.testing.assert_close(slope(denoised, x.detach(), sigma), -sigma * gradient)


def test_a_value_for_each_image():
    assert per_image(torch.ones(3), torch.zeros(3, 1, 2, 2)).shape == (3, 1, 1, 1)
    with pytest.raises(InputError, match=r"one value for each image: got \(2,\), expected \(3,\)"):
        q_sample(torch.zeros(3, 4), torch.ones(2), torch.zeros(3, 4))
