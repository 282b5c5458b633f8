"""What lab 03 says of a launch: values first, then what is wrong with memory, then what it costs too much of.

A check's `expect` gives the values, and beside them `limits`: the most that may be counted of what `figures` count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from mlsys_checks.sandboxed.cuda import figures
from mlsys_checks.sandboxed.spec import Arrays, Mismatch
from mlsys_checks.sandboxed.trees import Tree, flatten, nest
from mlsys_checks.sandboxed.values import decode_text
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.traced import SPLIT, find_nan, report_not_shared, report_scattered, report_split
from mlsys_lab.kernels.trace.events import WARP

MOST = "most"
"""The branch of what is expected that holds the limits."""
WRONG = {
    "outside": ("threads touch memory outside of an array", "every access within its array"),
    "barriers": ("a barrier waits for threads that do not come", "each barrier where all threads of a block reach it"),
    "races": (
        "two threads race, and chance decides",
        "a barrier between two threads of a block that touch one element, if one of them stores to it",
    ),
    "races of blocks": (
        "two blocks race, and chance decides",
        "no element that one block stores to and another touches: no barrier orders blocks",
    ),
    "unwritten": ("memory is read that nothing has written", "each element stored to before it is read"),
}
"""What makes a kernel wrong, by the figure that holds the sentences: in words, and what is expected."""


def limits(**most: Mapping[str, int]) -> Arrays:
    """The most that may be counted, by kind (`figures.READS` and the others) and what the counts are of."""
    return flatten({MOST: most})


def each_thread(times: int, threads: int) -> dict[str, Mapping[str, int]]:
    """Limits where no thread of a block touches global memory more often: its warps ask as often, or branches split."""
    return {figures.ACCESSES: {"global": times}, figures.REQUESTS: {"global": SPLIT * times * (threads // WARP)}}


def agree(got: Arrays, expected: Arrays) -> Mismatch | None:
    """None for right values from a launch that does nothing wrong and keeps to the limits, else what is first."""
    values, found = nest(expected), nest(got)
    most: Tree = values.pop(MOST, {})
    answers, values = forgive_nan({name: got[name] for name in values if name in got}, values)
    if (differs := find_nan(answers, values)) is not None:
        differs = replace(differs, what=f"{differs.what} (memory holds no number before one is stored there)")
    differs = differs or close(answers, values)
    wrong = _first_wrong(found[figures.WRONG])
    if differs and wrong:
        both = zip((differs.got, differs.expected), (wrong.got, wrong.expected), strict=True)
        return Mismatch(f"{differs.what}, and {wrong.what}", *("\n".join(said) for said in both))
    counts = found[figures.COUNTS]
    if figures.WRITES in most:  # what is not named is not to be changed
        most[figures.WRITES] = dict.fromkeys(counts[figures.WRITES], 0) | most[figures.WRITES]
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
    if (kind, of) == (figures.OVER, "sectors"):
        return report_scattered(at, most)
    if (kind, of) == (figures.OVER, "turns"):
        return Mismatch("lanes of a warp update one element, one after the other", at, "one turn a request")
    if kind == figures.OVER:
        return Mismatch("lanes of a warp want different words of one bank", at, "one pass a request")
    if kind == figures.ACCESSES:
        return report_not_shared(at, of, count, most)
    if kind == figures.REQUESTS:
        return report_split(at, of, count, most)
    return Mismatch(f"more {kind} of `{of}` than it takes", f"{count:,} {kind}: {at}", f"at most {most:,}")
