"""Calls of tasks 4 and 5: the moving average, the dot product and the sum by a tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlsys_checks.sandboxed.cuda.launches import THREADS, blocks, launch_recorded
from mlsys_checks.sandboxed.spec import Arrays


def smooth(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `smooth` with a thread for each element: its result and what was counted."""
    x = arrays["x"]
    given = {"x": x, "y": np.empty_like(x)}
    return launch_recorded(artifact, "smooth", blocks(x.size, THREADS), THREADS, given, "y")


def dot(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `dot` with one block: its result and what was counted."""
    given = {"a": arrays["a"], "b": arrays["b"], "out": np.empty(1, np.float32)}
    return launch_recorded(artifact, "dot", 1, THREADS, given, "out")


def block_sum(artifact: Any, arrays: Arrays) -> Arrays:
    """One launch, and the total of what its blocks found; in which block an element is added is the learner's."""
    count = int(arrays["blocks"])
    given = {"x": arrays["x"], "sums": np.empty(count, np.float32)}
    got = launch_recorded(artifact, "block_sum", count, THREADS, given, "sums")
    return {"sums.sum()": np.array(got.pop("sums").sum(dtype=np.float64), np.float32), **got}
