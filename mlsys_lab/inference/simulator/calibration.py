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
OUTLIER = 10.0
"""A step that takes this many times as long as the fit predicts has another cause, such as a suspended machine."""
ROUNDS = 5


class Step(NamedTuple):
    """A measured step: seconds, and (new, cached) tokens of each sequence."""

    step_s: float
    parts: list[Part]


def read_steps(path: Path) -> list[Step]:
    """Read the steps of a trace; InputError if there are too few to fit a clock to."""
    steps, line = [], ""
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            fields = json.loads(line)
            if "step_s" in fields:
                steps.append(Step(float(fields["step_s"]), [(int(new), int(past)) for new, past in fields["parts"]]))
    except OSError as problem:
        raise InputError(f"{path} cannot be read", got=problem.strerror or str(problem)) from None
    except (ValueError, TypeError, KeyError):
        raise InputError(
            f"{path} is no trace of a server", got=line[:60], help="mlsys-lab serve --trace-out writes one"
        ) from None
    if len(steps) < MIN_STEPS:
        raise InputError(f"{path} has too few steps", got=len(steps), expected=f"at least {MIN_STEPS}")
    return steps


def fit_clock(steps: Sequence[Step]) -> LineClock:
    """Fit a clock whose coefficients are not negative to the mean time of steps, by weighted least squares.

    An error counts relative to the clock's own time of the step, in a few rounds: relative to the measured time, steps
    that were delayed would count too little, and the clock would be fast. Steps that took more than `OUTLIER` times as
    long as the clock says are left out.
    """
    features = np.array([LineClock.features(one.parts) for one in steps], dtype=float)
    seconds = np.array([one.step_s for one in steps])
    coefficients = _fit(features, seconds, seconds)
    for _ in range(ROUNDS):
        expected = features @ coefficients
        kept = seconds < OUTLIER * expected
        coefficients = _fit(features[kept], seconds[kept], expected[kept])
    return LineClock(*coefficients.tolist())


def relative_errors(clock: LineClock, steps: Sequence[Step]) -> list[float]:
    """How far the clock is from each step, as a fraction of the step."""
    return [abs(clock(one.parts, 0) - one.step_s) / one.step_s for one in steps]


def _fit(features: np.ndarray, seconds: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Coefficients of the least sum of squared errors, each relative to the `expected` seconds."""
    weighted = features / expected[:, None]
    scale = weighted.max(axis=0)
    scale[scale == 0] = 1  # a column of zeros has the coefficient 0
    return np.asarray(nnls(weighted / scale, seconds / expected)[0] / scale)
