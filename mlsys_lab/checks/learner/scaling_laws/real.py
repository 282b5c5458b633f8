"""Calls of task 7: runs that were really made."""

from __future__ import annotations

from typing import Any

from mlsys_lab.checks.learner.scaling_laws.common import columns
from mlsys_lab.checks.learner.spec import Arrays


def backtest(artifact: Any, arrays: Arrays) -> Arrays:
    """Predicted and measured losses of the runs that were put aside."""
    got = artifact.backtest(arrays["n_params"], arrays["tokens"], arrays["loss"], int(arrays["held_out"]))
    return columns("backtest", got, "predicted", "measured")
