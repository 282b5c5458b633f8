"""How lab 04 launches a kernel: under the recorder, with results as arrays and blocks of given sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from mlsys_checks.sandboxed.findings import collect_findings
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_lab.kernels.trace.events import Trace
from mlsys_lab.kernels.trace.traffic import times_read, writers
from mlsys_lab.kernels.trace.triton_interpreter import record
from mlsys_lab.kernels.triton_compile import check_compiles

PROGRAMS = "program of each element"
"""The array that holds the numbers of the programs which stored a result's elements."""
READS_NAN = "elements read that are NaN"
"""The array that holds how many elements of the inputs were read which held NaN before the launch."""


def blocks(size: int, block: int) -> int:
    """How many blocks cover `size`."""
    return -(-size // block)


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(size - 1, 0).bit_length()


def tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    """The arrays of a case that are not single numbers, as tensors on the same memory."""
    return {name: torch.from_numpy(array) for name, array in arrays.items() if array.ndim}


def unwritten(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A result before the launch: NaN, or -1 where it holds integers."""
    return torch.full(shape, torch.nan if dtype.is_floating_point else -1, dtype=dtype)


def result_kind(arrays: Arrays, given: torch.dtype) -> torch.dtype:
    """The kind of number of a launch's results: float32 where the case says `wide`, else that of what it is given."""
    return torch.float32 if arrays["wide"] else given


def launch_recorded(
    artifact: Any,
    kernel: str,
    grid: int | Sequence[int],
    *args: Any,
    outputs: Mapping[str, torch.Tensor],
    writers_of: str = "",
    nan_in: Mapping[str, torch.Tensor] = MappingProxyType({}),
    **constants: Any,
) -> Arrays:
    """Launch a kernel of the learner's under the recorder: what `outputs` then hold, and what was found.

    outputs: result arrays by the names of their parameters; each comes back under that name without `_ptr`.
    writers_of: the parameter of which `PROGRAMS` is to come back, too; nan_in: inputs by the names of their parameters,
    of which `READS_NAN` is. Raises `InputError` for a kernel that runs in the interpreter but does not compile for a
    GPU.
    """
    trace = record(getattr(artifact, kernel), grid, *args, outputs=tuple(outputs), **constants)
    check_compiles(getattr(artifact, kernel), *args, **constants)
    results: dict[str, np.ndarray] = {name.removesuffix("_ptr"): value.numpy() for name, value in outputs.items()}
    if writers_of:
        results[PROGRAMS] = writers(trace, writers_of)
    if nan_in:
        results[READS_NAN] = np.array(sum(_count_nan_read(trace, *one) for one in nan_in.items()))
    return {**results, **collect_findings(trace, artifact)}


def _count_nan_read(trace: Trace, name: str, values: torch.Tensor) -> int:
    """How many elements of an input a launch read that are NaN; 0 where no parameter has that name."""
    if name not in (buffer.name for buffer in trace.buffers):
        return 0
    return int((times_read(trace, name)[torch.isnan(values).numpy()] > 0).sum())
