"""Calls of task 3: the parametric form."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlsys_lab.checks.learner.scaling_laws.common import column, number
from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.errors import InputError


def objective(artifact: Any, arrays: Arrays) -> Arrays:
    """The objective and its gradient at a point."""
    given = (arrays["theta"], arrays["n_params"], arrays["tokens"], arrays["loss"], float(arrays["delta"]))
    got = artifact.objective(*given)
    if not isinstance(got, tuple) or len(got) != 2:
        raise InputError("objective gives no pair", got=type(got).__name__, expected="(value, gradient)")
    return {"value": number("the value", got[0]), "gradient": column("the gradient", got[1])}


def fit(artifact: Any, arrays: Arrays) -> Arrays:
    """The constants of the fitted law."""
    got = artifact.fit_law(arrays["n_params"], arrays["tokens"], arrays["loss"])
    names = ("E", "A", "B", "alpha", "beta")
    if not all(hasattr(got, name) for name in names):
        raise InputError("fit_law gives no Law", got=type(got).__name__, expected="Law(E, A, B, alpha, beta)")
    return {"law": np.array([number(name, getattr(got, name)) for name in names])}
