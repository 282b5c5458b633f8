"""Inputs and oracles of lab 03, and cases as code.

Oracles of kernels are NumPy's, in float64 where numbers are added up. Besides values they give limits, the most that
may be counted of a launch (`comparison.limits`): each element once, in whole sectors, without bank conflicts. Oracle of
predictions: every address of every warp, listed and counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mlsys_checks.sandboxed import cuda as calls
from mlsys_checks.sandboxed.cuda import HIGH, ROWS, SIDE, THREADS, TILE, TOTAL, WIDE, blocks
from mlsys_checks.sandboxed.spec import Arrays, Case
from mlsys_checks.sandboxed.values import encode_text
from mlsys_checks.trusted.cuda.comparison import each_thread, limits
from mlsys_checks.trusted.traced import SPLIT
from mlsys_lab.kernels.cuda_cpp.compiler import load_nvrtc
from mlsys_lab.kernels.cuda_cpp.emulator import need_emulator
from mlsys_lab.kernels.trace.events import WARP

Rng = np.random.Generator
ALIGNED = 8
"""Rows of a multiple of this start at sectors; requests to others may take a sector more."""
ASTRAY = 3
"""Excess sectors of a request for parts of two rows that do not start at sectors."""
TREE_REQUESTS = 40
"""Most requests of a block's warps to shared memory: sequential addressing takes 29, interleaved 74."""
TREE_ACCESSES = 26
"""Most accesses of one thread to shared memory: a store, seven additions of three, and the sum; one by one: 128."""


