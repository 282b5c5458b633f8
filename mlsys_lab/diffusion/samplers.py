"""Samplers: one step from a noise level to the next, as a generator that yields what to denoise.

`advance` yields (x, sigma) whenever it needs a denoised image, is sent it, and returns the next state. The caller
chooses how to denoise: one network for one batch (`mlsys_lab.diffusion.sampling`), or an engine that batches the calls
of many requests at different steps and with different samplers.

In unscaled coordinates, x = x₀ + σ·n, three names are one formula: Euler's step of the probability-flow ODE, DDIM with
η = 0 (arXiv:2010.02502, §4.3), and Euler's step of a rectified flow all continue along the line through the predicted
x₀ and noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from mlsys_lab.diffusion.process import posterior, score, slope
from mlsys_lab.errors import InputError, did_you_mean

MAX_CHURN = math.sqrt(2) - 1
"""Largest fraction by which a level may be raised before a step (EDM, algorithm 2)."""


class State(NamedTuple):
    """State of a run: images x (B, ...), and the last denoised images with their level."""

    x: torch.Tensor
    denoised: torch.Tensor
    sigma: float

    @classmethod
    def begin(cls, x: torch.Tensor) -> State:
        """Initial state of images x (B, ...): nothing denoised, at level infinity."""
        return cls(x, x, math.inf)


StepGenerator = Generator[tuple[torch.Tensor, float], torch.Tensor, State]
"""A step in progress: yields (x, sigma), is sent the denoised images, returns the next state."""
NoiseSource = Callable[[], torch.Tensor]
"""Draws the step's standard normal noise in the shape of x."""


class Sampler(Protocol):
    """A method to step from one noise level to the next."""

    def advance(self, state: State, sigma: float, sigma_next: float, draw: NoiseSource) -> StepGenerator:
        """Step from level `sigma` to `sigma_next`, which may be 0."""
        ...

    def evaluations(self, steps: int) -> int:
        """Function evaluations (NFE) of a run of `steps` steps down to 0."""
        ...


@dataclass(frozen=True)
class DDIM:
    """DDIM with `eta` in [0, 1]: 0 is Euler's step of the ODE, 1 DDPM's ancestral step (arXiv:2010.02502, eq. 12)."""

    eta: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.eta <= 1:
            raise InputError("eta out of range", got=self.eta, expected="0 (no noise) to 1 (DDPM)")

    def advance(self, state: State, sigma: float, sigma_next: float, draw: NoiseSource) -> StepGenerator:
        """Step to `sigma_next` along the predicted noise, part of which is replaced by fresh noise."""
        denoised = yield state.x, sigma
        x, deviation = posterior(denoised, state.x, sigma, sigma_next, self.eta)
        return State(x + deviation * draw() if deviation else x, denoised, sigma)

    def evaluations(self, steps: int) -> int:
        return steps


@dataclass(frozen=True)
class SDE:
    """The reverse SDE by Euler-Maruyama in σ² (Song et al., arXiv:2011.13456, eq. 47)."""

    def advance(self, state: State, sigma: float, sigma_next: float, draw: NoiseSource) -> StepGenerator:
        """Step by the score times σ² - σ'², with fresh noise of that variance; the last step, to 0, adds none."""
        denoised = yield state.x, sigma
        removed = sigma**2 - sigma_next**2
        x = state.x + removed * score(denoised, state.x, sigma)
        return State(x + math.sqrt(removed) * draw() if sigma_next else x, denoised, sigma)

    def evaluations(self, steps: int) -> int:
        return steps


@dataclass(frozen=True)
class Heun:
    """Heun's second-order method on the ODE, with EDM's churn (arXiv:2206.00364, algorithms 1 and 2).

    `churn` is γ, S_churn over the number of steps, at most √2 - 1: for levels from `churn_min` to `churn_max`, noise
    raises the level by that fraction before the step; `churn_noise` is the noise's standard deviation, S_noise.
    """

    churn: float = 0.0
    churn_min: float = 0.0
    churn_max: float = math.inf
    churn_noise: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.churn <= MAX_CHURN:
            raise InputError("churn out of range", got=self.churn, expected=f"0 to √2 - 1 = {MAX_CHURN:.3f}")

    def advance(self, state: State, sigma: float, sigma_next: float, draw: NoiseSource) -> StepGenerator:
        """Step along the mean of the slopes here and where Euler's step ends; to 0, along the first alone."""
        x = state.x
        if self.churn and self.churn_min <= sigma <= self.churn_max:
            raised = sigma * (1 + self.churn)
            x = x + math.sqrt(raised**2 - sigma**2) * self.churn_noise * draw()
            sigma = raised
        denoised = yield x, sigma
        first = slope(denoised, x, sigma)
        ahead = x + (sigma_next - sigma) * first
        if not sigma_next:
            return State(ahead, denoised, sigma)
        second = slope((yield ahead, sigma_next), ahead, sigma_next)
        return State(x + (sigma_next - sigma) * (first + second) / 2, denoised, sigma)

    def evaluations(self, steps: int) -> int:
        """Two evaluations per step, one for the last."""
        return 2 * steps - 1


@dataclass(frozen=True)
class DPMSolver:
    """DPM-Solver++ (2M): second order with one evaluation per step, reusing the previous one (arXiv:2211.01095, alg.
    2).
    """

    def advance(self, state: State, sigma: float, sigma_next: float, draw: NoiseSource) -> StepGenerator:
        """Step by an estimate extrapolated in -ln σ; the first step and the last, to 0, are of first order."""
        denoised = yield state.x, sigma
        estimate = denoised
        if sigma_next and state.sigma < math.inf:
            ratio = math.log(state.sigma / sigma) / math.log(sigma / sigma_next)
            estimate = denoised + (denoised - state.denoised) / (2 * ratio)
        left = sigma_next / sigma
        return State(left * state.x + (1 - left) * estimate, denoised, sigma)

    def evaluations(self, steps: int) -> int:
        return steps


SAMPLERS: dict[str, Sampler] = {
    "ddpm": DDIM(eta=1),
    "ddim": DDIM(),
    "euler": DDIM(),
    "sde": SDE(),
    "heun": Heun(),
    "churn": Heun(churn=MAX_CHURN / 2, churn_min=0.05, churn_max=50, churn_noise=1.003),
    "dpm++": DPMSolver(),
}
"""Samplers by name; "churn" has the range of EDM's table 5 for ImageNet."""


def find_sampler(name: str) -> Sampler:
    """Look up a sampler by name; InputError, with the known names, for an unknown one."""
    if name not in SAMPLERS:
        known = ", ".join(SAMPLERS)
        raise InputError(
            "unknown sampler", got=repr(name), expected=f"one of {known}", help=did_you_mean(name, SAMPLERS)
        )
    return SAMPLERS[name]
