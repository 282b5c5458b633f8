"""Run a sampler: from noise to images as pure steps, and from images back to noise.

Dimension letters: B images of a batch, S steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch

from mlsys_lab.diffusion.process import Denoiser
from mlsys_lab.diffusion.samplers import DDIM, Sampler, State, StepGenerator
from mlsys_lab.diffusion.schedules import check_grid
from mlsys_lab.errors import InputError


@dataclass(frozen=True)
class Noise:
    """Standard normal noise that depends on seed and step alone, so that a step can be repeated or run alone."""

    shape: tuple[int, ...]
    seed: int = 0
    dtype: torch.dtype = torch.float32
    device: str | torch.device = "cpu"

    def draw(self, step: int) -> torch.Tensor:
        """Noise of step 1, 2, ...; step 0 is the initial noise. Drawn on the CPU, so that all devices agree."""
        words = np.random.SeedSequence([self.seed, step]).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(words[0]))
        return torch.randn(self.shape, generator=generator, dtype=self.dtype).to(self.device, non_blocking=True)


@dataclass(frozen=True)
class Sampling:
    """A sampling run: `step(state, i)` depends on its arguments alone, for i = 0 to S - 1.

    `grid` (S + 1,) is a noise schedule of `mlsys_lab.diffusion.schedules`, `label` (B,) are the classes. The denoiser
    runs without gradients. InputError for levels that do not decrease and a wrong number of labels.
    """

    denoiser: Denoiser
    grid: torch.Tensor
    noise: Noise
    label: torch.Tensor | None = None
    sampler: Sampler = field(default_factory=DDIM)

    def __post_init__(self) -> None:
        check_grid(self.grid)
        if self.label is not None and self.label.shape != self.noise.shape[:1]:
            raise InputError("one label for each image", got=tuple(self.label.shape), expected=self.noise.shape[:1])

    @property
    def steps(self) -> int:
        """Number of steps S."""
        return len(self.grid) - 1

    def start(self) -> State:
        """Initial state: noise at the first level."""
        return State.begin(float(self.grid[0]) * self.noise.draw(0))

    def step_generator(self, state: State, i: int) -> StepGenerator:
        """Step i as a generator, as in `Sampler.advance`."""
        if not 0 <= i < self.steps:
            raise InputError("no such step", got=i, expected=f"0 to {self.steps - 1}")
        sigma, sigma_next = float(self.grid[i]), float(self.grid[i + 1])
        return self.sampler.advance(state, sigma, sigma_next, lambda: self.noise.draw(i + 1))

    def step(self, state: State, i: int) -> State:
        """State after step i, from level `grid[i]` to `grid[i + 1]`."""
        return run_step(self.step_generator(state, i), self.denoiser, self.label)

    def states(self) -> Iterator[State]:
        """States of the run, from the initial noise on."""
        state = self.start()
        yield state
        for i in range(self.steps):
            state = self.step(state, i)
            yield state

    def run(self) -> torch.Tensor:
        """Final images (B, ...)."""
        *_, last = self.states()
        return last.x


@torch.no_grad()
def run_step(generator: StepGenerator, denoiser: Denoiser, label: torch.Tensor | None = None) -> State:
    """Run a step with one denoiser; return the next state."""
    x, sigma = next(generator)
    while True:
        denoised = denoiser(x, torch.full(x.shape[:1], sigma, dtype=torch.float64, device=x.device), label)
        try:
            x, sigma = generator.send(denoised)
        except StopIteration as end:
            state: State = end.value
            return state


def invert(denoiser: Denoiser, x: torch.Tensor, grid: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
    """DDIM inversion: noise at the grid's first level that DDIM maps to images x (B, ...), up to discretisation error.

    Integrates the ODE backwards (DDIM, arXiv:2010.02502, §4.3), starting at the lowest level above 0, at which x is
    assumed to be: at 0 the derivative is undefined.
    """
    levels = [level for level in reversed(check_grid(grid).tolist()) if level > 0]
    state = State.begin(x)
    for sigma, sigma_next in pairwise(levels):
        state = run_step(DDIM().advance(state, sigma, sigma_next, lambda: x), denoiser, label)
    return state.x
