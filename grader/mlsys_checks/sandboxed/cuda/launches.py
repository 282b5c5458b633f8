"""How lab 03 launches its kernels, as each task's text says: one launch, recorded."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlsys_checks.sandboxed.cuda.figures import figures
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_lab.errors import InputError
from mlsys_lab.kernels.numba_record import Extent, parameters_of, record_launch

THREADS = 128
"""Threads of a block, in the tasks with one dimension."""
WIDE, HIGH = 32, 4
"""A block's threads along x and y, in those with two."""
TILE, ROWS = 32, 8
"""The square that a block transposes, and the rows of threads that do it."""
SIDE = 16
"""Side of the matrix product's tiles and blocks."""


def blocks(elements: int, threads: int) -> int:
    """Blocks that have a thread for each element."""
    return -(-elements // threads)


def launch_recorded(
    artifact: Any, kernel: str, grid: Extent, block: Extent, given: dict[str, Any], output: str, *, fresh: bool = True
) -> Arrays:
    """What one launch left in its output, under that name, and all that was counted.

    given: the task's names of the parameters, and the arguments. `fresh`: the output's elements mean nothing before.
    """
    parameters = parameters_of(artifact, kernel)
    if len(parameters) != len(given):
        raise InputError(f"`{kernel}` has the wrong parameters", got=", ".join(parameters), expected=", ".join(given))
    if sorted(parameters) == sorted(given) and parameters != [*given]:
        raise InputError(
            f"`{kernel}` has its parameters in another order", got=", ".join(parameters), expected=", ".join(given)
        )
    called = dict(zip(given, parameters, strict=True))
    outputs = (called[output],) if fresh else ()
    trace = record_launch(artifact, kernel, grid, block, *given.values(), outputs=outputs)
    names = [name for name, value in given.items() if isinstance(value, np.ndarray) and value.ndim]
    return {output: given[output], **figures(trace, artifact, names)}