def _normal(rng: Rng, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def _put(rng: Rng, array: np.ndarray, *values: float) -> None:
    """Store values at different places of the array, drawn at random; as many as it has places for."""
    places = rng.permutation(array.size)[: len(values)]
    array.reshape(-1)[places] = values[: len(places)]


def _as_float32(values: np.ndarray) -> np.ndarray:
    """Round a result once; what is not finite may stay."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32)


def draw_relu(rng: Rng, case: Case) -> Arrays:
    """`scale` is a power of ten: doubles of the largest numbers are beyond fp32, and some numbers themselves."""
    x = _normal(rng, case.params["blocks"] * THREADS).astype(np.float64) * 10.0 ** case.params["scale"]
    _put(rng, x, *(case.params["infinite"] * [np.inf, -np.inf]))
    return {"x": _as_float32(x)}


def expect_relu(arrays: Arrays) -> Arrays:
    x = arrays["x"]
    most = limits(reads={"x": x.size}, writes={"y": x.size}, over={"sectors": 0}, **each_thread(2, THREADS))
    return {"y": np.where(x > 0, x, np.float32(0)), **most}


def draw_sgd_step(rng: Rng, case: Case) -> Arrays:
    """`infinite`: infinities of both signs in both arrays, once at one index. `factor`: the learning rate."""
    n = case.params["n"]
    w, g = _normal(rng, n), _normal(rng, n)
    _put(rng, g, 0)
    if case.params["infinite"]:
        _put(rng, w, np.inf, -np.inf)
        _put(rng, g, np.inf, -np.inf)
        w[n // 2] = g[n // 2] = np.inf
    return {"w": w, "g": g, "lr": np.array(case.params.get("factor", rng.uniform(0.05, 0.5)), np.float32)}


def expect_sgd_step(arrays: Arrays) -> Arrays:
    w, g = arrays["w"], arrays["g"]
    reads = {"w": w.size, "g": w.size}
    most = limits(reads=reads, writes={"w": w.size}, over={"sectors": 1}, **each_thread(3, THREADS))
    with np.errstate(invalid="ignore"):
        return {"w": w - arrays["lr"] * g, **most}


def draw_causal_mask(rng: Rng, case: Case) -> Arrays:
    scores = _normal(rng, case.params["t"], case.params["t"])
    _put(rng, scores, *(case.params["infinite"] * [np.inf, -np.inf]))
    return {"scores": scores}


def expect_causal_mask(arrays: Arrays) -> Arrays:
    scores = arrays["scores"]
    t = len(scores)
    most = limits(
        reads={"scores": t * (t + 1) // 2},
        writes={"masked": t * t},
        over={"sectors": int(t % ALIGNED > 0)},
        **each_thread(2, WIDE * HIGH),
    )
    return {"masked": np.where(np.tri(t, dtype=bool), scores, np.float32(-np.inf)), **most}


def draw_outer(rng: Rng, case: Case) -> Arrays:
    """`zeros`: a zero and an infinity in each vector, which make NaN where they meet."""
    u, v = _normal(rng, case.params["rows"]), _normal(rng, case.params["columns"])
    if case.params["zeros"]:
        _put(rng, u, 0, np.inf)
        _put(rng, v, 0, np.inf)
    return {"u": u, "v": v}


def expect_outer(arrays: Arrays) -> Arrays:
    u, v = arrays["u"], arrays["v"]
    n = u.size * v.size
    sectors = {"sectors": int(v.size % ALIGNED > 0)}
    most = limits(reads={"u": n, "v": n}, writes={"out": n}, over=sectors, **each_thread(3, WIDE * HIGH))
    with np.errstate(invalid="ignore"):
        return {"out": u[:, None] * v[None, :], **most}


def draw_axpy(rng: Rng, case: Case) -> Arrays:
    n = case.params["n"]
    x, y = _normal(rng, n), _normal(rng, n)
    _put(rng, x, 0)
    if case.params["infinite"]:
        _put(rng, x, np.inf, -np.inf)
        _put(rng, y, np.inf, -np.inf)
    a = np.array(case.params.get("factor", rng.uniform(-2, 2)), np.float32)
    return {"a": a, "x": x, "y": y, "blocks": np.array(case.params["blocks"])}


def expect_axpy(arrays: Arrays) -> Arrays:
    x, y = arrays["x"], arrays["y"]
    turns = blocks(x.size, int(arrays["blocks"]) * THREADS)
    reads = {"x": x.size, "y": x.size}
    most = limits(reads=reads, writes={"y": x.size}, over={"sectors": 1}, **each_thread(3 * turns, THREADS))
    with np.errstate(invalid="ignore"):
        return {"y": y + arrays["a"] * x, **most}


def draw_smooth(rng: Rng, case: Case) -> Arrays:
    """`infinite`: at both ends, next to which a 0 is added, on both sides of a block's edge, and one after another."""
    x = _normal(rng, case.params["n"])
    if case.params["infinite"]:
        places = [place for place in (THREADS // 2, THREADS // 2 + 1, THREADS, 0, x.size - 1) if place < x.size]
        x[places] = [(-1) ** place * np.inf for place in places]
    return {"x": x}


def expect_smooth(arrays: Arrays) -> Arrays:
    x = arrays["x"].astype(np.float64)
    n = x.size
    needed = sum(min(first + THREADS + 1, n) - max(first - 1, 0) for first in range(0, n, THREADS))
    most = limits(reads={"x": needed}, writes={"y": n}, over={"sectors": 1, "passes": 0}, **each_thread(4, THREADS))
    padded = np.pad(x, 1)
    with np.errstate(invalid="ignore"):
        return {"y": _as_float32((padded[:-2] + padded[1:-1] + padded[2:]) / 3), **most}


def draw_dot(rng: Rng, case: Case) -> Arrays:
    """`opposite`: the factors of one product, given as texts."""
    given = {name: rng.uniform(0.5, 1.5, case.params["n"]).astype(np.float32) for name in "xy"}
    if "opposite" in case.params:
        at = rng.integers(case.params["n"])
        given["x"][at], given["y"][at] = case.params["opposite"]
    return given


def expect_dot(arrays: Arrays) -> Arrays:
    x, y = (arrays[name].astype(np.float64) for name in "xy")
    over = {"sectors": 0, "passes": 0, "turns": 0}
    most = limits(reads={"x": x.size, "y": x.size}, writes={"out": 1}, over=over, **each_thread(3, THREADS))
    with np.errstate(invalid="ignore"):
        return {"out": _as_float32(np.array([(x * y).sum()])), **most}


def draw_block_sum(rng: Rng, case: Case) -> Arrays:
    """`infinite`: an element among the first, so that others are added to it."""
    x = rng.uniform(20, 60, case.params["n"]).astype(np.float32)
    if case.params["infinite"] and x.size:
        x[rng.integers(max(x.size // 3, 1))] = np.inf
    return {"x": x, "blocks": np.array(case.params["blocks"])}


def expect_block_sum(arrays: Arrays) -> Arrays:
    x, count = arrays["x"], int(arrays["blocks"])
    most = limits(
        reads={"x": x.size},
        writes={"sums": count},
        over={"sectors": 1, "passes": 0, "turns": 0},
        **each_thread(blocks(x.size, count * THREADS) + 1, THREADS),
    ) | limits(accesses={"shared": TREE_ACCESSES}, requests={"shared": TREE_REQUESTS})
    return {TOTAL: _as_float32(np.array(x.sum(dtype=np.float64))), **most}


def draw_transpose(rng: Rng, case: Case) -> Arrays:
    return {"x": _normal(rng, case.params["rows"], case.params["columns"])}


def expect_transpose(arrays: Arrays) -> Arrays:
    x = arrays["x"]
    sectors = {"sectors": int(any(side % ALIGNED for side in x.shape))}
    threads = each_thread(2 * TILE // ROWS, TILE * ROWS)
    most = limits(reads={"x": x.size}, writes={"y": x.size}, over=sectors, **threads)
    return {"y": np.ascontiguousarray(x.T), **most}


def expect_transpose_banks(arrays: Arrays) -> Arrays:
    """A tile without conflicts is worth something where it serves whole sectors: without a tile there are none."""
    x = arrays["x"]
    over = {"sectors": int(any(side % ALIGNED for side in x.shape)), "passes": 0}
    requests = dict.fromkeys(("global", "shared"), SPLIT * 2 * TILE)
    return {"y": np.ascontiguousarray(x.T), **limits(reads={"x": x.size}, over=over, requests=requests)}


STALE, NEXT, ENDS, ZEROS = 1, 2, 3, 4
"""Where factors of a product have infinities. A wrong product has a zero opposite, and 0 · ∞ is NaN.

STALE: one of each factor where the last step leaves it over if it stores no zero. NEXT: at the start of a row of a,
where a kernel that guards only the end of a looks for the row before. ENDS: in the last column of a and the last row of
b, which an index clamped to the ends loads again. ZEROS: opposite a zero in the other factor.
"""


def draw_matmul(rng: Rng, case: Case) -> Arrays:
    m, k, n = (case.params[size] for size in "mkn")
    return _with_infinities(rng, _normal(rng, m, k), _normal(rng, k, n), case.params.get("infinite", 0))


def _with_infinities(rng: Rng, a: np.ndarray, b: np.ndarray, where: int) -> Arrays:
    (m, k), n = a.shape, b.shape[1]
    row, other_row = rng.permutation(m)[:2] if m > 1 else (0, 0)
    column, other_column = rng.permutation(n)[:2] if n > 1 else (0, 0)
    last = k // SIDE * SIDE - 1
    if where == STALE and last >= 0:
        a[row, last] = b[last, column] = np.inf
    elif where == NEXT and m > 1 and k % SIDE:
        a[rng.integers(1, m), rng.integers(min(k, SIDE - k % SIDE))] = np.inf
    elif where == ENDS and k:
        a[row, -1] = b[-1, column] = np.inf
    elif where == ZEROS and k > 1:
        at, other = rng.permutation(k)[:2]
        a[row, at], b[at, column] = 0, np.inf
        a[other_row, other], b[other, other_column] = np.inf, 0
    return {"a": a, "b": b}


def _multiply(arrays: Arrays) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # which libraries cause in lanes that are not used
        return _as_float32(arrays["a"].astype(np.float64) @ arrays["b"].astype(np.float64))


def _factor_reads(arrays: Arrays) -> dict[str, int]:
    (m, k), n = arrays["a"].shape, arrays["b"].shape[1]
    return {"a": m * k * blocks(n, SIDE), "b": k * n * blocks(m, SIDE)}


def expect_matmul(arrays: Arrays) -> Arrays:
    c = _multiply(arrays)
    threads = each_thread(2 * blocks(arrays["a"].shape[1], SIDE) + 1, SIDE * SIDE)
    return {"c": c} | limits(reads=_factor_reads(arrays), writes={"c": c.size}, **threads)


def expect_matmul_memory(arrays: Arrays) -> Arrays:
    """Loads are limited too: a product that loads each number again has no conflicts, for want of shared memory."""
    k, n = arrays["b"].shape
    warps, steps = SIDE * SIDE // WARP, blocks(k, SIDE)
    over = {"sectors": ASTRAY if k % ALIGNED or n % ALIGNED else 0, "passes": 0}
    requests = {"global": SPLIT * warps * (2 * steps + 1), "shared": SPLIT * warps * steps * (2 + 2 * SIDE)}
    return {"c": _multiply(arrays)} | limits(reads=_factor_reads(arrays), over=over, requests=requests)


def draw_for(kernel: str, draw: Callable[[Rng, Case], Arrays]) -> Callable[[Rng, Case], Arrays]:
    """`inputs` of a check on a kernel: what `draw` draws, and the kernel's name."""
    return lambda rng, case: {"kernel": encode_text(kernel), **draw(rng, case)}


# Task 3


def _vary(sizes: list[int], others: list[int]) -> np.ndarray:
    """Calls with some sizes, then with each in turn replaced by the other one, (calls, sizes)."""
    rows = np.array([sizes] * (1 + len(sizes)))
    rows[range(1, len(rows)), range(len(sizes))] = others
    return rows


def draw_sectors(rng: Rng, case: Case) -> Arrays:
    """Sides are multiples of a warp; `fold` and `long` make them, and k, that many times as long."""
    fold, long = case.params["fold"], case.params["long"]

    def two(most: int, times: int) -> list[int]:
        return [WARP * int(one) * times for one in 1 + rng.permutation(most)[:2]]

    rows, columns, m, n, k = (two(3, fold), two(3, fold), two(3, fold), two(3, fold), two(2, long))
    given = {"predict_transpose": _vary(*map(list, zip(rows, columns, strict=True)))}
    given["predict_matmul"] = _vary(*map(list, zip(m, n, k, strict=True)))
    return given | {"fold": np.array(fold), "long": np.array(long)}


def expect_sectors(arrays: Arrays) -> Arrays:
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


def _count_touched(element: np.ndarray) -> int:
    """Sectors that all requests touch; element: (requests, lanes) indices of an array."""
    sector = np.sort(element // ALIGNED, axis=1)
    return len(sector) + int(np.count_nonzero(np.diff(sector, axis=1)))


def _transpose_sectors(rows: int, columns: int) -> tuple[int, int]:
    row, column = np.divmod(np.arange(rows * columns).reshape(-1, WARP), columns)  # a warp is along a row of x
    return _count_touched(row * columns + column), _count_touched(column * rows + row)


def _matmul_sectors(m: int, n: int, k: int) -> tuple[int, int, int]:
    column, row = np.divmod(np.arange(m * n).reshape(-1, WARP), m)  # a warp is along a column of c
    step = np.arange(k)[:, None, None]
    of_a, of_b = (row * k + step).reshape(-1, WARP), (step * n + column).reshape(-1, WARP)
    return _count_touched(of_a), _count_touched(of_b), _count_touched(row * n + column)


def draw_loads(rng: Rng, case: Case) -> Arrays:
    """`side` and `other` are sides of blocks, `long` a factor of k, which may be odd."""
    sides, long = [case.params["side"], case.params["other"]], case.params["long"]
    m, n = ([math.lcm(*sides) * int(times) for times in 1 + rng.permutation(3)[:2]] for _ in range(2))
    k = [long * int(rng.integers(2, 40)), long]
    return {"predict_loads": _vary(*map(list, zip(m, n, k, sides, strict=True)))}


def expect_loads(arrays: Arrays) -> Arrays:
    """Blocks one by one, and in each the numbers that its threads want, each counted once."""
    found: dict[str, int] = {}
    for sizes in arrays["predict_loads"].tolist():
        m, n, k, side = sizes
        row, column = np.divmod(np.arange(m * n), n)
        block = row // side * n + column // side
        counts = (len(np.unique(block * m + row)) * k, len(np.unique(block * n + column)) * k)
        found |= zip(calls.name_answers("predict_loads", sizes), counts, strict=True)
    return {name: encode_text(count) for name, count in found.items()}


def describe_predictions(arrays: Arrays) -> str:
    asked = [(name, sizes) for name, sizes in arrays.items() if name in calls.PREDICTED]
    return "\n".join(calls.write_call(name, row) for name, sizes in asked for row in sizes.tolist())


# Task 8. Some blocks are left out, and their tiles must stay as they were: each block computes its own.

BEFORE = "before"


def _draw_skipped(rng: Rng, case: Case) -> np.ndarray:
    """Which remainder of blocks is not run, or none. Raises MissingToolError where text cannot be compiled."""
    need_emulator()
    load_nvrtc()
    return np.array(rng.integers(calls.EVERY) if case.params["some"] else calls.EVERY)


def draw_transpose_cpp(rng: Rng, case: Case) -> Arrays:
    """`sizes`: rows and columns of a matrix of which only the last tile is there."""
    rows, columns = case.params["rows"], case.params["columns"]
    given = {"x": _normal(rng, rows, columns), "y": _normal(rng, columns, rows), "skipped": _draw_skipped(rng, case)}
    return given | ({"sizes": np.array(case.params["sizes"])} if "sizes" in case.params else {})


def expect_transpose_cpp(arrays: Arrays) -> Arrays:
    return {"y": np.ascontiguousarray(arrays["x"].T), BEFORE: arrays["y"], "skipped": arrays["skipped"]}


def draw_matmul_cpp(rng: Rng, case: Case) -> Arrays:
    """`sizes`: rows and columns of c, all of whose rows and columns are alike."""
    m, k, n = (case.params[size] for size in "mkn")
    a, b, c = _normal(rng, m, k), _normal(rng, k, n), _normal(rng, m, n)
    skipped = {"skipped": _draw_skipped(rng, case)}
    if "sizes" in case.params:  # of one sign: an element's sum is not small compared with its terms
        return {"a": np.abs(a), "b": np.abs(b), "c": c, **skipped, "sizes": np.array(case.params["sizes"])}
    return _with_infinities(rng, a, b, case.params.get("infinite", 0)) | {"c": c, **skipped}


def expect_matmul_cpp(arrays: Arrays) -> Arrays:
    return {"c": _multiply(arrays), BEFORE: arrays["c"], "skipped": arrays["skipped"]}


def describe_transpose_cpp(arrays: Arrays) -> str:
    if "sizes" not in arrays:
        rows, columns = arrays["x"].shape
        made = [f"x, y = torch.randn({rows}, {columns}), torch.full(({columns}, {rows}), torch.nan)"]
        made += [f"grid = {calls.plan_cpp(None, 'transpose', (rows, columns))[0]}", "which = {}"]
    else:
        rows, columns = arrays["sizes"].tolist()
        made = [
            f"# of {rows} × {columns} elements only the last tile of {TILE} × {TILE} is there",
            f"x, y = torch.randn({TILE}, {TILE}), torch.zeros({TILE}, {TILE})",
            f"grid = {columns // TILE, rows // TILE}",
            f"of_x = Part({(rows - TILE) * columns + columns - TILE}, pitch={columns})",
            f"of_y = Part({(columns - TILE) * rows + rows - TILE}, pitch={rows})",
            'which = {"blocks": [grid[0] * grid[1] - 1], "parts": (of_x, of_y)}',
        ]
    return _describe_emulated("transpose", made, f"{TILE, ROWS}, x, y, {rows}, {columns}", "(y - x.T).abs().max()")


def describe_matmul_cpp(arrays: Arrays) -> str:
    if "sizes" not in arrays:
        (m, k), n = arrays["a"].shape, arrays["b"].shape[1]
        made = ['a, b = torch.from_numpy(given["a"]), torch.from_numpy(given["b"])']
        made += [f"c = torch.full(({m}, {n}), torch.nan)"]
        made += [f"grid, which = (-(-{n} // CPP_TILE), -(-{m} // CPP_TILE)), {{}}"]
        wrong = "(~torch.isclose(c, a @ b, atol=1e-4, equal_nan=True)).nonzero().tolist()"
        return _describe_emulated("matmul", made, f"{SIDE, SIDE}, a, b, c, {m}, {n}, {k}", wrong)
    (m, n), k = arrays["sizes"].tolist(), arrays["a"].shape[1]
    held = "m - top, n - left"
    made = [
        f"n, k, pitch = {n}, {k}, {n if n % 1024 == 0 else 0}",
        f"m = min({m}, {calls.MOST_BLOCKS_DOWN} * CPP_TILE)  # of a, b and c only the last square's rows and columns",
        "top, left = (m - 1) // CPP_TILE * CPP_TILE, (n - 1) // CPP_TILE * CPP_TILE if pitch else 0",
        f"a, b, c = torch.rand(m - top, k), torch.rand(k, n - left), torch.zeros({held})",
        "grid = -(-n // CPP_TILE), -(-m // CPP_TILE)",
        "parts = Part(top * k), Part(left, pitch), Part(top * n + left, pitch)",
        'which = {"blocks": [grid[0] * grid[1] - 1], "parts": parts}',
    ]
    return _describe_emulated("matmul", made, f"{SIDE, SIDE}, a, b, c, m, n, k", "(c - a @ b)[-1, -1]")


def _describe_emulated(kernel: str, made: list[str], arguments: str, shown: str) -> str:
    """Code that makes the arguments, emulates the kernel in both orders and prints what is `shown`."""
    return "\n".join(
        (
            "import torch",
            "from mlsys_lab.kernels.cuda_cpp import Emulator, Part, Source",
            *made,
            f'text = Source({kernel}_cpp(), "{kernel}.cu")',
            "for last_first in (False, True):",
            f'    Emulator(reversed=last_first, **which)(text, "{kernel}", grid, {arguments})',
            f"    print({shown})",
        )
    )
