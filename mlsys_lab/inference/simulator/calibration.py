"""A clock fitted to the steps of a server: `mlsys-lab serve --trace-out` writes them, `mlsys-lab calibrate` fits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from mlsys_lab.errors import InputError
from mlsys_lab.flops.step import Part
from mlsys_lab.inference.simulator.clock import LineClock

MIN_STEPS = 20
"""Fewest steps that four coefficients are fitted to."""
OUTLIER = 3.0
"""A step that takes this many times as long as the first fit predicts has another cause, such as another process."""


class Step(NamedTuple):
    """A measured step: seconds, and (new, cached) tokens of each sequence."""

    step_s: float
    parts: list[Part]


def read_steps(path: Path) -> list[Step]:
    """Read the steps of a trace; InputError if there are too few to fit a clock to."""
    steps = []
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            fields = json.loads(line)
            if "step_s" in fields:
                steps.append(Step(float(fields["step_s"]), [(int(new), int(past)) for new, past in fields["parts"]]))
    except (OSError, ValueError, TypeError, KeyError) as problem:
        got = " ".join(f"{type(problem).__name__}: {problem}".split())
        raise InputError(f"{path} is no trace of a server", got=got, help="mlsys-lab serve --trace-out") from None
    if len(steps) < MIN_STEPS:
        raise InputError(f"{path} has too few steps", got=len(steps), expected=f"at least {MIN_STEPS}")
    return steps


def fit_clock(steps: Sequence[Step]) -> LineClock:
    """Fit a clock whose coefficients are not negative to steps, by the least sum of squared relative errors.

    Steps that took more than `OUTLIER` times as long as the first fit says are left out of the second.
    """
    features = np.array([LineClock.features(one.parts) for one in steps], dtype=float)
    seconds = np.array([one.step_s for one in steps])
    coefficients = _fit(features, seconds)
    kept = seconds < OUTLIER * (features @ coefficients)
    return LineClock(*_fit(features[kept], seconds[kept]).tolist())


def relative_errors(clock: LineClock, steps: Sequence[Step]) -> list[float]:
    """How far the clock is from each step, as a fraction of the step."""
    return [abs(clock(one.parts, 0) - one.step_s) / one.step_s for one in steps]


def _fit(features: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    weighted = features / seconds[:, None]
    scale = weighted.max(axis=0)
    scale[scale == 0] = 1  # a column of zeros has the coefficient 0
    return np.asarray(nnls(weighted / scale, np.ones(len(seconds)))[0] / scale)
