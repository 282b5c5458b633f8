"""Calls of tasks 1 and 2: a parabola for each budget, and a power law through the minima."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlsys_lab.checks.learner.scaling_laws.common import columns, numbers
from mlsys_lab.checks.learner.spec import Arrays


def minimum(artifact: Any, arrays: Arrays) -> Arrays:
    """The best size of one budget, and the loss there."""
    return numbers("isoflop_minimum", artifact.isoflop_minimum(arrays["n_params"], arrays["loss"]), "n_opt", "loss_opt")


def refuses(artifact: Any, arrays: Arrays) -> Arrays:
    """Whether the runs of a budget are refused by a ValueError."""
    try:
        artifact.isoflop_minimum(arrays["n_params"], arrays["loss"])
    except ValueError:
        return {"refused": np.array(True)}
    except Exception as error:
        error.add_note("a ValueError, or an answer where there is a minimum")
        raise
    return {"refused": np.array(False)}


def power_law(artifact: Any, arrays: Arrays) -> Arrays:
    """Coefficient and exponent."""
    return numbers("fit_power_law", artifact.fit_power_law(arrays["x"], arrays["y"]), "coefficient", "exponent")


def minima(artifact: Any, arrays: Arrays) -> Arrays:
    """The minima of all budgets that have one, in the order of the budgets."""
    got = artifact.isoflop_minima(arrays["flops"], arrays["n_params"], arrays["loss"])
    return columns("isoflop_minima", got, "flops", "n_opt", "loss_opt")


def optimum(artifact: Any, arrays: Arrays) -> Arrays:
    """Parameters and tokens for a budget beyond the sweep."""
    given = (arrays["flops"], arrays["n_params"], arrays["loss"], float(arrays["target"]))
    return numbers("isoflop_optimum", artifact.isoflop_optimum(*given), "n_params", "tokens")
