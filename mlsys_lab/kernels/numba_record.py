"""Record a launch of a kernel from a learner's module; errors name the notebook cell and line."""

from __future__ import annotations

import inspect
import linecache
from typing import Any

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.numba_compile import check_compiles
from mlsys_lab.kernels.trace.cells import KernelError, locate_in_cell
from mlsys_lab.kernels.trace.events import Site, Trace
from mlsys_lab.kernels.trace.numba_functions import python_function
from mlsys_lab.kernels.trace.numba_simulator import record

Extent = int | tuple[int, int]


def parameters_of(artifact: Any, kernel: str) -> list[str]:
    """Names of a kernel's parameters; InputError for a plain function."""
    found = getattr(artifact, kernel)
    if inspect.isfunction(found):
        raise InputError(f"`{kernel}` is no kernel", got="a plain function", expected="`@cuda.jit` above its `def`")
    return list(inspect.signature(python_function(found)).parameters)


def record_launch(
    artifact: Any, kernel: str, grid: Extent, block: Extent, *args: Any, outputs: tuple[str, ...]
) -> Trace:
    """Record one launch of a kernel, as `record` does, and check that Numba's compiler accepts it.

    Raises InputError, starting with the source line, for an error in the kernel, or for code that only the simulator
    accepts.
    """
    function = python_function(getattr(artifact, kernel))
    try:
        trace = record(function, grid, block, *args, outputs=outputs)
    except KernelError as error:
        if error.file != function.__code__.co_filename:
            raise
        site = Site(error.file, error.line, linecache.getline(error.file, error.line).strip())
        site = locate_in_cell(site, getattr(artifact, "__loader__", None))
        raise InputError(f"{site}: {error.problem}", expected=error.help or None) from None
    check_compiles(function, *args)
    return trace
