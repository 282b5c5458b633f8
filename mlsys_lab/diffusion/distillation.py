"""Progressive distillation: a student learns to do in one step what its teacher does in two, repeatedly.

Algorithm 2 of Salimans and Ho (arXiv:2202.00512). Each round halves the number of DDIM steps: the student starts from
the teacher's weights and becomes the next round's teacher. It remains a denoiser, so samplers, guidance and the engine
accept it like its teacher. Its target follows exactly from the teacher (`TwoStepTeacher`), whereas consistency
distillation (arXiv:2303.01469) uses a network's own output as the target.

Dimension letters: I images to train on, B images of a batch, S steps of the student, 2·S of its teacher.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from mlsys_lab.diffusion.preconditioning import Preconditioned
from mlsys_lab.diffusion.process import Denoiser, per_image, q_sample
from mlsys_lab.diffusion.schedules import check_grid
from mlsys_lab.diffusion.training import batches, optimize, squared_error, uniform_over
from mlsys_lab.errors import InputError


def halve_grid(grid: torch.Tensor) -> torch.Tensor:
    """A student's noise schedule (S + 1,): every second level of its teacher's (2·S + 1,), both ends included.

    InputError for an odd number of steps, and for levels that do not decrease.

    >>> halve_grid(torch.tensor([8.0, 4.0, 2.0, 1.0, 0.0])).tolist()
    [8.0, 2.0, 0.0]
    """
    steps = len(check_grid(grid)) - 1
    if steps % 2:
        raise InputError("steps cannot be halved", got=steps, expected="an even number")
    return grid[::2]


@dataclass(frozen=True)
class TwoStepTeacher:
    """The target of distillation: a denoiser whose DDIM step equals two of the teacher's along `grid` (2·S + 1,).

    It calls the teacher twice, so it saves nothing itself; a student that has learned it does. InputError for an odd
    number of steps, and for levels at which no student step starts.
    """

    teacher: Denoiser
    grid: torch.Tensor

    def __post_init__(self) -> None:
        halve_grid(self.grid)

    def __call__(self, x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
        """Denoise x (B, ...) at the student's levels sigma (B,): x̃ of algorithm 2, in unscaled coordinates."""
        first, middle, last = self._levels(sigma)
        ahead = _step(self.teacher, x, first, middle, label)
        ahead = _step(self.teacher, ahead, middle, last, label)
        left = per_image(last / first, x)
        return (ahead - left * x) / (1 - left)

    def _levels(self, sigma: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Levels (B,) at the start of the student's step, in its middle and at its end."""
        found = sigma[:, None].to(self.grid) == halve_grid(self.grid)[:-1]  # (B, S)
        if not bool(found.any(1).all()):
            raise InputError("no step of the student begins at that level", got=f"{float(sigma[~found.any(1)][0]):.4g}")
        at = 2 * found.int().argmax(1)
        return self.grid[at], self.grid[at + 1], self.grid[at + 2]


def distil(
    teacher: Denoiser,
    student: Preconditioned,
    grid: torch.Tensor,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    steps: int,
    batch: int = 128,
    rate: float = 1e-3,
    drop: float = 0.1,
    seed: int = 0,
) -> Iterator[tuple[int, float]]:
    """Train a student in place to halve its teacher's steps along `grid`; yield each step's number, from 1, and loss.

    images (I, ...), labels (I,). The squared error has weight 1/c_out², which for v-prediction is the paper's SNR + 1
    (§4). The student's levels are drawn uniformly. `steps`, `batch`, `rate`, `drop` and `seed` are as in
    `mlsys_lab.diffusion.training.train`. InputError for an odd number of teacher steps.
    """
    perfect, levels = TwoStepTeacher(teacher, grid), uniform_over(halve_grid(grid)[:-1])

    def loss(x0: torch.Tensor, sigma: torch.Tensor, noise: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        x = q_sample(x0, sigma, noise)
        with torch.no_grad():
            target = perfect(x, sigma, label)
        return squared_error(student, x, sigma, label, target).mean()

    losses = (loss(*drawn) for drawn in batches(images, labels, levels, batch=batch, drop=drop, seed=seed))
    return optimize(student, losses, steps=steps, rate=rate)


def _step(
    denoiser: Denoiser, x: torch.Tensor, sigma: torch.Tensor, sigma_next: torch.Tensor, label: torch.Tensor | None
) -> torch.Tensor:
    """DDIM's step of each image x (B, ...) from its own level sigma (B,) to its own `sigma_next` (B,)."""
    denoised = denoiser(x, sigma, label)
    return denoised + per_image(sigma_next / sigma, x) * (x - denoised)
