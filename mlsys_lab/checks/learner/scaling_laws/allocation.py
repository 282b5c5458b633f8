"""Calls of task 5: the cheapest model for a budget, and for a loss and the tokens that it will serve."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlsys_lab.checks.learner.scaling_laws.common import law, numbers
from mlsys_lab.checks.learner.spec import Arrays


def compute_optimal(artifact: Any, arrays: Arrays) -> Arrays:
    """Parameters and tokens for each of some budgets."""
    split = [
        numbers("compute_optimal", artifact.compute_optimal(law(artifact, arrays), flops), "n_params", "tokens")
        for flops in arrays["flops"].tolist()
    ]
    return {name: np.array([one[name] for one in split]) for name in ("n_params", "tokens")}


def serving_optimal(artifact: Any, arrays: Arrays) -> Arrays:
    """Parameters and tokens that reach a loss, for each of some amounts of served tokens."""
    split = [
        numbers("serving_optimal", artifact.serving_optimal(law(artifact, arrays), loss, served), "n_params", "tokens")
        for loss, served in zip(arrays["loss"].tolist(), arrays["served"].tolist(), strict=True)
    ]
    return {name: np.array([one[name] for one in split]) for name in ("n_params", "tokens")}
