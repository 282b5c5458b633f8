"""Checks of traced kernels: first values, then memory faults, then memory traffic.

The sandboxed side counts (`mlsys_lab.kernels.trace.findings`). A check's `expect` adds what may be moved at most with
`allow_at_most`, and `agree` compares both. Messages shared by labs 02 and 03 are here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from mlsys_checks.sandboxed.findings import LAUNCHES
from mlsys_checks.sandboxed.spec import Arrays, Mismatch
from mlsys_checks.sandboxed.trees import Tree, flatten, nest
from mlsys_checks.sandboxed.values import decode_text
from mlsys_checks.trusted.compare import close
from mlsys_lab.kernels.trace.findings import (
    ACTOR,
    BUSIEST,
    BYTES,
    LINES,
    MOVED,
    NUMBER,
    READS,
    WIDEST,
    WRITES,
    WRONG,
)

SPLIT = 4
"""Requests into which branches may split what a warp's lanes could request at once."""
SLACK = 1.1
"""Traffic allowed as a multiple of the minimum."""
MOST = "most"
"""Branch of the expected values: limits by kernel."""
PROGRAMS = "programs"


def allow_at_most(
    kernel: str, *, reads: Mapping[str, int], writes: Mapping[str, int], busiest: int, widest: int, programs: int
) -> Arrays:
    """The minimum traffic of a launch as arrays for `agree`; none for arrays that are not named.

    reads, writes: bytes of each array; busiest: bytes that the busiest program has to move; widest: elements of the
    largest block that the task allows; programs: number of programs.
    """
    share = {PROGRAMS: programs, BYTES: busiest}
    return flatten({MOST: {kernel: {READS: reads, WRITES: writes, WIDEST: widest, BUSIEST: share}}})


def agree(got: Arrays, expected: Arrays, *, scale: float = 1.0) -> Mismatch | None:
    """None if values are right, memory has no faults and no count exceeds its limit.

    Counts are compared only if `expected` has limits. `scale` widens the tolerance of values, as in `compare.close`.
    """
    values, launches = nest(expected), nest(got).get(LAUNCHES, {})
    limits: Tree = values.pop(MOST, {})
    answers = {name: array for name, array in got.items() if name in values}
    wrong = [line for found in launches.values() for line in decode_text(found[WRONG]).splitlines()]
    if (mismatch := find_nan(answers, values) or close(answers, values, scale=scale)) is not None:
        told = f". {wrong[0]}" if wrong else ""
        return replace(mismatch, what=f"{mismatch.what}{told}")
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        expects = "no access beyond an array's end, no load of what was never stored, no race"
        return Mismatch("the values are right, but not what it does to memory", f"{wrong[0]}{more}", expects)
    exceeds = (_moves_too_much, _is_too_wide, _is_too_busy)
    tried = (one(kernel, launches[kernel], most) for kernel, most in limits.items() for one in exceeds)
    return next(filter(None, tried), None)


def find_nan(got: Arrays, values: Arrays) -> Mismatch | None:
    """The first NaN where a number is expected: the tracer returns NaN for memory never stored or out of bounds."""
    for name, want in values.items():
        if want.dtype.kind == "f" and name in got and got[name].shape == want.shape:
            missing = np.argwhere(np.isnan(got[name]) & ~np.isnan(want))
            if len(missing):
                index = tuple(missing[0].tolist())
                at = f" at [{', '.join(map(str, index))}]" if index else ""
                entries = "1 entry" if want.size == 1 else f"{want.size:,} entries"
                where = f" has {len(missing):,} NaN in {entries}, first{at}" if index else " is NaN"
                return Mismatch(f"`{name}`{where}", f"NaN{at}", f"{want[index]:.6g}{at}")
    return None


def _moves_too_much(kernel: str, found: Tree, most: Tree) -> Mismatch | None:
    """The first array that the task does not name, or with more reads or writes than needed."""
    known = dict.fromkeys([*most.get(READS, {}), *most.get(WRITES, {})])
    for way in (READS, WRITES):
        for name, ways in found[MOVED].items():
            if name not in known:
                return Mismatch(f"`{kernel}` has a parameter that the task does not name", name, ", ".join(known))
            count, least = int(ways[way][BYTES]), int(most.get(way, {}).get(name, 0))
            if count > SLACK * least:
                need = f"{least:,} bytes, or up to {SLACK:g} times that" if least else "nothing"
                many = f", {count / least:.3g} times what it has to" if least else ""
                told = f"{count:,} bytes{many}: {decode_text(ways[way][LINES])}"
                return Mismatch(f"`{kernel}` {way} too much of `{name}`", told, need)
    return None


