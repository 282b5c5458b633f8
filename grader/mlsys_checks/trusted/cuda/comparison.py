"""How lab 03 judges a launch: values first, then what is wrong with memory, then what it costs too much of.

A check's `expect` gives the values and, next to them, `limits`: the most that may be counted of what `figures` counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from mlsys_checks.sandboxed import cuda as calls
from mlsys_checks.sandboxed.spec import Arrays, Mismatch
from mlsys_checks.sandboxed.trees import Tree, flatten, nest
from mlsys_checks.sandboxed.values import decode_text
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.traced import SPLIT, find_nan, report_not_shared, report_scattered, report_split
from mlsys_lab.kernels.trace.events import WARP

MOST = "most"
"""The branch of the expected values that holds the limits."""
WRONG = {
    "outside": ("threads access memory outside of an array", "every access within its array: is a guard missing?"),
    "barriers": ("a barrier is not reached by all threads of a block", "each barrier outside of every branch"),
    "races": (
        "two threads race: nothing fixes the order of their accesses",
        "a barrier between two threads of a block that access one element, if one of them stores to it",
    ),
    "races of blocks": (
        "two blocks race: nothing fixes the order of their accesses",
        "no element that one block stores to and another accesses: no barrier orders blocks",
    ),
    "unwritten": ("memory is read to which nothing has been stored", "each element stored to before it is read"),
}
"""What makes a kernel wrong, by the figure that holds the sentences: in words, and what is expected."""


def limits(**most: Mapping[str, int]) -> Arrays:
    """The most that may be counted, by kind (`calls.READS` and the others) and what the counts are of."""
    return flatten({MOST: most})


def each_thread(times: int, threads: int) -> dict[str, Mapping[str, int]]:
    """Limits where no thread of a block accesses global memory more often; branches may split requests."""
    return {calls.ACCESSES: {"global": times}, calls.REQUESTS: {"global": SPLIT * times * (threads // WARP)}}


def agree(got: Arrays, expected: Arrays) -> Mismatch | None:
    """None for right values from a launch that does nothing wrong and keeps to the limits, else the first problem."""
    values, found = nest(expected), nest(got)
    most: Tree = values.pop(MOST, {})
    answers, values = forgive_nan({name: got[name] for name in values if name in got}, values)
    if (differs := find_nan(answers, values)) is not None:
        differs = replace(
            differs, what=f"{differs.what} (memory is NaN until a number is stored there; 0 · ∞ is NaN too)"
        )
    differs = differs or close(answers, values)
    wrong = _first_wrong(found[calls.WRONG])
    if differs and wrong:
        both = zip((differs.got, differs.expected), (wrong.got, wrong.expected), strict=True)
        return Mismatch(f"{differs.what}, and {wrong.what}", *("\n".join(said) for said in both))
    counts = found[calls.COUNTS]
    if calls.WRITES in most:  # an array without a limit must not be changed
        most[calls.WRITES] = dict.fromkeys(counts[calls.WRITES], 0) | most[calls.WRITES]
    tried = (
        _exceed(kind, of, counts[kind][of], int(limit)) for kind, named in most.items() for of, limit in named.items()
    )
    return differs or wrong or next(filter(None, tried), None)


def forgive_nan(got: Arrays, want: Arrays) -> tuple[Arrays, Arrays]:
    """Give both with 0 where both are NaN, which is what 0 · ∞ and ∞ − ∞ are; all else as it was."""
    cleared_got, cleared_want = dict(got), dict(want)
    for name in got.keys() & want.keys():
        if got[name].dtype.kind == "f" and got[name].shape == want[name].shape:
            both = np.isnan(got[name]) & np.isnan(want[name])
            cleared_got[name], cleared_want[name] = (
                np.where(both, 0, one[name]).astype(one[name].dtype) for one in (got, want)
            )
    return cleared_got, cleared_want


def _first_wrong(sentences: Tree) -> Mismatch | None:
    """The first kind of wrong that was seen."""
    for name, (what, expected) in WRONG.items():
        if sentences[name].size:
            return Mismatch(what, decode_text(sentences[name]), expected)
    return None


def _exceed(kind: str, of: str, found: Tree, most: int) -> Mismatch | None:
    """How a count of some kind exceeds the most that is allowed; None where it does not."""
    count, at = int(found["count"]), decode_text(found["at"])
    if count <= most:
        return None
    if (kind, of) == (calls.OVER, "sectors"):
        return report_scattered(at, most)
    if (kind, of) == (calls.OVER, "turns"):
        return Mismatch("lanes of a warp update one element, one after the other", at, "one turn a request")
    if kind == calls.OVER:
        return Mismatch("a bank conflict: lanes want different words of one bank", at, "one pass a request")
    if kind == calls.ACCESSES:
        return report_not_shared(at, of, count, most)
    if kind == calls.REQUESTS:
        return report_split(at, of, count, most)
    does, verb = ("loads", "loaded") if kind == calls.READS else ("stores", "stored to")
    wanted = f"at most {most:,} {does}" if most else f"no {does}"
    return Mismatch(f"`{of}` is {verb} more often than needed", f"{count:,} {does}: {at}", wanted)


def agree_by_tiles(got: Arrays, expected: Arrays) -> Mismatch | None:
    """None where each block computed its tile of the transpose, or was not run and left it."""
    return _agree_by_blocks(got, expected, "y", calls.TILE)


def agree_by_squares(got: Arrays, expected: Arrays) -> Mismatch | None:
    """None where each block computed its square of the product, or was not run and left it."""
    side = got.get("CPP_TILE", np.array(0))
    if side.shape != () or side.dtype.kind != "i" or side < 1:
        return Mismatch("CPP_TILE is no side of a tile", expected="a whole number from 1 on")
    return _agree_by_blocks(got, expected, "c", int(side))


def _agree_by_blocks(got: Arrays, expected: Arrays, output: str, side: int) -> Mismatch | None:
    row, column = np.indices(expected[output].shape) // side
    x, y = (row, column) if output == "y" else (column, row)
    run = calls.is_run(x, y, int(expected["skipped"]))
    want = {output: np.where(run, expected[output], expected["before"])}
    for name, when in ((output, ""), (calls.OTHER_ORDER.format(output), "with the last threads first, ")):
        found = {output: got[name]} if name in got else {}
        if (differs := close(*forgive_nan(found, want))) is not None:
            return Mismatch(f"{when}{differs.what}", differs.got, differs.expected)
    return None
