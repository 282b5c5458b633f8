"""Tasks 6 and 7: a transpose and a matrix product by tiles. Oracle: NumPy, the product in float64."""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed.cuda import matrices as calls
from mlsys_checks.sandboxed.cuda.launches import ROWS, SIDE, TILE, blocks
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.cuda.comparison import agree, each_thread, limits
from mlsys_checks.trusted.cuda.maps import ALIGNED, normal
from mlsys_checks.trusted.traced import SPLIT, describe_launch
from mlsys_lab.kernels.trace.events import WARP

ASTRAY = 3
"""Sectors beyond the least of a request for parts of two rows that do not begin at sectors."""
STALE, NEXT, ENDS, ZEROS = "stale", "next", "ends", "zeros"
"""Where `with_infinities` has elements of a product's factors infinite."""


def _transpose_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    return {"x": normal(rng, *case.params["shape"])}


def _transpose_expect(arrays: Arrays) -> Arrays:
    x = arrays["x"]
    most = limits(
        reads={"x": x.size},
        writes={"y": x.size},
        over={"sectors": int(any(side % ALIGNED for side in x.shape))},
        **each_thread(2 * TILE // ROWS, TILE * ROWS),
    )
    return {"y": np.ascontiguousarray(x.T), **most}


def _banks_expect(arrays: Arrays) -> Arrays:
    """A tile without conflicts is worth something where it serves whole sectors: without a tile there are none."""
    x = arrays["x"]
    most = limits(
        reads={"x": x.size},
        over={"sectors": int(any(side % ALIGNED for side in x.shape)), "passes": 0},
        requests=dict.fromkeys(("global", "shared"), SPLIT * 2 * TILE),
    )
    return {"y": np.ascontiguousarray(x.T), **most}


def _matmul_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    m, k, n = case.params["mkn"]
    return with_infinities(rng, {"a": normal(rng, m, k), "b": normal(rng, k, n)}, case.params.get("infinite"))


def with_infinities(rng: np.random.Generator, given: Arrays, where: str | None) -> Arrays:
    """The factors with a few elements made infinite, where a wrong product has them near: 0 · ∞ is NaN.

    STALE: one of each factor in the place that the last step leaves over if it stores no zero; NEXT: at the begin of a
    row of a, where who guards only the end of a looks for the row before; ENDS: in the last column of a and the last
    row of b, which an index that is held within the ends loads again; ZEROS: opposite a zero in the other factor.
    """
    if where is None:
        return given
    a, b = (given[name].copy() for name in "ab")
    (m, k), n = a.shape, b.shape[1]
    row, other_row = rng.permutation(m)[:2] if m > 1 else (0, 0)
    column, other_column = rng.permutation(n)[:2]
    last = k // SIDE * SIDE - 1
    if where == STALE:
        a[row, last] = b[last, column] = np.inf
    elif where == NEXT:
        a[rng.integers(1, m), rng.integers(SIDE - k % SIDE)] = np.inf
    elif where == ENDS:
        a[row, -1] = b[-1, column] = np.inf
    else:
        at, other = rng.permutation(k)[:2]
        a[row, at], b[at, column] = 0, np.inf
        a[other_row, other], b[other, other_column] = np.inf, 0
    return given | {"a": a, "b": b}


def multiply(arrays: Arrays) -> np.ndarray:
    """a · b, in float64 until the end; float32."""
    with np.errstate(invalid="ignore"):  # which libraries do beside the result, in lanes of no use
        return (arrays["a"].astype(np.float64) @ arrays["b"].astype(np.float64)).astype(np.float32)


def _matmul_expect(arrays: Arrays) -> Arrays:
    (m, k), n = arrays["a"].shape, arrays["b"].shape[1]
    return {"c": multiply(arrays)} | limits(
        reads={"a": m * k * blocks(n, SIDE), "b": k * n * blocks(m, SIDE)},
        writes={"c": m * n},
        **each_thread(2 * blocks(k, SIDE) + 1, SIDE * SIDE),
    )


def _memory_expect(arrays: Arrays) -> Arrays:
    """Loads are limited too: a product that loads each number anew has no conflicts, for want of shared memory."""
    (m, k), n = arrays["a"].shape, arrays["b"].shape[1]
    warps, steps = SIDE * SIDE // WARP, blocks(k, SIDE)
    return {"c": multiply(arrays)} | limits(
        reads={"a": m * k * blocks(n, SIDE), "b": k * n * blocks(m, SIDE)},
        over={"sectors": ASTRAY if k % ALIGNED or n % ALIGNED else 0, "passes": 0},
        requests={
            "global": SPLIT * warps * (2 * steps + 1),
            "shared": SPLIT * warps * steps * (2 + 2 * SIDE),
        },
    )


def _tiles(arrays: Arrays) -> tuple[int, int]:
    rows, columns = arrays["x"].shape
    return blocks(columns, TILE), blocks(rows, TILE)


def _squares(arrays: Arrays) -> tuple[int, int]:
    return blocks(arrays["b"].shape[1], SIDE), blocks(len(arrays["a"]), SIDE)


TRANSPOSING = describe_launch("transpose", "(TILE, ROWS)", _tiles, "y", "x.T.shape")
MULTIPLYING = describe_launch("matmul", "(SIDE, SIDE)", _squares, "c", "(a.shape[0], b.shape[1])")

CHECKS = (
    Check(
        name="transpose",
        title="A transpose in whole sectors",
        points=8,
        cases=(
            Case("one tile", {"shape": (32, 32)}),
            Case("sides of whole tiles", {"shape": (32, 64)}),
            Case("sides that do not divide by the tile", {"shape": (45, 38)}),
            Case("half a tile of rows", {"shape": (16, 64)}),
            Case("half a tile of columns", {"shape": (64, 16)}),
            Case("any sides", {"shape": (33, 50)}, hidden=True),
            Case("one row", {"shape": (1, 40)}, hidden=True),
            Case("one column", {"shape": (40, 1)}, hidden=True),
        ),
        inputs=_transpose_inputs,
        run=calls.transpose,
        describe=TRANSPOSING,
        expect=_transpose_expect,
        compare=agree,
        first_hint="Follow threadIdx.x: along which axis of x does it run in the load, along which of y in the store?",
        hint="threadIdx.x runs along a row both times, of x and of y; so the turn is in the tile, which is filled by "
        "rows and emptied by columns. Where does the tile of y begin? Each side has a guard.",
        uses=("transpose",),
        traced=True,
    ),
    Check(
        name="transpose_banks",
        title="A transpose without bank conflicts",
        points=4,
        cases=(
            Case("one tile", {"shape": (32, 32)}),
            Case("any sides", {"shape": (40, 50)}, hidden=True),
        ),
        inputs=_transpose_inputs,
        run=calls.transpose,
        describe=TRANSPOSING,
        expect=_banks_expect,
        compare=agree,
        first_hint="Which banks do 32 neighbours of one column of your tile lie in?",
        hint="The words of a column of the tile should lie in different banks: how far apart are they, modulo 32? A "
        "column that nobody uses changes that.",
        uses=("transpose",),
        traced=True,
    ),
    Check(
        name="matmul",
        title="A matrix product by tiles",
        points=8,
        cases=(
            Case("one tile", {"mkn": (16, 16, 16)}),
            Case("two tiles and a half along k, infinities", {"mkn": (16, 40, 16), "infinite": STALE}),
            Case("sides that do not divide by the tile", {"mkn": (18, 9, 20)}),
            Case("half a tile of rows, zeros opposite infinities", {"mkn": (8, 32, 16), "infinite": ZEROS}),
            Case("half a tile of columns", {"mkn": (16, 32, 8)}),
            Case("nothing to add up", {"mkn": (5, 0, 18)}),
            Case("any sides", {"mkn": (5, 65, 17), "infinite": NEXT}, hidden=True),
            Case("one row", {"mkn": (1, 17, 20)}, hidden=True),
            Case("one column, one number to add up", {"mkn": (20, 1, 1)}, hidden=True),
        ),
        inputs=_matmul_inputs,
        run=calls.matmul,
        describe=MULTIPLYING,
        expect=_matmul_expect,
        compare=agree,
        first_hint="Take one step along k: which two tiles are there, who loads what, and when may they be filled "
        "anew?",
        hint="For each step of SIDE along k: each thread loads one element of both tiles, zeros outside; a barrier; "
        "SIDE multiply-adds; a barrier before the tiles are filled anew. Add up in a variable, store once.",
        uses=("matmul",),
        traced=True,
    ),
    Check(
        name="matmul_memory",
        title="A matrix product in whole sectors, without bank conflicts",
        points=4,
        cases=(
            Case("whole tiles", {"mkn": (16, 16, 32)}),
            Case("any sides", {"mkn": (18, 21, 19)}, hidden=True),
        ),
        inputs=_matmul_inputs,
        run=calls.matmul,
        describe=MULTIPLYING,
        expect=_memory_expect,
        compare=agree,
        first_hint="In each access, which index does threadIdx.x stand in?",
        hint="threadIdx.x is the last index wherever a warp should ask for neighbours: of a and b when they are read, "
        "of both tiles when they are filled, of b's tile when it is multiplied, and of c.",
        uses=("matmul",),
        traced=True,
    ),
)
