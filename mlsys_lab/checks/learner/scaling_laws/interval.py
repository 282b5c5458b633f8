"""Calls of task 4: the bootstrap, on statistics whose bootstrap distribution is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlsys_lab.checks.learner.scaling_laws.common import numbers
from mlsys_lab.checks.learner.spec import Arrays


def mean(x: np.ndarray) -> float:
    """The mean of a column."""
    return float(x.mean())


def median(x: np.ndarray) -> float:
    """The middle one of an odd number of rows."""
    return float(np.sort(x)[len(x) // 2])


def slope(x: np.ndarray, y: np.ndarray) -> float:
    """The slope of y on x by least squares."""
    centred = x - x.mean()
    return float(centred @ y / (centred @ centred))


def picky(x: np.ndarray) -> float:
    """The mean of a column; a column without its first row has none."""
    if not (x == 0).any():
        raise ValueError("the row that this statistic needs is missing")
    return float(x.mean())


STATISTICS: dict[str, Callable[..., float]] = {"mean": mean, "median": median, "slope": slope, "picky": picky}


def bootstrap(artifact: Any, arrays: Arrays) -> Arrays:
    """The interval of a statistic."""
    statistic = STATISTICS[str(bytes(arrays["statistic"]), "ascii")]
    given = (arrays["x"], arrays["y"]) if "y" in arrays else (arrays["x"],)
    rng = np.random.default_rng(int(arrays["seed"]))
    got = artifact.bootstrap(statistic, given, int(arrays["resamples"]), float(arrays["level"]), rng)
    return numbers("bootstrap", got, "low", "high")
