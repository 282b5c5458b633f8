"""Kept features: exact when nothing is skipped, counted where something is, and an error that grows with what is."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mlsys_lab.diffusion.caching import CachedDiT, cached_flops
from mlsys_lab.diffusion.preconditioning import Preconditioned
from mlsys_lab.diffusion.pretrained import load_digits_model
from mlsys_lab.diffusion.sampling import Noise, Sampling
from mlsys_lab.diffusion.schedules import edm_grid
from mlsys_lab.errors import InputError
from mlsys_lab.flops import dit


@pytest.fixture(scope="module")
def model():
    return load_digits_model(torch.float64)


def draw(denoiser):
    noise = Noise((10, 1, 8, 8), 0, torch.float64)
    return Sampling(denoiser, edm_grid(24, 0.02, 20), noise, torch.arange(10)).run()


def cached(model, every, first=1, last=3):
    network = CachedDiT(model.network, first, last, every)
    return Preconditioned(network, model.prediction, model.sigma_data)


def test_the_error_grows_with_what_is_skipped(model):
    """What the module's docstring says of the digit model, in float64."""
    exact = draw(model)
    whole, shares, errors = dit.forward(model.network.config).total, [], []
    for first, last, every in ((1, 3, 1), (1, 3, 2), (1, 3, 4), (0, 4, 2)):
        error = draw(cached(model, every, first, last)) - exact
        errors.append(float(error.square().mean().sqrt() / exact.std()))
        shares.append(cached_flops(model.network.config, last - first, every) / whole)
    assert errors[0] < 1e-12 and errors[1:] == pytest.approx([0.022, 0.062, 0.023], rel=0.05)
    assert shares == pytest.approx([1, 0.75, 0.63, 0.51], abs=0.006)


def test_flops_are_what_torch_counts(model):
    network = CachedDiT(model.network, 1, 3, every=3)
    x, noise = torch.zeros(2, 1, 8, 8, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        for _ in range(6):
            network(x, noise)
    assert counter.get_total_flops() == pytest.approx(6 * 2 * cached_flops(model.network.config, 2, 3), rel=1e-12)


def test_a_run_after_another_begins_anew(model):
    denoiser = cached(model, 5)
    first = draw(denoiser)
    denoiser.network.reset()
    assert torch.equal(draw(denoiser), first)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda network: CachedDiT(network, 3, 3, 2), "no such blocks: got 3 to 3, expected 0 <= first < last <= 4"),
        (lambda network: CachedDiT(network, 0, 9, 2), "no such blocks: got 0 to 9"),
        (lambda network: CachedDiT(network, 0, 2, 0), "every must be at least 1: got 0"),
        (lambda network: cached_flops(dit.preset("S/2"), 13, 2), "no such number of blocks: got 13, expected 0 to 12"),
    ],
)
def test_bad_input_is_one_line(model, wrong, said):
    with pytest.raises(InputError, match=said):
        wrong(model.network)


def test_another_batch_within_a_run_is_one_line(model):
    network = CachedDiT(model.network, 1, 3, every=2)
    x, noise = torch.zeros(2, 1, 8, 8, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    network(x, noise)
    with pytest.raises(InputError, match=r"another batch within a run: got 1; help: call reset\(\)"):
        network(x[:1], noise[:1])
