"""Tasks 6 and 7: a branch between warps, and a row read side by side. Oracle: NumPy; limits: what has to be moved."""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed.gpu_model import kernels as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.sandboxed.trees import flatten, nest
from mlsys_checks.sandboxed.values import decode_text
from mlsys_checks.trusted.traced import (
    SPLIT,
    agree,
    allow_at_most,
    describe_launch,
    report_not_shared,
    report_scattered,
    report_split,
)

WARP, SECTOR_NUMBERS, ITEM = 32, 8, 4
"""Lanes; numbers of 4 bytes in a sector; bytes of a number."""
LARGEST = float(np.finfo(np.float32).max)
EXTREME = -LARGEST, -0.0, 0.0, 1e-30, LARGEST
"""Numbers at which a maximum may be worked out wrongly, or seem not worth it."""
IDLE = 1.0, 0.0, -1.0
"""Factors of rows for which somebody might do without the product."""


def _mixed_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Numbers from -1 to 1; or, where a case says so, many zeros at odd places, or numbers of any size at even ones."""
    n, terms = calls.THREADS * case.params["blocks"], case.params["terms"]
    x = rng.uniform(-1, 1, n).astype(np.float32)
    if case.params.get("zeros"):
        x[1::2] *= rng.integers(0, 2, n // 2)
    if case.params.get("extreme"):
        x[::2] = rng.choice(EXTREME, n // 2)
    return {"x": x, "c": rng.standard_normal(terms).astype(np.float32)}


def _mixed_expect(arrays: Arrays) -> Arrays:
    x, c = arrays["x"].astype(np.float64), arrays["c"]
    y = np.where(np.arange(x.size) % 2, np.polyval(c, x), np.maximum(x, 0)).astype(np.float32)
    blocks, of_c = x.size // calls.THREADS, x.size // 2 * c.size * ITEM
    most = allow_at_most(
        "mixed",
        reads={"x": x.size * ITEM, "c": of_c},
        writes={"y": x.size * ITEM},
        busiest=2 * calls.THREADS * ITEM + of_c // blocks,
        widest=calls.THREADS,
        programs=blocks,
    )
    return {"y": y, **most, **flatten({calls.WARPS: {calls.LANES: 0, calls.SHARE: c.size + 4, calls.ELSEWHERE: 0}})}


def _scaled_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    rows, columns = case.params["shape"]
    x, s = rng.standard_normal((rows, columns), np.float32), rng.standard_normal(rows, np.float32)
    if case.params.get("idle"):
        s[: len(IDLE)] = IDLE
        x *= rng.integers(0, 2, x.shape)
    return {"x": x, "s": s}


def _scaled_expect(arrays: Arrays) -> Arrays:
    x, s = arrays["x"], arrays["s"]
    rows, columns = x.shape
    most = allow_at_most(
        "scale_rows",
        reads={"x": x.nbytes, "s": rows * calls.THREADS * ITEM},
        writes={"y": x.nbytes},
        busiest=(2 * columns + calls.THREADS) * ITEM,
        widest=calls.THREADS,
        programs=rows,
    )
    over = int(columns % SECTOR_NUMBERS > 0)  # rows that do not begin at sectors
    turns = -(-columns // calls.THREADS)
    requests = SPLIT * calls.THREADS // WARP * (2 * turns + 1)
    warps = {calls.SECTORS: over, calls.SHARE: 2 * turns + 1, calls.REQUESTS: requests}
    return {"y": s[:, None] * x, **most, **flatten({calls.WARPS: warps})}


def warps_agree(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Values, memory and traffic as in every traced check, then what warps do."""
    others = nest(expected)
    limits = others.pop(calls.WARPS)
    if (mismatch := agree(got, flatten(others))) is not None:
        return mismatch
    warps = nest(got)[calls.WARPS]
    for name, most in limits.items():
        if (count := int(warps[name]["count"])) > most:
            return _too_much(name, count, int(most), decode_text(warps[name]["at"]))
    return None


def _too_much(name: str, count: int, most: int, at: str) -> Mismatch:
    if name == calls.LANES:
        return Mismatch("a warp diverges: some of its lanes wait for the others", at, "all 32 lanes in each request")
    if name == calls.ELSEWHERE:
        return Mismatch("a block takes elements of another", at, f"to each block its own {calls.THREADS}")
    if name == calls.REQUESTS:
        return report_split(at, "global", count, most)
    return report_scattered(at, most) if name == calls.SECTORS else report_not_shared(at, "global", count, most)


CHECKS = (
    Check(
        name="mixed",
        title="A branch between warps",
        points=12,
        cases=(
            Case("one block", {"blocks": 1, "terms": 5}),
            Case("two blocks", {"blocks": 2, "terms": 3}),
            Case("many terms, and zeros at odd places", {"blocks": 1, "terms": 17, "zeros": True}),
            Case("the largest numbers at even places", {"blocks": 1, "terms": 3, "extreme": True}),
            Case("three blocks", {"blocks": 3, "terms": 4}, hidden=True),
            Case("a constant", {"blocks": 2, "terms": 1}, hidden=True),
        ),
        inputs=_mixed_inputs,
        run=calls.mixed,
        describe=describe_launch(
            "mixed",
            "THREADS",
            lambda arrays: arrays["x"].size // calls.THREADS,
            "y",
            "x.size",
            zeros_matter=True,
        ),
        expect=_mixed_expect,
        compare=warps_agree,
        first_hint="Which 32 lanes are a warp, and do all of them go the same way at your `if`?",
        hint="Branch on something that is the same for all lanes of a warp, such as the number of the warp. Then "
        "choose the elements to suit: which of them are of the kind that this warp computes?",
        uses=("mixed",),
        traced=True,
    ),
    Check(
        name="scale_rows",
        title="Rows read side by side",
        points=12,
        cases=(
            Case("a row of as many numbers as threads", {"shape": (2, 128)}),
            Case("longer rows", {"shape": (2, 512)}),
            Case("rows that do not divide by the threads", {"shape": (3, 200)}),
            Case("more rows than columns", {"shape": (7, 5)}),
            Case("a long row", {"shape": (1, 4 * 1024 + 129)}),
            Case("any rows, with zeros and ones", {"shape": (3, 333), "idle": True}),
            Case("rows of whole warps, but not of as many as a block has", {"shape": (2, 160)}, hidden=True),
            Case("rows of one column", {"shape": (3, 1)}, hidden=True),
        ),
        inputs=_scaled_inputs,
        run=calls.scale_rows,
        describe=describe_launch(
            "scale_rows", "THREADS", lambda arrays: len(arrays["x"]), "y", "x.shape", zeros_matter=True
        ),
        expect=_scaled_expect,
        compare=warps_agree,
        first_hint="Write the columns that lanes 0, 1 and 2 of a warp load in one turn, and then those of the next "
        "turn.",
        hint="In each turn the block's threads stand side by side. How far is it then from one column of a thread to "
        "its next? What depends on the row alone is loaded before the loop.",
        uses=("scale_rows",),
        traced=True,
    ),
)
