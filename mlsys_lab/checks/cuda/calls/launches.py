"""How lab 03 launches its kernels, as each task's text says: one launch, recorded."""

from __future__ import annotations

import inspect
import linecache
import re
from types import FunctionType
from typing import Any

import numpy as np

from mlsys_lab.checks.cuda.calls.figures import figures
from mlsys_lab.checks.spec import Arrays
from mlsys_lab.errors import InputError
from mlsys_lab.kernels.trace.events import Site, Trace
from mlsys_lab.kernels.trace.numba_functions import python_function
from mlsys_lab.kernels.trace.numba_simulator import record
from mlsys_lab.kernels.trace.places import in_cell

THREADS = 128
"""Of a block, in the tasks with one dimension."""
WIDE, HIGH = 32, 4
"""A block's threads along x and y, in those with two."""
TILE, ROWS = 32, 8
"""The square that a block transposes, and the rows of threads that do it."""
SIDE = 16
"""Of the matrix product's tiles and blocks."""
Extent = int | tuple[int, int]


def blocks(elements: int, threads: int) -> int:
    """Blocks that have a thread for each element."""
    return -(-elements // threads)


def launched(
    artifact: Any, kernel: str, grid: Extent, block: Extent, given: dict[str, Any], output: str, *, fresh: bool = True
) -> Arrays:
    """What one launch left in its output, under that name, and all that was counted.

    given: the task's names of the parameters, and the arguments. `fresh`: the output's elements mean nothing before.
    """
    if isinstance(getattr(artifact, kernel), FunctionType):
        raise InputError(f"`{kernel}` is no kernel", got="a plain function", expected="`@cuda.jit` above its `def`")
    parameters = list(inspect.signature(python_function(getattr(artifact, kernel))).parameters)
    if len(parameters) != len(given):
        raise InputError(f"`{kernel}` has the wrong parameters", got=", ".join(parameters), expected=", ".join(given))
    called = dict(zip(given, parameters, strict=True))
    outputs = (called[output],) if fresh else ()
    trace = _recorded(artifact, kernel, grid, block, *given.values(), outputs=outputs)
    names = [name for name, value in given.items() if isinstance(value, np.ndarray) and value.ndim]
    return {output: given[output], **figures(trace, artifact, names)}


def _recorded(artifact: Any, kernel: str, grid: Extent, block: Extent, *args: Any, outputs: tuple[str, ...]) -> Trace:
    """The record of a launch; what stops it is told with the line as the learner finds it."""
    function = python_function(getattr(artifact, kernel))
    try:
        return record(function, grid, block, *args, outputs=outputs)
    except InputError as error:
        file = function.__code__.co_filename
        if (told := re.fullmatch(rf"{re.escape(file)}:(\d+): (.*)", error.what, re.DOTALL)) is None:
            raise
        number = int(told[1])
        site = Site(file, number, linecache.getline(file, number).strip())
        site = in_cell(site, getattr(artifact, "__loader__", None))
        raise InputError(f"{site}: {told[2]}", got=error.got, expected=error.expected or error.help or None) from None
