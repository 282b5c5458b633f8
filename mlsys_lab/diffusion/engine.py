"""Continuous batching for diffusion: many requests at once, each at its own step, with its own sampler and guidance.

A request is a batch of one. What its sampler wants denoised waits as (x, sigma), and every network call serves all
running requests, whatever their noise levels; a finished request frees its slot at once. Images equal those of each
request alone, up to rounding.

Dimension letters: R running requests, C channels, S size of an image.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from mlsys_lab.diffusion.guidance import denoise_guided
from mlsys_lab.diffusion.process import Denoiser
from mlsys_lab.diffusion.samplers import DDIM, Sampler, StepGenerator
from mlsys_lab.diffusion.sampling import Noise, Sampling
from mlsys_lab.diffusion.schedules import check_grid
from mlsys_lab.errors import InputError


@dataclass(frozen=True)
class Request:
    """A request for one image: class, noise schedule, seed, sampler and guidance.

    Guidance with `scale` acts on levels from `low` to `high`; scale 1 is none. InputError for levels that do not
    decrease, an empty interval, and a scale that is not a number.
    """

    label: int
    grid: torch.Tensor
    seed: int = 0
    sampler: Sampler = field(default_factory=DDIM)
    scale: float = 1.0
    low: float = 0.0
    high: float = math.inf

    def __post_init__(self) -> None:
        check_grid(self.grid)
        if not math.isfinite(self.scale) or not 0 <= self.low <= self.high:
            got = f"scale {self.scale} from {self.low} to {self.high}"
            raise InputError("guidance out of range", got=got, expected="a number, and 0 <= low <= high")

    def scale_at(self, sigma: float) -> float:
        """Guidance scale at a noise level: 1 outside the guidance interval."""
        return self.scale if self.low <= sigma <= self.high else 1.0


class _Running:
    """A running request, and the denoiser call that it waits for."""

    def __init__(self, number: int, request: Request, sampling: Sampling) -> None:
        self.number, self.request, self._sampling, self._step = number, request, sampling, 0
        self.state = sampling.start()
        self._advance()

    @property
    def ended(self) -> bool:
        """Whether all steps are done, so that `state` is final."""
        return self._step == self._sampling.steps

    def send(self, denoised: torch.Tensor) -> None:
        """Pass the denoised image (1, C, S, S) to the sampler, up to its next call or the end."""
        try:
            self.x, self.sigma = self._generator.send(denoised)
        except StopIteration as end:
            self.state = end.value
            self._step += 1
            if not self.ended:
                self._advance()

    def _advance(self) -> None:
        self._generator: StepGenerator = self._sampling.step_generator(self.state, self._step)
        self.x, self.sigma = next(self._generator)


class Engine:
    """Generate images (C, S, S) for requests with one denoiser, at most `slots` at a time.

    `shape` is (C, S, S), `null` the label of the null class, or None for a network without one: then a request with
    guidance raises InputError, and the others continue. Images are generated in `dtype` on `device`, where the denoiser
    must be; no step synchronises with a GPU.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        shape: tuple[int, ...],
        *,
        classes: int,
        null: int | None = None,
        slots: int = 8,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> None:
        if slots < 1:
            raise InputError("an engine needs slots", got=slots, expected="1 or more")
        self.denoiser, self.shape, self.classes, self.null = denoiser, shape, classes, null
        self.slots, self.dtype, self.device = slots, dtype, device
        self.calls, self.images = 0, 0  # network calls; images in them, unconditional ones included
        self._waiting: deque[tuple[int, Request]] = deque()
        self._running: list[_Running] = []
        self._submitted = 0

    def submit(self, request: Request) -> int:
        """Queue a request; return its number, 0, 1, ... InputError for an unknown class, or guidance without a null
        class.
        """
        if not 0 <= request.label < self.classes:
            raise InputError("no such class", got=request.label, expected=f"0 to {self.classes - 1}")
        if request.scale != 1 and self.null is None:
            raise InputError("guidance needs a null class", got="a network without one", help="ask with scale 1")
        self._waiting.append((self._submitted, request))
        self._submitted += 1
        return self._submitted - 1

    def step(self) -> dict[int, torch.Tensor]:
        """Serve every running request with one network call; return images (C, S, S) of those that finished."""
        while self._waiting and len(self._running) < self.slots:
            number, request = self._waiting.popleft()
            noise = Noise((1, *self.shape), request.seed, self.dtype, self.device)
            label = self._move([request.label], torch.int64)
            self._running.append(
                _Running(number, request, Sampling(self.denoiser, request.grid, noise, label, request.sampler))
            )
        if not self._running:
            return {}
        for running, denoised in zip(self._running, self._denoise(), strict=True):
            running.send(denoised[None])
        ended = {running.number: running.state.x[0] for running in self._running if running.ended}
        self._running = [running for running in self._running if not running.ended]
        return ended

    def run(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Run until the queue is empty; yield each request's number and image as it finishes."""
        while self._waiting or self._running:
            yield from self.step().items()

    @torch.no_grad()
    def _denoise(self) -> torch.Tensor:
        """Denoised images for all waiting calls, (R, C, S, S)."""
        x = torch.cat([running.x for running in self._running])
        sigma = self._move([running.sigma for running in self._running], torch.float64)
        label = self._move([running.request.label for running in self._running], torch.int64)
        scales = [running.request.scale_at(running.sigma) for running in self._running]
        guided = [number for number, scale in enumerate(scales) if scale != 1]
        self.calls += 1
        self.images += len(x) + len(guided)
        if self.null is None:
            return self.denoiser(x, sigma, label)
        scale, which = self._move(scales, self.dtype), self._move(guided, torch.int64)
        return denoise_guided(self.denoiser, x, sigma, label, scale, which, self.null)

    def _move(self, values: list[Any], dtype: torch.dtype) -> torch.Tensor:
        """Copy numbers to the device as a tensor, without synchronising."""
        return torch.tensor(values, dtype=dtype).to(self.device, non_blocking=True)
