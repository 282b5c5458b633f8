"""Calls of task 1: FLOPs and least bytes of operations, and the roofline's bound. An answer is named by its call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import count, number, parts, word, write_number

OPERATIONS = ("elementwise", "softmax", "layer_norm", "matmul", "decode_attention")
"""What work is counted of; a case's array of this name has a row for each call: its sizes, then bytes an element."""
LIMITS = ("memory", "compute")


def calls_of(arrays: Arrays) -> Iterator[tuple[str, list[int], int, str]]:
    """Each call of a case: the operation, its sizes, bytes an element, and the call as code."""
    for operation in OPERATIONS:
        for *sizes, element_bytes in arrays[operation].tolist() if operation in arrays else ():
            given = ", ".join(map(str, sizes))
            yield operation, sizes, element_bytes, f"{operation}_work({given}, element_bytes={element_bytes})"


def work(artifact: Any, arrays: Arrays) -> Arrays:
    """Call the learner's counts of every operation of a case: FLOPs and bytes."""
    found = {}
    for operation, sizes, element_bytes, name in calls_of(arrays):
        function = f"{operation}_work"
        got = getattr(artifact, function)(*sizes, element_bytes=element_bytes)
        flops, size_bytes = parts(name, got, "FLOPs", "bytes")
        found[f"FLOPs of {name}"] = count(f"FLOPs of {name}", flops)
        found[f"bytes of {name}"] = count(f"bytes of {name}", size_bytes)
    return found


def bound_call(row: Iterable[float]) -> str:
    """A call of `bound` as code."""
    return f"bound({', '.join(map(write_number, row))})"


def bound(artifact: Any, arrays: Arrays) -> Arrays:
    """Intensity, least time and limit of every piece of work."""
    found: dict[str, np.ndarray] = {}
    for row in arrays["works"].tolist():
        name = bound_call(row)
        intensity, least_s, limit = parts(name, artifact.bound(*row), "intensity", "seconds", "limit")
        found[f"intensity from {name}"] = number(f"intensity from {name}", intensity)
        found[f"least seconds from {name}"] = number(f"least seconds from {name}", least_s)
        found[f"limit from {name}"] = word(f"limit from {name}", limit, LIMITS)
    return found
