"""How lab 12's checks call levels, walks, samplers and the server: a denoiser that ages in, images out."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from mlsys_checks.sandboxed.spec import Arrays, Query
from mlsys_checks.sandboxed.values import array, number, pair
from mlsys_lab.errors import InputError


def tensors(arrays: Arrays, *names: str) -> list[torch.Tensor]:
    """Inputs as tensors on the arrays' own memory, so that changes show."""
    return [torch.from_numpy(arrays[name]) for name in names]


def label_of(arrays: Arrays) -> torch.Tensor | None:
    """The labels of a case, or None where it has none."""
    return torch.from_numpy(arrays["label"]) if "label" in arrays else None


CALL, LAST = "call", "last"
"""What a denoiser asks the judge, with the number of images: a call's age, and after the walk that of one call more."""


class Watched:
    """The case's aging denoiser, not called yet. The judge counts its calls and says what each of them adds.

    It refuses levels of a wrong shape or precision, and in the end answers that were written over.
    """

    def __init__(self, query: Query, arrays: Arrays) -> None:
        self.query, self.spread = query, float(arrays["spread"])
        self.centres = torch.from_numpy(arrays["centres"])
        self.answers: list[tuple[torch.Tensor, np.ndarray]] = []

    def __call__(self, x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
        """Denoise x (B, ...) at levels sigma (B,) of classes label (B,)."""
        if sigma.shape != x.shape[:1]:
            got, expected = tuple(sigma.shape), tuple(x.shape[:1])
            raise InputError("the denoiser is not given a level for each image", got=got, expected=expected)
        if sigma.dtype != torch.float64:
            raise InputError("the denoiser is given rounded levels", got=str(sigma.dtype), expected="torch.float64")
        denoised = self._denoise(CALL, x, sigma, label)
        self.answers.append((denoised, array("the answer", denoised.detach())))
        return denoised

    def next_answer(self) -> np.ndarray:
        """What it says of its centres at level 1: other numbers for each call before. Comes after the walk."""
        if not all(np.array_equal(answer.detach().numpy(), said, equal_nan=True) for answer, said in self.answers):
            raise InputError("an answer of the denoiser is written over", expected="the answer as it was, and a copy")
        level = torch.ones(len(self.centres), dtype=torch.float64)
        return array("next answer", self._denoise(LAST, self.centres, level, None))

    def _denoise(self, what: str, x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor | None) -> torch.Tensor:
        kept = (self.spread**2 / (self.spread**2 + sigma**2)).to(x).reshape(-1, *[1] * (x.ndim - 1))
        centre = self.centres[-1] if label is None else self.centres[label]
        return kept * x + (1 - kept) * centre + self.query(what, len(x))


OPPOSITE, ON = "x, of other images in the tensor of the call before", "x, of these from the next level on"
"""Show what a step keeps for the next: it may go on from elsewhere."""
NEXT = "what the denoiser says if called once more"
"""Shows how many calls were made, those whose answer goes nowhere too."""


def tensor(name: str, got: Any) -> np.ndarray:
    """A tensor's numbers; `InputError` for anything else, lists of numbers too."""
    if not isinstance(got, torch.Tensor):
        raise InputError(f"{name} is no tensor", got=type(got).__name__, expected="a torch.Tensor")
    return array(name, got)


def levels(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `levels`: the levels."""
    return {"levels": tensor("levels", artifact.levels(*tensors(arrays, "betas")))}


def edm_grid(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `edm_grid` twice, with the case's numbers as far as it has them: what the second call gives.

    Raises InputError where it lies in the memory of what the first one gave, which its caller may write over.
    """
    given = [float(arrays[name]) for name in ("sigma_min", "sigma_max", "rho") if name in arrays]
    grids = [artifact.edm_grid(int(arrays["steps"]), *given) for _ in range(2)]
    found = [tensor("the grid", grid) for grid in grids]
    if np.shares_memory(*(grid.numpy() for grid in grids)):
        raise InputError("edm_grid hands the same memory out twice", expected="a tensor of its own for each call")
    return {"grid": found[1]}


def q_sample(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `q_sample`: noisy images."""
    return {"x": tensor("x", artifact.q_sample(*tensors(arrays, "x0", "sigma", "noise")))}


def mixture(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `denoise_mixture`: denoised points."""
    given = tensors(arrays, "x", "sigma", "means", "weights")
    return {"denoised": tensor("denoised", artifact.denoise_mixture(*given, float(arrays["deviation"])))}


def directions(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `score` and `slope`."""
    given = tensors(arrays, "denoised", "x", "sigma")
    return {name: tensor(name, getattr(artifact, name)(*given)) for name in ("score", "slope")}


def walk_ode(artifact: Any, query: Query, arrays: Arrays) -> Arrays:
    """Call `walk_ode`: images at the end."""
    denoiser, (x, grid) = Watched(query, arrays), tensors(arrays, "x", "grid")
    end = tensor("x", artifact.walk_ode(denoiser, x, grid, label_of(arrays)))
    return {"x": end, NEXT: denoiser.next_answer()}


def walk_sde(artifact: Any, query: Query, arrays: Arrays) -> Arrays:
    """Call `walk_sde`: images at the end."""
    denoiser, (x, grid, noise) = Watched(query, arrays), tensors(arrays, "x", "grid", "noise")
    end = tensor("x", artifact.walk_sde(denoiser, x, grid, noise, label_of(arrays)))
    return {"x": end, NEXT: denoiser.next_answer()}


def posterior(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `posterior`: mean and deviation."""
    x0, x = tensors(arrays, "x0", "x")
    got = artifact.posterior(x0, x, *(float(arrays[name]) for name in ("sigma", "sigma_next", "eta")))
    mean, deviation = pair("posterior", got, "mean", "deviation")
    return {"mean": tensor("the mean", mean), "deviation": number("the deviation", deviation)}


def ddim_step(artifact: Any, query: Query, arrays: Arrays) -> Arrays:
    """Call `ddim_step`: images at the next level."""
    x, noise = tensors(arrays, "x", "noise")
    sigma, sigma_next, eta = (float(arrays[name]) for name in ("sigma", "sigma_next", "eta"))
    denoiser = Watched(query, arrays)
    end = artifact.ddim_step(denoiser, x, sigma, sigma_next, noise, eta, label_of(arrays))
    return {"x": tensor("x", end), NEXT: denoiser.next_answer()}


def heun_step(artifact: Any, query: Query, arrays: Arrays) -> Arrays:
    """Call `heun_step`: images at the next level, and those that other images in one tensor lead to."""
    (x,) = tensors(arrays, "x")
    sigma, sigma_next, label = float(arrays["sigma"]), float(arrays["sigma_next"]), label_of(arrays)
    denoiser = Watched(query, arrays)
    got = {"x": tensor("x", artifact.heun_step(denoiser, x, sigma, sigma_next, label))}
    other = 2 * x
    artifact.heun_step(denoiser, other, sigma, sigma_next, label)
    other.neg_()
    got[OPPOSITE] = tensor("x", artifact.heun_step(denoiser, other, sigma, sigma_next, label))
    if sigma_next:
        got[ON] = tensor("x", artifact.heun_step(denoiser, other, sigma_next, sigma_next / 2, label))
    return got | {NEXT: denoiser.next_answer()}


def convergence(artifact: Any, arrays: Arrays) -> Arrays:
    """Walk down one Gaussian's levels by `ddim_step` and by `heun_step`, with S and with 2S steps: the four ends."""
    x, centre = tensors(arrays, "x", "centre")
    first, last, spread = (float(arrays[name]) for name in ("first", "last", "spread"))

    def denoise(x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
        kept = spread**2 / (spread**2 + sigma[:, None] ** 2)
        return kept * x + (1 - kept) * centre

    def ddim(at: torch.Tensor, sigma: float, sigma_next: float) -> Any:
        return artifact.ddim_step(denoise, at, sigma, sigma_next, torch.ones_like(at))

    def heun(at: torch.Tensor, sigma: float, sigma_next: float) -> Any:
        return artifact.heun_step(denoise, at, sigma, sigma_next)

    answers: Arrays = {}
    steps: dict[str, Callable[..., Any]] = {"ddim": ddim, "heun": heun}
    for name, step in steps.items():
        for count in (int(arrays["steps"]), 2 * int(arrays["steps"])):
            grid = np.geomspace(first, last, count + 1).tolist()
            at = x
            for sigma, sigma_next in pairwise(grid):
                at = step(at, sigma, sigma_next)
            answers[f"{name}, {count} steps"] = tensor("x", at)
    return answers


def guide(artifact: Any, query: Query, arrays: Arrays) -> Arrays:
    """Call `guide`: guided images."""
    x, sigma, label, scale = tensors(arrays, "x", "sigma", "label", "scale")
    interval = [
        torch.from_numpy(arrays[name]) if arrays[name].ndim else float(arrays[name]) for name in ("low", "high")
    ]
    if arrays["low"].ndim == 0 and interval == [0.0, math.inf]:
        interval = []  # as it is by default
    denoiser = Watched(query, arrays)
    got = artifact.guide(denoiser, x, sigma, label, scale, len(arrays["centres"]) - 2, *interval)
    return {"denoised": tensor("denoised", got), NEXT: denoiser.next_answer()}


def serve(artifact: Any, query: Query, arrays: Arrays) -> Arrays:
    """Call `serve` for the requests of a case, of which the first may come `twice`, last too: their images."""
    grids = torch.split(torch.from_numpy(arrays["grids"]), (arrays["steps"] + 1).tolist())
    noise, label, guidance = torch.from_numpy(arrays["noise"]), arrays["label"].tolist(), arrays["guidance"].tolist()
    given = zip(noise, label, grids, guidance, strict=True)
    asked = [artifact.Request(*one, *how) for *one, how in given]
    if "twice" in arrays:
        asked[-1] = asked[0]
    denoiser = Watched(query, arrays)
    got = artifact.serve(denoiser, asked, len(arrays["centres"]) - 2, int(arrays["slots"]))
    if len(asked) != len(noise):
        raise InputError("serve changes the list of requests", got=f"{len(asked)} of {len(noise)}", expected="all")
    if not isinstance(got, list | tuple):
        raise InputError("serve gives no list", got=type(got).__name__, expected="a list of images")
    images = {f"image {i}": tensor("an image", image) for i, image in enumerate(got)}
    return images | {NEXT: denoiser.next_answer()}
