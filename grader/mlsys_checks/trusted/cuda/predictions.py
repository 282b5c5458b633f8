"""Task 3: what two naive kernels ask of memory. Oracle: every address of every warp, listed and counted."""

from __future__ import annotations

import math

import numpy as np

from mlsys_checks.sandboxed.cuda import predictions as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.sandboxed.values import encode_text
from mlsys_checks.trusted.answers import agree

LANES, SECTOR, ITEM = 32, 32, 4
"""Threads of a warp; bytes of a sector and of a number."""
FOLD = 2**28 + 1
"""How many times as long the sides of huge matrices are: counts are beyond 64 bits, and no float64 has their digits."""
LONG = 2**56 + 1
"""As many times as long is what is summed over, of huge matrices."""


def _vary(sizes: tuple[int, ...], others: tuple[int, ...]) -> np.ndarray:
    """Calls with some sizes, then with each in turn replaced by the other one, (calls, sizes)."""
    calls = np.array([sizes] * (1 + len(sizes)))
    calls[range(1, len(calls)), range(len(sizes))] = others
    return calls


def _sectors_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    fold, long = case.params.get("fold", 1), case.params.get("long", 1)

    def two(most: int, fold: int) -> list[int]:
        """Two different multiples of a warp."""
        return [LANES * int(times) * fold for times in 1 + rng.permutation(most)[:2]]

    rows, columns, m, n = (two(case.params["most"], fold) for _ in range(4))
    given = {
        "predict_transpose": _vary(*zip(rows, columns, strict=True)),
        "predict_matmul": _vary(*zip(m, n, two(2, long), strict=True)),
    }
    return given | {"fold": np.array(fold), "long": np.array(long)}


def _count_touched(element: np.ndarray) -> int:
    """Sectors that all requests touch; element: (requests, lanes) places in an array."""
    sector = np.sort(element * ITEM // SECTOR, axis=1)
    return len(sector) + int(np.count_nonzero(np.diff(sector, axis=1)))


def _sectors_expect(arrays: Arrays) -> Arrays:
    """Counted for matrices of sides `fold` and `long` times shorter, of which the larger ones repeat every request."""
    fold, long = int(arrays["fold"]), int(arrays["long"])
    found: dict[str, int] = {}
    for row in arrays["predict_transpose"].tolist():
        counts = [fold**2 * count for count in _transpose_sectors(*(side // fold for side in row))]
        found |= zip(calls.name_answers("predict_transpose", row), counts, strict=True)
    for row in arrays["predict_matmul"].tolist():
        m, n, k = row
        of_a, of_b, of_c = (fold**2 * count for count in _matmul_sectors(m // fold, n // fold, k // long))
        found |= zip(calls.name_answers("predict_matmul", row), (long * of_a, long * of_b, of_c), strict=True)
    return {name: encode_text(count) for name, count in found.items()}


def _transpose_sectors(rows: int, columns: int) -> tuple[int, int]:
    row, column = np.divmod(np.arange(rows * columns).reshape(-1, LANES), columns)  # a warp lies along a row of x
    return _count_touched(row * columns + column), _count_touched(column * rows + row)


def _matmul_sectors(m: int, n: int, k: int) -> tuple[int, int, int]:
    column, row = np.divmod(np.arange(m * n).reshape(-1, LANES), m)  # a warp lies along a column of c
    step = np.arange(k)[:, None, None]
    of_a, of_b = (row * k + step).reshape(-1, LANES), (step * n + column).reshape(-1, LANES)
    return _count_touched(of_a), _count_touched(of_b), _count_touched(row * n + column)


def _loads_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    sides, long = case.params["sides"], case.params.get("long", 1)
    both = math.lcm(*sides)
    m, n = ([both * int(times) for times in 1 + rng.permutation(3)[:2]] for _ in range(2))
    k = [long * int(rng.integers(2, 40)), long]
    return {"predict_loads": _vary(*zip(m, n, k, sides, strict=True))}


def _loads_expect(arrays: Arrays) -> Arrays:
    """Blocks one by one, and in each the numbers that its threads want, each counted once."""
    found: dict[str, int] = {}
    for sizes in arrays["predict_loads"].tolist():
        m, n, k, side = sizes
        row, column = np.divmod(np.arange(m * n), n)
        block = row // side * n + column // side
        counts = (len(np.unique(block * m + row)) * k, len(np.unique(block * n + column)) * k)
        found |= zip(calls.name_answers("predict_loads", sizes), counts, strict=True)
    return {name: encode_text(count) for name, count in found.items()}


def _describe(arrays: Arrays) -> str:
    asked = [(name, sizes) for name, sizes in arrays.items() if name in calls.PREDICTED]
    return "\n".join(call for name, sizes in asked for call in calls.write_calls(name, sizes))


CHECKS = (
    Check(
        name="predict_sectors",
        title="Sectors of two naive kernels, by hand",
        points=6,
        cases=(
            Case("small matrices", {"most": 3}),
            Case("huge matrices", {"most": 3, "fold": FOLD, "long": LONG}),
            Case("other matrices", {"most": 3, "fold": 5, "long": 7}, hidden=True),
        ),
        inputs=_sectors_inputs,
        run=calls.predict,
        describe=_describe,
        expect=_sectors_expect,
        compare=agree,
        first_hint="Take one warp and one of its loads: which addresses do its 32 lanes ask for?",
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
            Case("the naive kernel", {"sides": (1, 3)}),
            Case("blocks of 8 × 8", {"sides": (8, 4)}),
            Case("huge matrices, wide blocks", {"sides": (40, 16), "long": LONG}),
            Case("other blocks", {"sides": (5, 7)}, hidden=True),
        ),
        inputs=_loads_inputs,
        run=calls.predict,
        describe=_describe,
        expect=_loads_expect,
        compare=agree,
        first_hint="What does one block load altogether, and how many blocks are there?",
        hint="A block needs `side` rows of a, k numbers each, and as many columns of b; there are (m/side)·(n/side) "
        "blocks. Return whole numbers: divide by //.",
        uses=("predict_loads",),
    ),
)
