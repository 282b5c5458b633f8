"""What chapter 14 computes and concludes, against arithmetic written out here."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

PAGE = "14-diffusion"

PEAK, BANDWIDTH = 989.4e12, 3.35e12  # an H100
L, D, T, CLASSES, FREQUENCIES = 28, 1152, 256, 1000, 256  # DiT-XL/2, 256 pixels


def exactly(value):
    return pytest.approx(value, rel=1e-12)


def passes(tokens, patch=2, channels=4, out=8, layers=L):
    """Multiply-adds of a pass of DiT-XL over one image."""
    ends = tokens * patch**2 * (channels + out) * D
    condition = FREQUENCIES * D + D * D + (6 * layers + 2) * D * D
    return ends + condition + layers * (12 * tokens * D * D + 2 * tokens * tokens * D)


def parameters():
    ends = 16 * D + D + 32 * D + 32
    condition = FREQUENCIES * D + D + D * D + D + (CLASSES + 1) * D + (6 * L + 2) * (D * D + D)
    return ends + condition + L * (12 * D * D + 9 * D)


def step_s(images):
    return max(2 * images * passes(T) / PEAK, 2 * parameters() / BANDWIDTH)


def test_the_bound_is_that_of_a_hundred_passes(page) -> None:
    assert page.one_pass == exactly(2 * passes(T))
    assert page.guided.time_s == exactly(step_s(2)) == exactly(4 * passes(T) / PEAK)
    assert page.plain.time_s == exactly(2 * parameters() / BANDWIDTH)
    assert page.denoise_s == exactly(100 * 2 * passes(T) / PEAK)
    assert page.answer_s == exactly(page.denoise_s + page.vae_s)


def test_a_cloud_that_shrinks_follows_the_ode(page) -> None:
    """Data of deviation 1 from level 3 to level 1 by 20,000 steps of Euler, with D = x/(1 + sigma²)."""
    x, levels = 2.0, np.linspace(3, 1, 20_001)
    for sigma, following in pairwise(levels):
        x += (following - sigma) * (x - x / (1 + sigma**2)) / sigma
    assert page.heat_x == pytest.approx(x, rel=1e-4)


def test_the_guess_about_a_pixel(page) -> None:
    for sigma in (0.3, 1.0, 3.0):
        chances = [math.exp(-((0.5 - pixel) ** 2) / (2 * sigma**2)) for pixel in (-1, 1)]
        guess = page.coin(page.torch.tensor([[0.5]]), page.torch.tensor([sigma])).item()
        assert guess == pytest.approx((chances[1] - chances[0]) / sum(chances), rel=1e-5)


def test_weights_of_what_is_asked_for(page) -> None:
    sigma = np.array([0.02, 0.2, 1, 5, 80])
    expected = {
        "epsilon": sigma**-2.0,
        "x0": np.ones(5),
        "v": 1 + sigma**-2.0,
        "flow": (1 + 1 / sigma) ** 2,
        "edm": sigma**-2.0 + 4,  # data of deviation 1/2
    }
    assert page.weights.keys() == expected.keys()
    for name, row in expected.items():
        assert page.weights[name].numpy() == pytest.approx(row, rel=1e-9)


def test_grids_of_eight_steps(page) -> None:
    variances = np.linspace(1e-4, 0.02, 1000)
    kept = np.cumprod(1 - variances)
    roots = np.linspace(80 ** (1 / 7), 0.002 ** (1 / 7), 8)
    times = np.linspace(80 / 81, 0, 9)[:-1]
    ends = {
        "DDPM, linear": np.sqrt(1 / kept[[999, 0]] - 1),
        "EDM": roots[[0, -1]] ** 7,
        "rectified flow": (times / (1 - times))[[0, -1]],
    }
    for name, expected in ends.items():
        assert page.grids[name].numpy()[[0, -2]] == pytest.approx(expected, rel=1e-9)
    assert page.grids["EDM"].numpy()[:-1] == pytest.approx(roots**7, rel=1e-9)


def test_orders_of_the_solvers(page) -> None:
    """The path by Euler's method alone, at 2,000 levels and again at 4,000, extrapolated to none."""
    means, shares = page.mixture.means.numpy(), page.mixture.weights.numpy()

    def slope(x, sigma):
        variance = 0.3**2 + sigma**2
        near = shares * np.exp(-((x[:, None] - means) ** 2).sum(-1) / (2 * variance) + 40)
        mean = (near / near.sum(1, keepdims=True)) @ means
        return (x - (0.3**2 * x + sigma**2 * mean) / variance) / sigma

    def euler(steps):
        roots = np.linspace(80 ** (1 / 7), 0.002 ** (1 / 7), steps)
        levels = np.append(roots**7, 0.0)
        x = 80 * page.noise.draw(0).numpy()[:40]
        for sigma, following in pairwise(levels):
            x = x + (following - sigma) * slope(x, sigma)
        return x

    path = 2 * euler(4000) - euler(2000)
    assert np.abs(page.truth.numpy()[:40] - path).max() < 1e-3
    for name, order in (("Euler, DDIM", 1), ("Heun", 2), ("DPM-Solver++ 2M", 2)):
        errors = page.errors[name]
        assert math.log2(errors[64] / errors[128]) == pytest.approx(order, abs=0.15)


