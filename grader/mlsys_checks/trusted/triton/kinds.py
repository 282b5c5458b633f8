"""Kinds of number in lab 04's launches: results are of their inputs' own kind or, where a case says `wide`, float32.

Half precision that goes into float32 shows every number that a kernel rounds on its way, which a result in half
precision hides.
"""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays, Case


def draw_kind(case: Case) -> Arrays:
    """Whether a case's results are float32, whatever its inputs are: one of its variables."""
    return {"wide": np.array(case.params.get("wide", False))}


def result_dtype(arrays: Arrays, given: np.dtype) -> np.dtype:
    """The dtype of a launch's results, `given` that of its inputs."""
    return np.dtype(np.float32) if arrays["wide"] else given
