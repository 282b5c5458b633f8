"""Tasks 5 and 6: the order of tiles, and their product. Oracles: the order walked tile by tile, NumPy in float64."""

from __future__ import annotations

from functools import partial

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.sandboxed.triton import matmul as calls
from mlsys_checks.sandboxed.triton.launches import PROGRAMS, blocks
from mlsys_checks.trusted.traced import agree, allow_at_most
from mlsys_checks.trusted.triton import snippets, speed
from mlsys_checks.trusted.triton.kinds import draw_kind, result_dtype

# --- tile_order -----------------------------------------------------------------------------------------------------


def _order_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Sizes as they stand, or drawn from a range: a table of known answers shall not do."""
    sizes = {name: case.params[name] for name in ("tiles_m", "tiles_n", "group")}
    return {name: np.array(int(rng.integers(*n)) if isinstance(n, tuple) else n) for name, n in sizes.items()}


def _order_expect(arrays: Arrays) -> Arrays:
    """Group by group from the top, column by column within one, from top to bottom."""
    tiles_m, tiles_n, group = (int(arrays[name]) for name in ("tiles_m", "tiles_n", "group"))
    rows = list(range(tiles_m))
    groups = [rows[i : i + group] for i in range(0, tiles_m, group)]
    walked = [(m, n) for members in groups for n in range(tiles_n) for m in members]
    m, n = (np.array(side, dtype=np.int32) for side in zip(*walked, strict=True))
    return {"m": m, "n": n}


# --- matmul ---------------------------------------------------------------------------------------------------------


LEAST = (16, 16, 16)
"""The smallest tiles that tensor cores take."""


def _inputs(rng: np.random.Generator, case: Case) -> Arrays:
    m, n, k = case.params["mnk"]
    dtype, mean = case.params.get("dtype", np.float32), case.params.get("mean", 0.0)
    flags = {name: np.array(case.params.get(name, False)) for name in calls.LAYOUTS} | draw_kind(case)
    a, b = (rng.normal(mean, 1, size) for size in ((m, k), (k, n)))
    if case.params.get("cancelling"):  # sums grow along the first half of K, and shrink along the second
        a[:, k // 2 :] *= -1
    a, b = a.astype(dtype), b.astype(dtype)
    tile = zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), case.params.get("tile", LEAST), strict=True)
    sizes = {"group": case.params.get("group", 1), **dict(tile)}
    return {"a": a, "b": b, **{name: np.array(size) for name, size in sizes.items()}, **flags}


def _expect(arrays: Arrays, counted: bool) -> Arrays:
    """The product, and what whole tiles read: rows beyond the last may be masked, or wrap around (`% M`)."""
    a, b = arrays["a"], arrays["b"]
    product = a.astype(np.float64) @ b.astype(np.float64)
    values = {"c": product.astype(result_dtype(arrays, a.dtype))}
    (m, k), n, block_m, block_n, block_k = a.shape, b.shape[1], *(int(arrays[f"BLOCK_{side}"]) for side in "MNK")
    high, wide = blocks(m, block_m), blocks(n, block_n)
    a_bytes, b_bytes = block_m * high * k * a.itemsize, block_n * wide * k * b.itemsize
    tile_bytes = min(m, block_m) * min(n, block_n) * values["c"].itemsize
    most = allow_at_most(
        "matmul_kernel",
        reads={"a_ptr": wide * a_bytes, "b_ptr": high * b_bytes},
        writes={"c_ptr": values["c"].nbytes},
        busiest=(block_m + block_n) * k * a.itemsize + tile_bytes,
        widest=max(block_m * block_n, block_m * block_k, block_k * block_n),
        programs=high * wide,
    )
    return {**values, PROGRAMS: _programs(arrays), **most} if counted else values


def _programs(arrays: Arrays) -> np.ndarray:
    """The program that each element of C is of, (M, N)."""
    m, n = len(arrays["a"]), arrays["b"].shape[1]
    block_m, block_n = int(arrays["BLOCK_M"]), int(arrays["BLOCK_N"])
    programs = np.empty((blocks(m, block_m), blocks(n, block_n)), np.int64)
    tiles = {name: np.array(side) for name, side in zip(("tiles_m", "tiles_n"), programs.shape, strict=True)}
    order = _order_expect({**tiles, "group": arrays["group"]})
    programs[order["m"], order["n"]] = np.arange(programs.size)
    return programs.repeat(block_m, axis=0).repeat(block_n, axis=1)[:m, :n]


CHECKS = (
    Check(
        name="tile_order",
        title="Which tile is whose",
        points=6,
        cases=(
            Case("row after row", {"tiles_m": 3, "tiles_n": 4, "group": 1}),
            Case("in groups of 2, the last one lower", {"tiles_m": 3, "tiles_n": 4, "group": 2}),
            Case("more columns than rows", {"tiles_m": 2, "tiles_n": 5, "group": 2}),
            Case("more rows than columns", {"tiles_m": 7, "tiles_n": 3, "group": 5}),
            Case("a group larger than the matrix", {"tiles_m": 2, "tiles_n": 3, "group": 8}),
            Case("groups of 82 rows", {"tiles_m": 85, "tiles_n": 2, "group": 82}),  # 164 · (1 / 164) < 1 in float32
            Case("one row of tiles", {"tiles_m": 1, "tiles_n": 5, "group": 2}, hidden=True),
            Case("one column of tiles", {"tiles_m": 5, "tiles_n": 1, "group": 2}, hidden=True),
            Case("others", {"tiles_m": (5, 12), "tiles_n": (3, 9), "group": (2, 5)}, hidden=True),
        ),
        inputs=_order_inputs,
        run=calls.order,
        expect=_order_expect,
        compare=agree,
        snippet=snippets.TILE_ORDER,
        first_hint="Draw the tiles of the failing case and write the programs' numbers in. How high is the last group?",
        hint="How many programs has a full group? // tells the group, % the place in it. The last group may be lower "
        "than GROUP: within a group one goes down a column of that height, then the next.",
        uses=("tile_of", "order_kernel"),
        traced=True,
    ),
    Check(
        name="matmul",
        title="A product of tiles, summed in float32",
        points=10,
        cases=(
            Case("one tile", {"mnk": (16, 16, 16)}),
            Case("three edges", {"mnk": (19, 23, 29)}),
            Case("A transposed", {"mnk": (32, 9, 21), "a_turned": True}),
            Case("B transposed", {"mnk": (9, 32, 21), "b_turned": True}),
            Case("rows that lie further apart than they are long", {"mnk": (18, 16, 21), "apart": True}),
            Case(
                "half precision, sums that pass 65,504 on their way",
                {"mnk": (9, 1, 300), "dtype": np.float16, "mean": 60.0, "cancelling": True},
            ),
            Case(
                "half precision in, float32 out, sums of 1,100 numbers",
                {"mnk": (1, 5, 1100), "dtype": np.float16, "wide": True, "mean": 1.0},
            ),
            Case("grouped tiles, all of them full", {"mnk": (48, 32, 16), "group": 2}),
            Case("tiles of three sides", {"mnk": (70, 67, 37), "tile": (32, 64, 16), "group": 2}),
            Case("one number", {"mnk": (1, 1, 1)}),
            Case("one step that is not full", {"mnk": (19, 23, 1)}, hidden=True),
            Case(
                "others",
                {"mnk": (70, 37, 41), "tile": (64, 16, 32), "group": 64, "a_turned": True, "b_turned": True},
                hidden=True,
            ),
        ),
        inputs=_inputs,
        run=calls.matmul,
        expect=partial(_expect, counted=False),
        compare=agree,
        snippet=snippets.MATMUL,
        first_hint="Which of the three lengths ends within a tile in this case, and what is then loaded beyond it?",
        hint="rows and columns of the tile come from tile_of, depth from the loop. A load has two edges, and what lies "
        "beyond K must add nothing to a sum. Sums begin as zeros in float32.",
        uses=("tile_of", "matmul_kernel"),
        traced=True,
    ),
    Check(
        name="matmul_traffic",
        title="A is read once for each column of tiles, B for each row",
        points=6,
        cases=(
            Case("3 × 2 tiles", {"mnk": (37, 29, 20), "group": 2}),
            Case(
                "half precision",
                {"mnk": (18, 40, 33), "dtype": np.float16, "group": 2, "tile": (16, 32, 16)},
                hidden=True,
            ),
        ),
        inputs=_inputs,
        run=calls.matmul,
        expect=partial(_expect, counted=True),
        compare=agree,
        snippet=snippets.MATMUL,
        first_hint="How often does a program load the same tile, how often does it store, and which tile is it?",
        hint="Each program makes one tile, that which tile_of says with this GROUP: for each step along K one tile of "
        "A and one of B, and C once at the end.",
        uses=("tile_of", "matmul_kernel"),
        performance=speed.MATMUL,
        traced=True,
    ),
)
