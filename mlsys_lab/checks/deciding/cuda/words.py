"""What lab 03 says of a launch: values first, then what is wrong with memory, then what it costs too much of.

A check's `expect` gives the values, and beside them limits: the most that may be counted of a figure, under its name
and `MOST`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mlsys_lab.checks.deciding.compare import close
from mlsys_lab.checks.deciding.traced import first_nan, not_shared, scattered
from mlsys_lab.checks.learner.spec import Arrays, Mismatch
from mlsys_lab.kernels.trace.findings import text_of

MOST = "at most: "
"""Names of limits begin so."""
WRITES = "writes of "
"""So do the counts of what is stored to an array."""
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


def limits(**most: int) -> Arrays:
    """Limits on figures; underscores in their names stand for spaces."""
    return {f"{MOST}{name.replace('_', ' ')}": np.array(count) for name, count in most.items()}


def agree(got: Arrays, expected: Arrays) -> Mismatch | None:
    """None for right values from a launch that does nothing wrong and keeps to the limits, else what is first."""
    values = {name: want for name, want in expected.items() if not name.startswith(MOST)}
    answers = {name: got[name] for name in values if name in got}
    if (differs := first_nan(answers, values)) is not None:
        differs = replace(differs, what=f"{differs.what} (memory holds no number before one is stored there)")
    differs = differs or close(answers, values)
    wrong = _wrong(got)
    if differs and wrong:
        both = zip((differs.got, differs.expected), (wrong.got, wrong.expected), strict=True)
        return Mismatch(f"{differs.what}, and {wrong.what}", *("\n".join(said) for said in both))
    most = {name: int(count) for name, count in expected.items() if name.startswith(MOST)}
    if any(name.startswith(f"{MOST}{WRITES}") for name in most):  # what is not named is not to be changed
        stored = (name for name in got if name.startswith(WRITES) and not name.endswith(" at"))
        most |= {f"{MOST}{name}": 0 for name in stored if f"{MOST}{name}" not in most}
    return differs or wrong or next(filter(None, (_too_much(got, name, count) for name, count in most.items())), None)


def _wrong(got: Arrays) -> Mismatch | None:
    """The first kind of wrong that was seen."""
    for name, (what, expected) in WRONG.items():
        if got[name].size:
            return Mismatch(what, text_of(got[name]), expected)
    return None


def _too_much(got: Arrays, limit: str, most: int) -> Mismatch | None:
    name = limit.removeprefix(MOST)
    count = int(got[name])
    if count <= most:
        return None
    at = text_of(got[f"{name.removesuffix(' over')} at"])
    if name == "sectors over":
        return scattered(at, most)
    if name == "passes over":
        return Mismatch("lanes of a warp want different words of one bank", at, "one pass a request")
    if name.endswith("of a thread"):
        return not_shared(at, name.split()[0], count, most)
    if name == "shared requests of a block":
        told = f"{count:,} requests of a block's warps to shared memory"
        return Mismatch("too many warps take part in the tree", told, f"at most {most:,}")
    does, array = name.split(" of ")
    return Mismatch(f"more {does} of `{array}` than it takes", f"{count:,} {does}: {at}", f"at most {most:,}")
