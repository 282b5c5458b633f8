"""Task 3: what two naive kernels ask of memory. Oracle: every address of every warp, listed and counted."""

from __future__ import annotations

import numpy as np

from mlsys_lab.checks.deciding.compare import close
from mlsys_lab.checks.learner.cuda import predictions as calls
from mlsys_lab.checks.learner.spec import Arrays, Case, Check

LANES, SECTOR, ITEM = 32, 32, 4
"""Threads of a warp; bytes of a sector and of a number."""
FOLD = 63
"""How many times as long the sides of large matrices are: whoever counts by running a kernel comes to no end."""
LONG = 2**24 + 1
"""As many times as long is what is summed over: counts are beyond 32 bits then, and no float32 has their digits."""


def _touched(element: np.ndarray, times: int) -> np.ndarray:
    """Sectors that so many times all requests touch; element: (requests, lanes) places in an array."""
    sector = np.sort(element * ITEM // SECTOR, axis=1)
    return np.array(times * (len(sector) + np.count_nonzero(np.diff(sector, axis=1))))


def _sizes(rng: np.random.Generator, case: Case) -> Arrays:
    (low, high), fold, long = case.params["times"], case.params.get("fold", 1), case.params.get("long", 1)
    sizes = {name: LANES * int(rng.integers(low, high)) * fold for name in ("rows", "columns", "m", "n")}
    sizes["k"] = LANES * int(rng.integers(low, high)) * long
    return {name: np.array(size) for name, size in {**sizes, "fold": fold, "long": long}.items()}


def _sectors_expect(arrays: Arrays) -> Arrays:
    """Counted for matrices of sides `fold` and `long` times shorter, of which the large ones repeat every request."""
    fold, long = int(arrays["fold"]), int(arrays["long"])
    rows, columns, m, n = (int(arrays[name]) // fold for name in ("rows", "columns", "m", "n"))
    k = int(arrays["k"]) // long
    row, column = np.divmod(np.arange(rows * columns).reshape(-1, LANES), columns)  # a warp lies along a row of x
    found = {
        "sectors of x, read by naive_transpose": _touched(row * columns + column, fold**2),
        "sectors of y, written by naive_transpose": _touched(column * rows + row, fold**2),
    }
    column, row = np.divmod(np.arange(m * n).reshape(-1, LANES), m)  # a warp lies along a column of c
    step = np.arange(k)[:, None, None]
    return found | {
        "sectors of a, read by naive_matmul": _touched((row * k + step).reshape(-1, LANES), fold**2 * long),
        "sectors of b, read by naive_matmul": _touched((step * n + column).reshape(-1, LANES), fold**2 * long),
        "sectors of c, written by naive_matmul": _touched(row * n + column, fold**2),
    }


def _loads_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    side = case.params["side"]
    sizes = {name: np.array(side * int(rng.integers(2, 6))) for name in "mn"}
    k = int(rng.integers(2, 40)) * case.params.get("long", 1)
    return {**sizes, "k": np.array(k), "side": np.array(side)}


def _loads_expect(arrays: Arrays) -> Arrays:
    """Blocks one by one, and in each the numbers that its threads want, each counted once."""
    m, n, k, side = (int(arrays[name]) for name in ("m", "n", "k", "side"))
    row, column = np.divmod(np.arange(m * n), n)
    block = row // side * n + column // side
    return {
        "loads from a": np.array(len(np.unique(block * m + row)) * k),
        "loads from b": np.array(len(np.unique(block * n + column)) * k),
    }


def _sectors_given(arrays: Arrays) -> str:
    call = "predict_transpose({rows}, {columns})\npredict_matmul({m}, {n}, {k})"
    return call.format(**arrays)


def _loads_given(arrays: Arrays) -> str:
    return "predict_loads({m}, {n}, {k}, {side})".format(**arrays)


CHECKS = (
    Check(
        name="predict_sectors",
        title="Sectors of two naive kernels, by hand",
        points=6,
        cases=(
            Case("small matrices", {"times": (1, 4)}),
            Case("other matrices", {"times": (1, 4)}),
            Case("large matrices", {"times": (1, 4), "fold": FOLD, "long": LONG}),
            Case("more of them", {"times": (4, 6)}, hidden=True),
        ),
        inputs=_sizes,
        run=calls.sectors,
        describe=_sectors_given,
        expect=_sectors_expect,
        compare=close,
        pointer="Take one warp and one of its loads: which addresses do its 32 lanes ask for?",
        hint="How many requests are there (one a warp and load, so k a warp in the product's loop), and how many "
        "sectors does one touch? There are three kinds: 32 neighbours, 32 elements in different rows, one element for "
        "all.",
        uses=("predict_transpose", "predict_matmul"),
    ),
    Check(
        name="predict_loads",
        title="Loads of a matrix product by tiles, by hand",
        points=7,
        cases=(
            Case("the naive kernel", {"side": 1}),
            Case("blocks of 8 × 8", {"side": 8}),
            Case("long rows", {"side": 16, "long": LONG}),
            Case("other blocks", {"side": 5}, hidden=True),
        ),
        inputs=_loads_inputs,
        run=calls.loads,
        describe=_loads_given,
        expect=_loads_expect,
        compare=close,
        pointer="What does one block load altogether, and how many blocks are there?",
        hint="A block needs `side` rows of a, k numbers each, and as many columns of b; there are (m/side)·(n/side) "
        "blocks. Return whole numbers: divide by //.",
        uses=("predict_loads",),
    ),
)
