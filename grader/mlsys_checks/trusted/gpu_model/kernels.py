"""Cases of lab 02's two kernels. Oracle: NumPy; limits: what has to be moved, and what a warp's lanes may do."""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed import gpu_model as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Mismatch
from mlsys_checks.sandboxed.trees import flatten, nest
from mlsys_checks.sandboxed.values import decode_text
from mlsys_checks.trusted.traced import (
    SPLIT,
    agree,
    allow_at_most,
    report_not_shared,
    report_scattered,
    report_split,
)

WARP, SECTOR_NUMBERS, ITEM = 32, 8, 4
"""Lanes; numbers of 4 bytes in a sector; bytes of a number."""
LARGEST = float(np.finfo(np.float32).max)
EXTREME = -LARGEST, -0.0, 0.0, 1e-30, LARGEST
"""Numbers at which a maximum may be computed wrongly."""
TRIVIAL = 1.0, 0.0, -1.0
"""Factors of rows that a kernel could treat apart."""


def draw_mixed(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw numbers from -1 to 1. `zeros`: many zeros at odd positions; `extreme`: numbers of any size at even ones."""
    n, terms = calls.THREADS * case.params["blocks"], case.params["terms"]
    x = rng.uniform(-1, 1, n).astype(np.float32)
    if case.params.get("zeros"):
        x[1::2] *= rng.integers(0, 2, n // 2)
    if case.params.get("extreme"):
        x[::2] = rng.choice(EXTREME, n // 2)
    return {"x": x, "c": rng.standard_normal(terms).astype(np.float32)}


def expect_mixed(arrays: Arrays) -> Arrays:
    """The result, and what a launch may do at most."""
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
    return {"y": y, **most, **flatten({calls.WARPS: {calls.LANES: 0, calls.EACH: c.size + 4, calls.ELSEWHERE: 0}})}


def draw_scaled(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw a matrix and factors. `trivial`: factors of 1, 0 and -1 among them, and zeros in the matrix."""
    rows, columns = case.params["rows"], case.params["columns"]
    x, s = rng.standard_normal((rows, columns), np.float32), rng.standard_normal(rows, np.float32)
    if case.params.get("trivial"):
        s[: len(TRIVIAL)] = TRIVIAL[:rows]
        x *= rng.integers(0, 2, x.shape)
    return {"x": x, "s": s}


def expect_scaled(arrays: Arrays) -> Arrays:
    """The result, and what a launch may do at most."""
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
    over = int(columns % SECTOR_NUMBERS > 0)  # rows that do not start at sectors
    turns = -(-columns // calls.THREADS)
    requests = SPLIT * calls.THREADS // WARP * (2 * turns + 1)
    warps = {calls.SECTORS: over, calls.EACH: 2 * turns + 1, calls.REQUESTS: requests}
    return {"y": s[:, None] * x, **most, **flatten({calls.WARPS: warps})}


def compare_warps(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Values, memory and traffic as in every traced check, then what warps do."""
    others = nest(expected)
    limits = others.pop(calls.WARPS)
    if (mismatch := agree(got, flatten(others))) is not None:
        return mismatch
    warps = nest(got)[calls.WARPS]
    for name, most in limits.items():
        if (count := int(warps[name]["count"])) > most:
            return _report(name, count, int(most), decode_text(warps[name]["at"]))
    return None


def _report(name: str, count: int, most: int, at: str) -> Mismatch:
    if name == calls.LANES:
        return Mismatch("a warp diverges: some of its lanes wait for the others", at, "all 32 lanes in each request")
    if name == calls.ELSEWHERE:
        expected = f"each block stores into its own {calls.THREADS} elements"
        return Mismatch("a block stores into elements of another block", at, expected)
    if name == calls.REQUESTS:
        return report_split(at, "global", count, most)
    return report_scattered(at, most) if name == calls.SECTORS else report_not_shared(at, "global", count, most)