def test_counts_of_networks(page) -> None:
    for name, tokens, patch in (
        ("DiT-XL/2, 256 px", 256, 2),
        ("DiT-XL/2, 512 px", 1024, 2),
        ("DiT-XL/4, 256 px", 64, 4),
        ("DiT-XL/8, 256 px", 16, 8),
    ):
        assert page.counts(page.networks[name])[0] == exactly(2 * passes(tokens, patch))
    assert page.counts(page.networks["DiT-XL/2, 256 px"])[1] == parameters()
    assert page.adm_flops == pytest.approx(2 * 1120e9, rel=1e-3)  # DiT's table 4 prints 1120 multiply-adds
    assert page.pixels.total == exactly(2 * passes(128**2, 2, channels=3, out=6))


def test_times_beside_a_model_that_writes(page) -> None:
    def token_s(sequences):
        return max(2 * parameters() * sequences / PEAK, 2 * parameters() / BANDWIDTH)

    for images, (plain, guided, generated, both) in page.per_image_s.items():
        assert plain == exactly(50 * step_s(images) / images)
        assert guided == exactly(50 * step_s(2 * images) / images)
        assert generated == exactly(T * token_s(images) / images)
        assert both == exactly(T * token_s(2 * images) / images)
    # Guided against guided: 100 passes against twice 256 tokens.
    assert page.like_for_like == exactly(100 * passes(T) / (2 * T * parameters())) == pytest.approx(34, abs=0.5)
    best = [row.index(min(row)) for row in page.per_image_s.values()]
    assert best == [0, 0, 0, 2, 2, 2]  # a crowd of writers is cheaper


def test_the_decoder_of_the_autoencoder(page) -> None:
    """Layer by layer, in multiply-adds of one latent number: 3 by 3 convolutions, shortcuts and attention."""
    at = {1: 9 * (4 * 512 + 2 * 2 * 512**2 + 6 * 512**2) + 16 + 4 * 512**2 + 2 * 32**2 * 512}
    at[2] = 9 * 7 * 512**2  # the upsampled convolution, then three blocks
    at[4] = 9 * (512**2 + 512 * 256 + 5 * 256**2) + 512 * 256
    at[8] = 9 * (256**2 + 256 * 128 + 5 * 128**2 + 128 * 3) + 256 * 128
    expected = 2 * sum(32**2 * scale**2 * count for scale, count in at.items())
    assert page.vae_flops == exactly(expected) == pytest.approx(0.62e12, rel=0.01)
    assert page.vae_s / (4 * page.plain.time_s) == pytest.approx(0.39, abs=0.01)


def test_models_of_images_and_video(page) -> None:
    """FLUX.1-dev and HunyuanVideo: 24·d² a token and block and 4·T²·d a block, d = 3072; then all-to-alls."""
    d, flux, video = 3072, 64 * 64 + 512, 33 * 80 * 45 + 256
    flux_pass = 57 * (24 * d * d * flux + 4 * flux**2 * d)
    linear, attention = 60 * 24 * d * d * video, 60 * 4 * video**2 * d
    assert page.flux_s == exactly(28 * flux_pass / PEAK) == pytest.approx(2.1, abs=0.05)
    assert page.video_s == exactly(50 * (linear + attention) / PEAK) == pytest.approx(610, abs=1)
    assert page.video_fp8_s == exactly(50 * (linear / 1978.9e12 + attention / PEAK))
    assert attention / (linear + attention) == pytest.approx(0.866, abs=0.001)
    assert page.video_sent == exactly(4 * video / 8 * d * 2 * 7 / 8 / 450e9)
    assert page.video_compute == exactly((linear + attention) / 60 / 8 / PEAK)
    assert page.t5_flops == exactly(2 * 512 * 24 * (4 * 4096**2 + 3 * 4096 * 10_240))
    assert page.p8_student == exactly(4 * flux_pass + page.t5_flops + page.flux_vae)


def test_a_cache_that_decides_for_itself(page) -> None:
    images = page.draw(page.DDIM(), 24, denoiser=page.as_denoiser(page.FirstBlockCache(page.model.network, 0.0)))
    assert page.torch.allclose(images, page.draw(page.DDIM(), 24), atol=1e-4)  # a threshold of 0 computes everything
    full_steps = [full for full, _ in page.thresholds.values()]
    assert full_steps == sorted(full_steps, reverse=True) and full_steps[0] == 24


