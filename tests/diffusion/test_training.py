"""Training: losses that are what the papers minimise, a run that its seed decides, and labels that are dropped."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mlsys_lab.diffusion.ema import EMA
from mlsys_lab.diffusion.networks import DiT
from mlsys_lab.diffusion.preconditioning import PREDICTIONS, Preconditioned
from mlsys_lab.diffusion.schedules import alphas_cumprod, linear_betas, sigmas
from mlsys_lab.diffusion.training import log_normal, p_losses, squared_error, train, uniform_over
from mlsys_lab.errors import InputError
from mlsys_lab.flops.dit import DiTConfig
from tests.diffusion.gaussians import F64, TWO, perfect

CONFIG = DiTConfig("tiny", 1, d_model=16, n_heads=2, size=4, patch=2, channels=1, classes=2)


class Silent(nn.Module):
    """A network that answers 0, so that its error is what it should have answered."""

    def forward(self, x, noise, label):
        return torch.zeros_like(x)


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_the_loss_is_the_squared_error_of_what_is_predicted(prediction):
    x0, noise = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0), dtype=F64)
    sigma = torch.tensor([0.1, 1.0, 8.0], dtype=F64)
    denoiser = Preconditioned(Silent(), prediction)
    target = denoiser.target(x0, x0 + sigma[:, None] * noise, sigma)
    torch.testing.assert_close(p_losses(denoiser, x0, sigma, noise, None), target.square().mean(1))


def test_no_network_has_a_lower_loss_than_the_exact_one():
    """The loss left is the variance of x₀ given x: noise added to the answer only adds to it, by its own variance.

    20,000 draws know the difference, 0.04 of ε's unit, to 0.0015.
    """
    generator = torch.Generator().manual_seed(0)
    x0, label = TWO.sample(20_000, generator)
    sigma = torch.full((20_000,), 1.0, dtype=F64)
    noise = torch.randn(x0.shape, generator=generator, dtype=F64)
    exact = perfect(TWO, "epsilon")

    class Off(nn.Module):
        def forward(self, x, noise, label):
            return exact.network(x, noise, label) + 0.2

    losses = [p_losses(each, x0, sigma, noise, label).mean() for each in (exact, Preconditioned(Off(), "epsilon"))]
    assert float(losses[1] - losses[0]) == pytest.approx(0.04, abs=0.006)


def test_the_weight_for_v_is_one_more_than_signal_to_noise():
    """Salimans and Ho, arXiv:2202.00512, §4: SNR is ᾱ/(1 - ᾱ), 1/σ²."""
    x, target = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0), dtype=F64)
    sigma = torch.tensor([0.1, 1.0, 8.0], dtype=F64)
    denoiser = Preconditioned(Silent(), "v")
    error = (denoiser(x, sigma) - target).square().mean(1)
    torch.testing.assert_close(squared_error(denoiser, x, sigma, None, target), (1 / sigma**2 + 1) * error)


def images(count=64):
    """Two classes of pictures: bright on the left, or on the right."""
    label = torch.arange(count) % 2
    picture = torch.full((count, 1, 4, 4), -0.7)
    picture[label == 0, :, :, :2] = 0.7
    picture[label == 1, :, :, 2:] = 0.7
    return picture, label


def trained(steps=60, seed=0, **more):
    torch.manual_seed(0)
    denoiser = Preconditioned(DiT(CONFIG), sigma_data=0.7)
    average = EMA(denoiser, 0.9)
    losses = [
        loss for _, loss in train(denoiser, *images(), average, steps=steps, batch=32, rate=0.01, seed=seed, **more)
    ]
    return losses, denoiser, average


def test_a_run_learns_and_its_seed_decides_it():
    losses, denoiser, average = trained()
    assert sum(losses[-10:]) < 0.4 * sum(losses[:10]) and average.updates == 60
    assert trained()[0] == losses != trained(seed=1)[0]
    assert any(not torch.equal(a, b) for a, b in zip(denoiser.parameters(), average.model.parameters(), strict=True))


def test_classes_are_learned_and_the_null_class_with_them():
    _, _, average = trained(steps=150, levels=log_normal(0.5, 1.2))
    x, sigma = torch.zeros(3, 1, 4, 4), torch.full((3,), 6.0)
    left, right, both = average.model(x, sigma, torch.tensor([0, 1, 2]))
    assert float(left[0, :, :2].mean()) > 0.3 > -0.3 > float(left[0, :, 2:].mean())
    assert float(right[0, :, :2].mean()) < -0.3 < 0.3 < float(right[0, :, 2:].mean())
    assert float(both.abs().max()) < 0.3


def test_levels_are_drawn_as_named():
    """20,000 draws know a mean to 0.0085 deviations, and each of ten levels to 2.1 %; five of those are allowed."""
    generator = torch.Generator().manual_seed(0)
    drawn = log_normal(0.5, 1.2)(20_000, generator).log()
    assert [float(drawn.mean()), float(drawn.std())] == pytest.approx([0.5, 1.2], abs=0.05)
    levels = sigmas(alphas_cumprod(linear_betas(10, 0.1, 0.2)))
    counts = torch.bincount(torch.searchsorted(levels, uniform_over(levels)(20_000, generator)), minlength=10)
    assert counts.tolist() == pytest.approx([2000] * 10, rel=0.11)


def test_images_without_labels_are_one_line():
    denoiser = Preconditioned(DiT(CONFIG))
    with pytest.raises(InputError, match="images and labels do not fit: got 64 and 3, expected as many"):
        next(train(denoiser, images()[0], images()[1][:3], EMA(denoiser), steps=1))
