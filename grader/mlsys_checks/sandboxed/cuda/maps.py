"""Calls of tasks 1 and 2: a thread for each element, in one and two dimensions, and a stride over the grid."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlsys_checks.sandboxed.cuda.launches import HIGH, THREADS, WIDE, blocks, launch_recorded
from mlsys_checks.sandboxed.spec import Arrays


def relu(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `relu` with a thread for each element: its result and what was counted."""
    x = arrays["x"]
    given = {"x": x, "y": np.empty_like(x)}
    return launch_recorded(artifact, "relu", x.size // THREADS, THREADS, given, "y")


def sgd_step(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `sgd_step` with threads beyond the last element: the weights and what was counted."""
    w = arrays["w"].copy()  # which the kernel changes in place
    given = {"w": w, "g": arrays["g"], "rate": arrays["rate"][()]}
    return launch_recorded(artifact, "sgd_step", blocks(w.size, THREADS), THREADS, given, "w", fresh=False)


def causal_mask(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `causal_mask` over a square matrix: its result and what was counted."""
    scores = arrays["scores"]
    given = {"scores": scores, "masked": np.empty_like(scores)}
    return _over(artifact, "causal_mask", given, "masked")


def outer(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `outer` over the matrix that two vectors make: its result and what was counted."""
    u, v = arrays["u"], arrays["v"]
    return _over(artifact, "outer", {"u": u, "v": v, "out": np.empty((u.size, v.size), np.float32)}, "out")


def axpy(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `axpy`, whose threads may be fewer than the elements or more: its result and what was counted."""
    given = {"a": arrays["a"][()], "x": arrays["x"], "y": arrays["y"].copy()}
    return launch_recorded(artifact, "axpy", int(arrays["blocks"]), THREADS, given, "y", fresh=False)


def _over(artifact: Any, kernel: str, given: dict[str, Any], output: str) -> Arrays:
    rows, columns = given[output].shape
    return launch_recorded(artifact, kernel, (blocks(columns, WIDE), blocks(rows, HIGH)), (WIDE, HIGH), given, output)
