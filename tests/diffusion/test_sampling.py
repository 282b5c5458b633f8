"""Runs: steps that depend on their arguments alone, and images taken back to the noise they came from."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.diffusion.samplers import DDIM, SAMPLERS, Heun
from mlsys_lab.diffusion.sampling import Noise, Sampling, invert
from mlsys_lab.diffusion.schedules import edm_grid
from mlsys_lab.errors import InputError
from tests.diffusion.gaussians import F64, TWO


def run(sampler, seed=0, **more):
    return Sampling(TWO, edm_grid(9), Noise((4, 2), seed, F64), sampler=sampler, **more)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_step_taken_again_or_by_another_run_is_the_same(name):
    states = list(run(SAMPLERS[name]).states())
    assert len(states) == 10
    again = run(SAMPLERS[name])
    for i in (8, 3, 3, 0):
        assert torch.equal(again.step(states[i], i).x, states[i + 1].x)
    assert not torch.equal(run(SAMPLERS[name], seed=1).run(), states[-1].x)


def test_labels_go_to_the_denoiser():
    label = torch.tensor([0, 0, 1, 1])
    x = Sampling(TWO, edm_grid(30), Noise((4, 2), 0, F64), label, Heun()).run()
    assert bool(((x[:, 0] > 0) == (label == 0)).all())


def test_noise_is_its_seed_s_and_step_s_alone():
    noise = Noise((3, 2), 5)
    assert torch.equal(noise.draw(2), Noise((3, 2), 5).draw(2))
    assert not torch.equal(noise.draw(2), noise.draw(3)) and not torch.equal(noise.draw(2), Noise((3, 2), 6).draw(2))


def test_inversion_comes_back_and_nearer_with_more_steps():
    """DDIM is of first order, there and back: twice the steps leave half of the error."""
    x, _ = TWO.sample(20, torch.Generator().manual_seed(0))
    errors = []
    for steps in (100, 200):
        grid = edm_grid(steps, 0.01, 20)
        noise = invert(TWO, x, grid)
        back = Sampling(TWO, grid[:-1], Noise((20, 2), 0, F64), sampler=DDIM())
        state = back.start()._replace(x=noise)
        for i in range(back.steps):
            state = back.step(state, i)
        errors.append(float((state.x - x).abs().max()))
    assert errors[1] < 0.6 * errors[0] < 0.1


def test_noise_of_an_inverted_point_is_as_strong_as_its_level():
    """200 points know a deviation to 3.5 % for each of two axes; without inversion it would be 2, not 20."""
    x, _ = TWO.sample(200, torch.Generator().manual_seed(0))
    noise = invert(TWO, x, edm_grid(200, 0.01, 20))
    assert float(noise.std()) == pytest.approx(20, rel=0.12)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: run(DDIM()).step(run(DDIM()).start(), 9), "no such step: got 9, expected 0 to 8"),
        (lambda: run(DDIM()).step(run(DDIM()).start(), -1), "no such step: got -1"),
        (lambda: run(DDIM(), label=torch.zeros(3).long()), r"one label for each image: got \(3,\), expected \(4,\)"),
        (lambda: Sampling(TWO, torch.tensor([0.0, 1.0]), Noise((4, 2))), "not levels to walk down"),
    ],
)
def test_bad_input_is_one_line(wrong, said):
    with pytest.raises(InputError, match=said):
        wrong()