def _is_too_wide(kernel: str, found: Tree, most: Tree) -> Mismatch | None:
    """A block larger than the task allows."""
    if found[WIDEST] <= most[WIDEST]:
        return None
    what = f"`{kernel}` works on a larger block than the task allows"
    return Mismatch(what, f"{int(found[WIDEST]):,} elements at once", f"at most {int(most[WIDEST]):,}")


def _is_too_busy(kernel: str, found: Tree, most: Tree) -> Mismatch | None:
    """A program that moves too many bytes."""
    busiest, share = found[BUSIEST], int(most[BUSIEST][BYTES])
    if busiest[BYTES] <= math.floor(SLACK * share):
        return None
    actor = decode_text(busiest[ACTOR])
    what = f"`{kernel}` does not share its work among its {int(most[BUSIEST][PROGRAMS]):,} {actor}s"
    told = f"{int(busiest[BYTES]):,} bytes moved by {actor} {int(busiest[NUMBER])} alone"
    return Mismatch(what, told, f"at most {share:,} bytes by each")


def report_scattered(at: str, most: int) -> Mismatch:
    """The problem of a warp's request to global memory with more than `most` sectors too many."""
    slack = f"at most {most} more than the least" if most else "no more than the least"
    return Mismatch("warps ask for memory that lies scattered", at, f"neighbours at neighbouring addresses: {slack}")


def report_not_shared(who: str, space: str, count: int, most: int) -> Mismatch:
    """The problem of a thread that touches memory `count` times."""
    told = f"{who} touches {space} memory {count:,} times"
    return Mismatch("one thread does what many should share", told, f"at most {most:,} times, by any thread")


def report_split(who: str, space: str, count: int, most: int) -> Mismatch:
    """The problem of a block whose warps make more than `most` requests to memory."""
    told = f"{who} make {count:,} requests to {space} memory"
    return Mismatch("warps ask for memory in many small requests", told, f"at most {most:,}, for all lanes at once")


def describe_launch(
    kernel: str,
    block: str,
    grid: Callable[[Arrays], object],
    output: str = "",
    shape: str = "",
    *,
    zeros_matter: bool = False,
) -> Callable[[Arrays], str]:
    """A check's `describe`: code that creates arrays of the case's sizes, and traces and reports the launch.

    `grid` computes the number of blocks from the arrays, which are the kernel's arguments in order, followed by
    `output`, if any; `shape` is code for its shape, in which {n} is the number n among the arrays. All arrays are
    the case's own if one has an infinity, and if zeros matter, those that contain one.
    """

    def describe(arrays: Arrays) -> str:
        given = {name: array for name, array in arrays.items() if array.dtype == np.float32}
        finite = all(np.isfinite(array).all() for array in given.values())
        exact = {name for name, one in given.items() if (one.ndim and not finite) or (zeros_matter and not one.all())}
        lines = [
            f'{name} = given["{name}"]' if name in exact else f"{name} = {_made(array)}"
            for name, array in given.items()
        ]
        lines += [f"{output} = np.empty({shape.format(**arrays)}, np.float32)"] if output else []
        arguments = [kernel, str(grid(arrays)), block, *given, *([output] if output else [])]
        fresh = f', outputs=("{output}",)' if output else ""
        return "\n".join(
            [*lines, f"trace = record({', '.join(arguments)}{fresh})", "show_table(report(trace).table())"]
        )

    return describe


def _made(array: np.ndarray) -> str:
    """Code for a number, or for an array of this shape with made-up values."""
    if array.ndim == 0:
        return f"np.float32({array:.6g})" if np.isfinite(array) else f'np.float32("{array}")'
    shape = array.shape if array.ndim > 1 else array.size
    return f"np.random.default_rng(0).standard_normal({shape}, np.float32)"
