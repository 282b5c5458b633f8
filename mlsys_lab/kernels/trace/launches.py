"""Recording a launch of a kernel from a learner's module; errors name the line as the learner finds it."""

from __future__ import annotations

import inspect
import linecache
import re
from typing import Any

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.trace.events import Site, Trace
from mlsys_lab.kernels.trace.numba_functions import python_function
from mlsys_lab.kernels.trace.numba_simulator import record
from mlsys_lab.kernels.trace.places import in_cell

Extent = int | tuple[int, int]


def parameters_of(artifact: Any, kernel: str) -> list[str]:
    """Names of a kernel's parameters; InputError for a plain function."""
    found = getattr(artifact, kernel)
    if inspect.isfunction(found):
        raise InputError(f"`{kernel}` is no kernel", got="a plain function", expected="`@cuda.jit` above its `def`")
    return list(inspect.signature(python_function(found)).parameters)


def recorded(artifact: Any, kernel: str, grid: Extent, block: Extent, *args: Any, outputs: tuple[str, ...]) -> Trace:
    """The trace of one launch, as of `record`. Raises `InputError` that begins with the line at which it stopped."""
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
