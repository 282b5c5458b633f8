"""Interactive figure of sampling: points move from noise to three classes, by solver, steps and guidance.

The figure reimplements `diffusion`'s samplers in JavaScript, on a mixture whose denoiser is known exactly; a test
compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import anywidget
import numpy as np
import torch
import traitlets

from mlsys_lab.diffusion.guidance import ClassifierFreeGuidance
from mlsys_lab.diffusion.mixtures import Mixture
from mlsys_lab.diffusion.samplers import find_sampler
from mlsys_lab.diffusion.sampling import Noise, Sampling
from mlsys_lab.diffusion.schedules import edm_grid
from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table

SOLVERS = {"ddim": "DDIM, Euler", "heun": "Heun", "dpm++": "DPM-Solver++ 2M", "ddpm": "DDPM"}
MAX_STEPS = 24
_CLASSES, _POINTS = 3, 24
_RADIUS, _DEVIATION = 1.2, 0.35
_SIGMA_MIN, _SIGMA_MAX = 0.02, 20.0
_SCALES = (1.0, 3.0)


def denoising_data(solver: str = "ddim", *, steps: int = 8, scale: float = 1.0) -> dict[str, Any]:
    """Data of the figure, which initially shows the end of a run of one of `SOLVERS`; `scale` 1 is no guidance.

    InputError for an unknown solver, more than `MAX_STEPS` steps, and a scale outside 0 to 6.
    """
    if solver not in SOLVERS:
        help = did_you_mean(solver, SOLVERS)
        raise InputError("no such solver in the figure", got=solver, expected=", ".join(SOLVERS), help=help)
    if steps not in range(1, MAX_STEPS + 1) or not 0 <= scale <= 6:
        got, expected = f"{steps} steps, scale {scale:g}", f"1 to {MAX_STEPS}, 0 to 6"
        raise InputError("not supported by the figure", got=got, expected=expected)
    angles = np.pi / 2 + 2 * np.pi * np.arange(_CLASSES) / _CLASSES
    return {
        "means": (_RADIUS * np.stack([np.cos(angles), np.sin(angles)], axis=1)).round(6).tolist(),
        "deviation": _DEVIATION,
        "classes": np.repeat(np.arange(_CLASSES), _POINTS).tolist(),
        "noise": [_noise(step).round(2).tolist() for step in range(MAX_STEPS + 1)],
        "sigma_min": _SIGMA_MIN,
        "sigma_max": _SIGMA_MAX,
        "solvers": [[name, words] for name, words in SOLVERS.items()],
        "solver": solver,
        "steps": steps,
        "scale": float(scale),
        "shown": steps,
    }


def _noise(step: int) -> np.ndarray:
    """Noise of a step for all points, (classes·points, 2): mean 0 and covariance 1 in each class."""
    drawn = np.random.default_rng(step).standard_normal((_CLASSES, _POINTS, 2))
    drawn -= drawn.mean(axis=1, keepdims=True)
    factors = np.linalg.cholesky(drawn.mT @ drawn / _POINTS)
    return np.asarray(np.linalg.solve(factors, drawn.mT).mT.reshape(-1, 2))


@dataclass(frozen=True)
class _FixedNoise(Noise):
    """Predetermined noise by step: (steps + 1, points, 2)."""

    steps: Sequence[Any] = ()

    def draw(self, step: int) -> torch.Tensor:
        return torch.tensor(self.steps[step], dtype=self.dtype)


def sampling_of(data: Mapping[str, Any], solver: str, steps: int, scale: float) -> Sampling:
    """The figure's run, computed by the package."""
    weights = torch.full((_CLASSES,), 1 / _CLASSES, dtype=torch.float64)
    mixture = Mixture(torch.tensor(data["means"], dtype=torch.float64), weights, data["deviation"])
    denoiser = mixture if scale == 1 else ClassifierFreeGuidance(mixture, scale, mixture.null)
    grid = edm_grid(steps, data["sigma_min"], data["sigma_max"])
    noise = _FixedNoise((_CLASSES * _POINTS, 2), dtype=torch.float64, steps=data["noise"])
    return Sampling(denoiser, grid, noise, torch.tensor(data["classes"]), find_sampler(solver))


def spread_of(data: Mapping[str, Any], points: np.ndarray, sigma: float) -> tuple[float, float]:
    """Standard deviation of points (B, 2) in their class, and distance of its mean from the true mean.

    Both are divided by the true standard deviation at noise level `sigma`: 1 and 0 are exact.
    """
    wanted = np.hypot(data["deviation"], sigma)
    own = points.reshape(_CLASSES, _POINTS, 2)
    centres = own.mean(axis=1)
    spread = np.sqrt(np.square(own - centres[:, None]).mean())
    off = np.linalg.norm(centres - np.array(data["means"]), axis=1).mean()
    return float(spread / wanted), float(off / wanted)


def denoising_table(data: Mapping[str, Any]) -> str:
    """HTML table of the classes' spread and offset by solver, steps and guidance."""
    rows = []
    for steps in (2, 4, 8, 16):
        cells = []
        for solver in SOLVERS:
            for scale in _SCALES:
                points = sampling_of(data, solver, steps, scale).run().numpy()
                spread, off = spread_of(data, points, 0.0)
                cells.append(f"{spread:.2f}, off {off:.2f}")
        rows.append((steps, *cells))
    return table(("steps", *(f"{words}, s = {scale:g}" for words in SOLVERS.values() for scale in _SCALES)), rows)


class Denoising(anywidget.AnyWidget):
    """Notebook figure of sampling three classes from noise: `Denoising.of("heun", steps=12, scale=3)`."""

    _esm = esm("denoising")
    means: traitlets.List[Any] = traitlets.List().tag(sync=True)
    deviation = traitlets.Float().tag(sync=True)
    classes: traitlets.List[Any] = traitlets.List(traitlets.Int()).tag(sync=True)
    noise: traitlets.List[Any] = traitlets.List().tag(sync=True)
    sigma_min = traitlets.Float().tag(sync=True)
    sigma_max = traitlets.Float().tag(sync=True)
    solvers: traitlets.List[Any] = traitlets.List().tag(sync=True)
    solver = traitlets.Unicode().tag(sync=True)
    steps = traitlets.Int().tag(sync=True)
    scale = traitlets.Float().tag(sync=True)
    shown = traitlets.Int().tag(sync=True)

    @classmethod
    def of(cls, solver: str = "ddim", **options: Any) -> Self:
        """Figure that initially shows a solver; `options` are keyword arguments of `denoising_data`."""
        return cls(**denoising_data(solver, **options))
