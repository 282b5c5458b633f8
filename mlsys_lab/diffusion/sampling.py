"""Runs of a sampler: pure steps from noise to images, and from images back to the noise they come from.

Dimension letters: B images of a batch, S steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch

from mlsys_lab.diffusion.process import Denoiser
from mlsys_lab.diffusion.samplers import DDIM, Asking, Sampler, State
from mlsys_lab.diffusion.schedules import check_grid
from mlsys_lab.errors import InputError


@dataclass(frozen=True)
class Noise:
    """Noise of deviation 1 that depends on the seed and the step alone: a step can be taken again, or alone."""

    shape: tuple[int, ...]
    seed: int = 0
    dtype: torch.dtype = torch.float32
    device: str | torch.device = "cpu"

    def draw(self, step: int) -> torch.Tensor:
        """Noise of step 1, 2, ...; that of step 0 is what a run begins with. Drawn on the CPU, alike on all devices."""
        words = np.random.SeedSequence([self.seed, step]).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(words[0]))
        return torch.randn(self.shape, generator=generator, dtype=self.dtype).to(self.device, non_blocking=True)


@dataclass(frozen=True)
class Sampling:
    """A run from noise to images: `step(state, i)` depends on its arguments alone, for i = 0 to S - 1.

    `grid` (S + 1,) are levels as `mlsys_lab.diffusion.schedules` makes them, `label` (B,) the images' classes. The
    denoiser is called without gradients. InputError for levels that do not fall and labels of another number.
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
        """Number of steps S of a whole run."""
        return len(self.grid) - 1

    def start(self) -> State:
        """Noise of the first level, from which step 0 sets out."""
        return State.begin(float(self.grid[0]) * self.noise.draw(0))

    def ask(self, state: State, i: int) -> Asking:
        """Step i as a generator that asks for denoised images, as `Sampler.advance` says."""
        if not 0 <= i < self.steps:
            raise InputError("no such step", got=i, expected=f"0 to {self.steps - 1}")
        sigma, sigma_next = float(self.grid[i]), float(self.grid[i + 1])
        return self.sampler.advance(state, sigma, sigma_next, lambda: self.noise.draw(i + 1))

    def step(self, state: State, i: int) -> State:
        """State after step i, which goes from level `grid[i]` to `grid[i + 1]`."""
        return answer(self.ask(state, i), self.denoiser, self.label)

    def states(self) -> Iterator[State]:
        """Each state of a whole run, from the noise that it starts with."""
        state = self.start()
        yield state
        for i in range(self.steps):
            state = self.step(state, i)
            yield state

    def run(self) -> torch.Tensor:
        """Images (B, ...) at the end of a whole run."""
        *_, last = self.states()
        return last.x


@torch.no_grad()
def answer(asking: Asking, denoiser: Denoiser, label: torch.Tensor | None = None) -> State:
    """Let one denoiser answer all that a step asks; the state that the step returns."""
    x, sigma = next(asking)
    while True:
        denoised = denoiser(x, torch.full(x.shape[:1], sigma, dtype=torch.float64, device=x.device), label)
        try:
            x, sigma = asking.send(denoised)
        except StopIteration as end:
            state: State = end.value
            return state


def invert(denoiser: Denoiser, x: torch.Tensor, grid: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
    """Noise of the grid's first level from which DDIM makes images x (B, ...), up to the error of its steps.

    The ODE is walked backwards (DDIM, arXiv:2010.02502, §4.3). It begins at the lowest level above 0, of which x is
    taken to be: at 0 there is no slope.
    """
    levels = [level for level in reversed(check_grid(grid).tolist()) if level > 0]
    state = State.begin(x)
    for sigma, sigma_next in pairwise(levels):
        state = answer(DDIM().advance(state, sigma, sigma_next, lambda: x), denoiser, label)
    return state.x
