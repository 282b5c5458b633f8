"""Calls of task 6: a campaign on a cluster that is not here. What goes in are runs, what comes out are requests."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlsys_lab.checks.learner.scaling_laws.common import columns, number, numbers
from mlsys_lab.checks.learner.spec import Arrays

REQUEST = ("n_params", "tokens", "learning_rate")


def _trials(artifact: Any, arrays: Arrays) -> Any:
    return artifact.Trials(*(arrays[name] for name in (*REQUEST, "loss")))


def best_rate(artifact: Any, arrays: Arrays) -> Arrays:
    """The learner's learning rate for each of some sizes."""
    trials = _trials(artifact, arrays)
    rates = [number("the learning rate", artifact.best_learning_rate(trials, n)) for n in arrays["sizes"].tolist()]
    return {"rate": np.array(rates)}


def scout(artifact: Any, arrays: Arrays) -> Arrays:
    """The first round."""
    return columns("scout", artifact.scout(float(arrays["budget_flops"])), *REQUEST)


def sweep(artifact: Any, arrays: Arrays) -> Arrays:
    """The second round, after the judge's first."""
    return columns("sweep", artifact.sweep(_trials(artifact, arrays), float(arrays["left_flops"])), *REQUEST)


def decide(artifact: Any, arrays: Arrays) -> Arrays:
    """Parameters, tokens and the loss predicted for them."""
    got = artifact.decide(_trials(artifact, arrays), float(arrays["target_flops"]))
    return numbers("decide", got, "n_params", "tokens", "loss")
