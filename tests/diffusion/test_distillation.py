"""Distillation: perfect students do what their teachers do, in closed form for a Gaussian; a trained one nearly."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from mlsys_lab.diffusion.distillation import TwoStepTeacher, distil, halve_grid
from mlsys_lab.diffusion.guidance import ClassifierFreeGuidance
from mlsys_lab.diffusion.preconditioning import Preconditioned
from mlsys_lab.diffusion.sampling import Noise, Sampling
from mlsys_lab.diffusion.schedules import edm_grid, flow_grid
from mlsys_lab.errors import InputError
from tests.diffusion.gaussians import F64, GAUSSIAN, TWO

GRID = edm_grid(8, 0.05, 20)


def run(denoiser, grid, label=None):
    return Sampling(denoiser, grid, Noise((40, 2), 2, F64), label).run()


def student_of(teacher, grid, rounds):
    """The perfect student of so many rounds, and its levels."""
    for _ in range(rounds):
        teacher, grid = TwoStepTeacher(teacher, grid), halve_grid(grid)
    return teacher, grid


@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("grid", [GRID, flow_grid(24), GRID + 0.5], ids=["edm", "flow", "not to 0"])
def test_a_perfect_student_draws_what_its_teacher_draws(rounds, grid):
    """Whatever the teacher and its levels: with half, a quarter, an eighth of the steps, to rounding."""
    student, levels = student_of(TWO, grid, rounds)
    assert len(levels) - 1 == (len(grid) - 1) / 2**rounds
    torch.testing.assert_close(run(student, levels), run(TWO, grid))
    label, guided = torch.arange(40) % 2, ClassifierFreeGuidance(TWO, 2.0, TWO.null)
    torch.testing.assert_close(run(*student_of(guided, grid, rounds), label), run(guided, grid, label))


def test_a_student_of_one_step_in_closed_form():
    """A Gaussian's denoiser is linear, so each step of DDIM shrinks a point's distance from the mean by a known share.

    One step takes x - μ to (x - μ)·(r + (1 - r)·s²/(s² + σ²)), with r = σ'/σ; to 0, r is 0.
    """
    student, grid = student_of(GAUSSIAN, GRID, 3)
    assert len(grid) == 2
    s2, levels = 0.7**2, GRID.tolist()
    shares = [low / high + (1 - low / high) * s2 / (s2 + high**2) for high, low in pairwise(levels)]
    x = 20 * Noise((40, 2), 5, F64).draw(0)
    answer = student(x, grid[:1].expand(40))
    torch.testing.assert_close(answer - GAUSSIAN.means, math.prod(shares) * (x - GAUSSIAN.means))


def test_students_of_more_steps_come_to_the_path_itself():
    """The ODE takes x - μ to (x - μ)·s/√(s² + σ²); DDIM, and so its student of one step, is of first order."""
    x = 20 * Noise((40, 2), 5, F64).draw(0)
    end = GAUSSIAN.means + (x - GAUSSIAN.means) * 0.7 / math.sqrt(0.7**2 + 20**2)
    off = []
    for rounds in (6, 7):
        student, grid = student_of(GAUSSIAN, edm_grid(2**rounds, 1e-3, 20), rounds)
        off.append(float((student(x, grid[:1].expand(40)) - end).abs().max()))
    assert math.log2(off[0] / off[1]) == pytest.approx(1, abs=0.1)


def test_levels_of_one_batch_may_differ():
    levels = halve_grid(GRID)[:-1]
    x, sigma = Noise((4, 2), 1, F64).draw(0) * 3, levels[[2, 0, 3, 1]]
    student = TwoStepTeacher(TWO, GRID)
    alone = torch.cat([student(x[i : i + 1], sigma[i : i + 1]) for i in range(4)])
    torch.testing.assert_close(student(x, sigma), alone)


class Linear(nn.Module):
    """A network that answers a + b·x at each of a few levels: what a student of a linear teacher has to be."""

    def __init__(self, levels):
        super().__init__()
        self.levels = levels
        self.shift, self.scale = nn.Parameter(torch.zeros(len(levels), 2)), nn.Parameter(torch.zeros(len(levels), 1))

    def forward(self, x, noise, label):
        at = ((4 * noise).exp()[:, None] - self.levels).abs().argmin(1)
        return self.shift[at] + self.scale[at] * x


def fresh(grid):
    """A linear student that has learned nothing yet, for half the steps of a teacher's levels."""
    return Preconditioned(Linear(halve_grid(grid)[:-1]), "v").double()


def test_a_trained_student_of_a_linear_teacher_is_the_one_in_closed_form():
    """No noise is in the target, so that gradient descent comes as near as its last steps are small."""
    grid = edm_grid(4, 0.2, 5)
    images, labels = GAUSSIAN.sample(500, torch.Generator().manual_seed(0))
    student = fresh(grid)
    losses = [
        loss for _, loss in distil(GAUSSIAN, student, grid, images, labels, steps=200, batch=32, rate=0.05, drop=0.0)
    ]
    assert losses[-1] < 1e-5 * losses[0]
    x = 5 * Noise((40, 2), 1, F64).draw(0)
    for sigma in halve_grid(grid)[:-1]:
        level = sigma.expand(40)
        torch.testing.assert_close(student(x, level), TwoStepTeacher(GAUSSIAN, grid)(x, level), rtol=0, atol=0.01)
    torch.testing.assert_close(run(student, halve_grid(grid)), run(GAUSSIAN, grid), rtol=0, atol=0.01)
    assert not torch.allclose(student(x, level), GAUSSIAN(x, level), atol=0.1)  # who steps far must not denoise


def test_a_run_is_decided_by_its_seed():
    images, labels = TWO.sample(50, torch.Generator().manual_seed(0))

    def losses(seed):
        return [loss for _, loss in distil(TWO, fresh(GRID), GRID, images, labels, steps=3, seed=seed)]

    assert losses(0) == losses(0) != losses(1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: halve_grid(GRID[:-1]), "steps cannot be halved: got 7, expected an even number"),
        (lambda: TwoStepTeacher(TWO, GRID[:2]), "steps cannot be halved: got 1"),
        (lambda: halve_grid(GRID.flip(0)), "not levels to walk down"),
        (
            lambda: TwoStepTeacher(TWO, GRID)(torch.zeros(2, 2), GRID[:2]),
            f"no step of the student begins at that level: got {float(GRID[1]):.4g}",
        ),
        (lambda: distil(TWO, None, GRID[1:], None, None, steps=1), "steps cannot be halved: got 7"),
        (
            lambda: next(distil(TWO, fresh(GRID), GRID, torch.zeros(3, 2), torch.zeros(2).long(), steps=1)),
            "images and labels do not fit: got 3 and 2, expected as many",
        ),
    ],
)
def test_bad_input_is_one_line(wrong, said):
    with pytest.raises(InputError) as caught:
        wrong()
    assert said in str(caught.value) and "\n" not in str(caught.value)