def test_requests_are_answered_together_as_alone(page) -> None:
    assert page.calls == max(12, 2 * 6 - 1, 20)
    assert sum(calls for _, calls in page.alone) == 12 + 11 + 20
    assert page.difference < 1e-3  # float32, in other batches


def test_reuse_of_blocks(page) -> None:
    assert page.kept == exactly(passes(T) + passes(T, layers=8))
    assert page.p5_part == exactly(passes(1024, layers=4) / passes(1024))


def test_digits_by_few_steps_are_read_but_alike(page) -> None:
    means = page.real.images.new_zeros(10, 1, 8, 8)
    for label in range(10):
        means[label] = page.real.images[page.real.labels == label].mean(0)

    def from_mean(images):
        return float((images - means.repeat(50, 1, 1, 1)).square().mean().sqrt())

    distances = [from_mean(page.drawn[name]) for name in ("DDIM, 2 steps", "DDIM, 4", "DDIM, 16")]
    assert distances == sorted(distances) and distances[0] < 0.1
    assert page.shares["the same, s = 2"] >= page.shares["DPM-Solver++, 16"] > 0.85


def test_rivals_of_kept_features_cost_as_much(page) -> None:
    blocks, tokens, width = 4, 16, 64
    for every in (1, 2, 3):
        share = page.cached_flops(page.digits, blocks, every) / page.dit.forward(page.digits).total
        # In the blocks: six vectors an image, and of each token 12·D² and, with 16 others, 2·T·D.
        inside = blocks * (6 * width**2 + tokens * (12 * width**2 + 2 * tokens * width))
        ends = (FREQUENCIES + width) * width + 2 * width**2 + tokens * 2 * 4 * width
        assert share == exactly((ends + inside / every) / (ends + inside))
        assert round(24 * share) == 24 // every
    anew = page.draw(page.DDIM(), 4, denoiser=page.cached(1))
    assert page.torch.allclose(anew, page.drawn["DDIM, 4"], atol=1e-4)


def test_one_guess_in_place_of_two(page) -> None:
    """DDIM keeps a share of x and takes the rest from its guess: here a third from the first, and two from the next."""
    assert page.x_teacher == exactly(2 / 4 + 0.6 * (1 / 2 - 1 / 4) + 0.9 * (1 - 1 / 2))
    assert page.target == exactly((0.6 + 2 * 0.9) / 3)


def test_students_draw_what_many_steps_draw(page) -> None:
    def alike(images):
        """Mean deviation of a pixel among the images of a class."""
        return float(images.reshape(50, 10, 64).std(0).mean())

    whole = page.few_step["teacher", 32]
    for count in (1, 2, 4, 8):
        student, teacher = page.few_step["student", count], page.few_step["teacher", count]
        assert float((student - whole).norm()) < 0.4 * float((teacher - whole).norm())
        assert alike(teacher) < alike(student) == pytest.approx(alike(whole), rel=0.1)
    assert alike(page.few_step["teacher", 1]) < 0.25 * alike(whole)
    assert page.distil_passes == 5 * 120 * 128 * 5


def test_what_training_keeps_of_an_image(page) -> None:
    """Of DiT-XL/2 28 layers of 12·D and 2·4·D numbers a token, and a sum for each of 16 heads; ADM's largest part."""
    assert page.dit.activation_bytes(page.xl, fused=True) == exactly(256 * 28 * (2 * 20 * D + 16 * 4))
    full_size = 256 * 256 * 256 * 2  # one picture of ADM's first width
    assert 80 * full_size < page.unet.activation_bytes(page.unet.ADM, fused=True) < 90 * full_size


def test_problems(page) -> None:
    assert page.p7_passes == 4 * 50_000 * 256 * 7 and page.p7_saved == 2 * 20 - 4
    chances = 0.8 * math.exp(-(0.7**2) / 0.5), 0.2 * math.exp(-(0.3**2) / 0.5)
    assert page.p2_at == exactly(chances[1] / sum(chances))
    assert page.p2_far == pytest.approx(0.2, abs=1e-3)
    assert page.p3_v == exactly(2 / 10 + 3 / math.sqrt(10) * 0.5)  # √ᾱ·x_t - √(1 - ᾱ)·v, DDPM's x_t being √ᾱ·x
    assert page.p4_most == math.ceil(parameters_of_8() / passes(16, 8) * PEAK / BANDWIDTH)
    assert page.p6_flops == exactly(6 * passes(T) * 256 * 7e6)
    assert page.p1_s == exactly(35 * 4 * passes(1024) / 121e12)


def parameters_of_8():
    return parameters() + 4 * 60 * D + 8 * 60 * D + 8 * 60
