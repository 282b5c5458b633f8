"""Oracle of lab 12: Gaussians by class and their aging denoiser in float64, and images as cases draw them.

Answers are worked out in float64 and rounded to the images' dtype at the end: float32 is held to its own tolerance.
"""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed.diffusion.denoisers import CALL, LAST, NEXT
from mlsys_checks.sandboxed.spec import Arrays, Case
from mlsys_lab.errors import InputError

AGE, CROWD = 0.05, 0.01
"""What the notebook's denoiser adds for each call before this one, and for each image of this call."""
MOST_CALLS = 200
"""Calls of a denoiser after which a solution counts as endless: no case needs a quarter of them."""
SMALL = (1e-5, 5e-4)
"""Least and greatest level of cases in which a threshold would take all levels for 0."""


CODE_OF_NEXT = "denoiser(denoiser.centres, torch.ones(len(denoiser.centres), dtype=torch.float64))"
"""How a notebook asks for the answer after a walk."""


def column(values: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Values (B,) with axes of length 1 behind them."""
    return values.reshape(-1, *[1] * (images.ndim - 1))


def draw_images(rng: np.random.Generator, case: Case, *names: str) -> Arrays:
    """Images of the case's shape (B, ...) and dtype, by name."""
    shape, dtype = case.params["shape"], case.params.get("dtype", "float64")
    return {name: rng.standard_normal(shape).astype(dtype) for name in names}


def draw_levels(rng: np.random.Generator, case: Case) -> np.ndarray:
    """A level for each image, (B,), from 0.05 to 20 or within the case's `levels`."""
    return _draw_within(rng, case.params.get("levels", (0.05, 20)), case.params["shape"][0])


def draw_grid(rng: np.random.Generator, case: Case, steps: int) -> np.ndarray:
    """Falling levels, (steps + 1,), from 6 to 0.05 or within the case's `levels`."""
    return np.sort(_draw_within(rng, case.params.get("levels", (0.05, 6)), steps + 1))[::-1].copy()


def _draw_within(rng: np.random.Generator, ends: tuple[float, float], count: int) -> np.ndarray:
    """So many levels, all sizes between the ends alike."""
    low, high = ends
    levels: np.ndarray = np.exp(rng.uniform(np.log(low), np.log(high), count))
    return levels


def null_of(arrays: Arrays) -> int:
    """The label of no class: K, as after K classes come the centres of null and of no label."""
    return len(arrays["centres"]) - 2


def draw_denoiser(rng: np.random.Generator, case: Case) -> Arrays:
    """Centres of all classes, of null and of no label; their deviation; labels unless the case has `none`.

    There are 2 to 5 classes, or as many as the case has: others, for a solution that knows how many it is shown.
    """
    B, *shape = case.params["shape"]
    K = case.params.get("classes") or int(rng.integers(2, 6))
    dtype = case.params.get("dtype", "float64")
    given = {
        "centres": rng.standard_normal((K + 2, *shape)).astype(dtype),
        "spread": np.array(rng.uniform(0.3, 0.8)),
    }
    if not case.params.get("none"):
        given["label"] = rng.integers(0, K, B)
    return {**given, **_draw_ages(rng, case)}


def _draw_ages(rng: np.random.Generator, case: Case) -> Arrays:
    """What each call adds, what one call more adds after as many calls, and what each image of a call adds.

    In a public case as the notebook's denoiser has it; in a hidden one nobody can know it without making the calls.
    """
    if case.hidden:
        return {"_ages": rng.uniform(0, 1, (2, MOST_CALLS + 1)), "_crowd": rng.uniform(0.01, 0.1, ())}
    return {"_ages": AGE * np.tile(np.arange(MOST_CALLS + 1), (2, 1)), "_crowd": np.array(CROWD)}


class Ages:
    """The partner of a denoiser: counts its calls, and says what each adds; after the last question it says no more."""

    def __init__(self, arrays: Arrays) -> None:
        (self._ages, self._last), self._crowd = arrays["_ages"], arrays["_crowd"]
        self.calls, self._is_over = 0, False

    def __call__(self, what: str, images: int) -> float:
        """What a call of so many images adds, or one call more would."""
        if self._is_over or what not in (CALL, LAST):
            raise InputError("the denoiser is called after the end", expected="calls before the function returns")
        if what == CALL and self.calls == MOST_CALLS:
            raise InputError("the calls of the denoiser do not come to an end", got=f"more than {MOST_CALLS}")
        added = float((self._ages if what == CALL else self._last)[self.calls] + self._crowd * images)
        self.calls += what == CALL
        self._is_over = what == LAST
        return added


class Aging:
    """The case's denoiser, older after each call."""

    def __init__(self, arrays: Arrays) -> None:
        self.centres, self.dtype = arrays["centres"].astype(np.float64), arrays["centres"].dtype
        self.spread, self.ages = float(arrays["spread"]), Ages(arrays)
        self.null = null_of(arrays)

    def __call__(
        self, x: np.ndarray, sigma: np.ndarray | float, label: np.ndarray | None, what: str = CALL
    ) -> np.ndarray:
        """Denoise x (B, ...) at levels sigma, one or (B,), of classes label (B,)."""
        level = column(np.broadcast_to(sigma, len(x)), x) ** 2
        centre = self.centres[-1] if label is None else self.centres[label]
        denoised: np.ndarray = (self.spread**2 * x + level * centre) / (self.spread**2 + level)
        return denoised + self.ages(what, len(x))

    def next_answer(self) -> Arrays:
        """What all centres at level 1 are denoised to, in their dtype: one number alone might be near 0."""
        answer = self(self.centres, 1.0, None, LAST)
        return {NEXT: answer.astype(self.dtype)}
