"""Calls of tasks 6 and 7: the transpose and the matrix product."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlsys_checks.sandboxed.cuda.launches import ROWS, SIDE, TILE, blocks, launch_recorded
from mlsys_checks.sandboxed.spec import Arrays


def transpose(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `transpose` with a block for each tile: its result and what was counted."""
    x = arrays["x"]
    rows, columns = x.shape
    given = {"x": x, "y": np.empty((columns, rows), np.float32)}
    grid = (blocks(columns, TILE), blocks(rows, TILE))
    return launch_recorded(artifact, "transpose", grid, (TILE, ROWS), given, "y")


def matmul(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `matmul` with a block for each tile of the result: its result and what was counted."""
    a, b = arrays["a"], arrays["b"]
    given = {"a": a, "b": b, "c": np.empty((len(a), b.shape[1]), np.float32)}
    grid = (blocks(b.shape[1], SIDE), blocks(len(a), SIDE))
    return launch_recorded(artifact, "matmul", grid, (SIDE, SIDE), given, "c")
