"""Task 8: the transpose and the matrix product in CUDA C++, emulated. Oracle: NumPy, the product in float64.

Some blocks are left out, and what is theirs must be left as it was: each does its own share.
"""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed.cuda import cpp as calls
from mlsys_checks.sandboxed.cuda.launches import ROWS, SIDE, TILE
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.cuda import speed
from mlsys_checks.trusted.cuda.comparison import forgive_nan
from mlsys_checks.trusted.cuda.maps import normal
from mlsys_checks.trusted.cuda.matrices import ENDS, NEXT, STALE, ZEROS, multiply, with_infinities
from mlsys_lab.kernels.cuda_cpp.compiler import load_nvrtc
from mlsys_lab.kernels.cuda_cpp.emulator import need_emulator

BEFORE = "before"
SOME = {"some": True}
LARGE = (66_560, 67_584)
"""Rows and columns of a matrix of more than 2³² elements: more than 32 bits count, with a sign or not."""
TALL, DEEP = 1_023_000, 4_208
"""Rows and columns of such a matrix where it is the first factor of a product."""
BROAD = 2**31 - 2**21
"""Columns of which four rows are such a matrix, which an `int` can count, with a few beyond."""
LIMIT_S = 30.0
"""Time limit of a case, of which a compilation takes a second or two."""


def _transpose_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    rows, columns = case.params["shape"]
    given = {"x": normal(rng, rows, columns), "y": normal(rng, columns, rows), "skipped": _draw_skipped(rng, case)}
    if "within" in case.params:
        given |= {name: np.array(side) for name, side in zip(("rows", "columns"), case.params["within"], strict=True)}
    return given


def _matmul_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    m, k, n = case.params["mkn"]
    factors = {"a": normal(rng, m, k), "b": normal(rng, k, n)}
    given = {**factors, "c": normal(rng, m, n), "skipped": _draw_skipped(rng, case)}
    if large := [side for side in ("m", "n") if side in case.params]:
        # all of one sign: one element's sum is not small beside what it is the sum of
        given = {name: np.abs(array) for name, array in given.items()}
        return given | {side: np.array(case.params[side]) for side in large}
    return with_infinities(rng, given, case.params.get("infinite"))


def _draw_skipped(rng: np.random.Generator, case: Case) -> np.ndarray:
    """Which remainder of blocks is not run, or none of them. Raises MissingToolError where text cannot be compiled."""
    need_emulator()
    load_nvrtc()
    return np.array(rng.integers(calls.EVERY) if case.params.get("some") else calls.EVERY)


def _transpose_expect(arrays: Arrays) -> Arrays:
    return {"y": np.ascontiguousarray(arrays["x"].T), BEFORE: arrays["y"], "skipped": arrays["skipped"]}


def _matmul_expect(arrays: Arrays) -> Arrays:
    product, before = multiply(arrays), arrays["c"]
    if "m" in arrays or "n" in arrays:
        product, before = product[-1:, -1:], before[-1:, -1:]
    return {"c": product, BEFORE: before, "skipped": arrays["skipped"]}


def _agree(got: Arrays, expected: Arrays, *, output: str, side: int) -> Mismatch | None:
    """None where, in either order, each block of `side` × `side` elements did its share or was not run."""
    row, column = np.indices(expected[output].shape) // side
    x, y = (row, column) if output == "y" else (column, row)
    made = calls.is_run(x, y, int(expected["skipped"]))
    want = {output: np.where(made, expected[output], expected[BEFORE])}
    if (differs := _differ(got, output, want)) is not None:
        return differs
    if (differs := _differ(got, calls.OTHER_ORDER.format(output), want)) is not None:
        what = f"it depends on which threads come first: last to first {differs.what}"
        return Mismatch(what, differs.got, differs.expected)
    return None


def _differ(got: Arrays, name: str, want: Arrays) -> Mismatch | None:
    """How what came back by a name differs from the one array that is wanted."""
    return close(*forgive_nan(dict.fromkeys(want, got[name]) if name in got else {}, want))


def _agree_by_tiles(got: Arrays, expected: Arrays) -> Mismatch | None:
    return _agree(got, expected, output="y", side=TILE)


def _agree_by_squares(got: Arrays, expected: Arrays) -> Mismatch | None:
    side = got.get("CPP_TILE", np.array(0))
    if side.shape != () or side.dtype.kind != "i" or side < 1:
        return Mismatch("CPP_TILE is no side of a tile", expected="a whole number from 1 on")
    return _agree(got, expected, output="c", side=int(side))


def _describe_transpose(arrays: Arrays) -> str:
    if "rows" in arrays:
        return _describe_last_tile(int(arrays["rows"]), int(arrays["columns"]))
    rows, columns = arrays["x"].shape
    return "\n".join(
        (
            "import torch",
            "from mlsys_lab.kernels.cuda_cpp import Emulator, Source",
            f"x, y = torch.randn({rows}, {columns}), torch.zeros({columns}, {rows})",
            f"grid = {-(-columns // TILE), -(-rows // TILE)}",
            "for last_first in (False, True):",
            '    run, text = Emulator(reversed=last_first), Source(transpose_cpp(), "transpose.cu")',
            f'    run(text, "transpose", grid, {TILE, ROWS}, x, y, {rows}, {columns})',
            "    print((y - x.T).abs().max())",
        )
    )


def _describe_last_tile(rows: int, columns: int) -> str:
    return "\n".join(
        (
            "import torch",
            "from mlsys_lab.kernels.cuda_cpp import Emulator, Part, Source",
            f"rows, columns = {rows}, {columns}  # of a matrix of which only the last tile of {TILE} × {TILE} is there",
            f"x, y = torch.randn({TILE}, {TILE}), torch.zeros({TILE}, {TILE})",
            f"of_x = Part((rows - {TILE}) * columns + columns - {TILE}, pitch=columns)",
            f"of_y = Part((columns - {TILE}) * rows + rows - {TILE}, pitch=rows)",
            f'grid, text = (columns // {TILE}, rows // {TILE}), Source(transpose_cpp(), "transpose.cu")',
            "run = Emulator(blocks=[grid[0] * grid[1] - 1], parts=(of_x, of_y))",
            f'run(text, "transpose", grid, {TILE, ROWS}, x, y, rows, columns)',
            "print((y - x.T).abs().max())",
        )
    )


def _describe_matmul(arrays: Arrays) -> str:
    (m, k), n = arrays["a"].shape, arrays["b"].shape[1]
    if "m" in arrays:
        return _describe_last_rows(int(arrays["m"]), n, k)
    if "n" in arrays:
        return _describe_last_columns(m, int(arrays["n"]), k)
    return "\n".join(
        (
            "import torch",
            "from mlsys_lab.kernels.cuda_cpp import Emulator, Source",
            f'a, b, c = torch.from_numpy(given["a"]), torch.from_numpy(given["b"]), torch.zeros({m}, {n})',
            f"grid = -(-{n} // CPP_TILE), -(-{m} // CPP_TILE)",
            "for last_first in (False, True):",
            '    run, text = Emulator(reversed=last_first), Source(matmul_cpp(), "matmul.cu")',
            f'    run(text, "matmul", grid, {SIDE, SIDE}, a, b, c, {m}, {n}, {k})',
            '    print("wrong at", (~torch.isclose(c, a @ b, atol=1e-4)).nonzero().tolist())',
        )
    )


def _describe_last_rows(m: int, n: int, k: int) -> str:
    return "\n".join(
        (
            "import torch",
            "from mlsys_lab.kernels.cuda_cpp import Emulator, Part, Source",
            f"m, n, k = {m}, {n}, {k}  # of a and c only the rows of the last square are there",
            "columns, rows = -(-n // CPP_TILE), -(-m // CPP_TILE)",
            "top = (rows - 1) * CPP_TILE",
            "a, b, c = torch.rand(m - top, k), torch.rand(k, n), torch.zeros(m - top, n)",
            "run = Emulator(blocks=[rows * columns - 1], parts=(Part(top * k), Part(), Part(top * n)))",
            f'run(Source(matmul_cpp(), "matmul.cu"), "matmul", (columns, rows), {SIDE, SIDE}, a, b, c, m, n, k)',
            "print((c - a @ b)[-1, -1])",
        )
    )


def _describe_last_columns(m: int, n: int, k: int) -> str:
    return "\n".join(
        (
            "import torch",
            "from mlsys_lab.kernels.cuda_cpp import Emulator, Part, Source",
            f"m, n, k = {m}, {n}, {k}  # of b and c only the columns of the last square are there",
            "columns, rows = -(-n // CPP_TILE), -(-m // CPP_TILE)",
            "left = (columns - 1) * CPP_TILE",
            "a, b, c = torch.rand(m, k), torch.rand(k, n - left), torch.zeros(m, n - left)",
            "run = Emulator(blocks=[rows * columns - 1], parts=(Part(), Part(left, n), Part(left, n)))",
            f'run(Source(matmul_cpp(), "matmul.cu"), "matmul", (columns, rows), {SIDE, SIDE}, a, b, c, m, n, k)',
            "print((c - a @ b)[-1, -1])",
        )
    )


CHECKS = (
    Check(
        name="transpose_cpp",
        title="A transpose in CUDA C++",
        points=4,
        cases=(
            Case("one tile", {"shape": (32, 32)}),
            Case("rows that do not divide by the tile", {"shape": (45, 64)}),
            Case("some of the blocks", {"shape": (100, 70), **SOME}),
            Case("the last tile of 66,560 × 67,584", {"shape": (TILE, TILE), "within": LARGE}),
            Case("any sides", {"shape": (33, 129), **SOME}, hidden=True),
            Case("a tile and a half of columns", {"shape": (64, 48)}, hidden=True),
            Case("one row", {"shape": (1, 40)}, hidden=True),
            Case("one column", {"shape": (37, 1)}, hidden=True),
        ),
        inputs=_transpose_inputs,
        run=calls.transpose,
        describe=_describe_transpose,
        expect=_transpose_expect,
        compare=_agree_by_tiles,
        first_hint="Which line of your kernel of Task 6 has no counterpart here, and what does x[row, column] become?",
        hint="As in Task 6, with x[(size_t)row * columns + column] for x[row, column]: y has `rows` columns. Both "
        "sides of both matrices have a guard, and the barrier stands outside of them.",
        uses=("transpose_cpp",),
        time_limit_s=LIMIT_S,
        kernel_sources=("transpose_cpp",),
        traced=True,
        performance=speed.TRANSPOSE,
    ),
    Check(
        name="matmul_cpp",
        title="A matrix product in CUDA C++",
        points=6,
        cases=(
            Case("whole tiles", {"mkn": (64, 32, 128)}),
            Case("sides that do not divide by the tile", {"mkn": (20, 37, 50)}),
            Case("infinities at the end of a row and of a column", {"mkn": (20, 49, 23), "infinite": ENDS}),
            Case("whole tiles, an odd number to add up", {"mkn": (128, 37, 128)}),
            Case("some of the blocks, an infinity in a", {"mkn": (132, 12, 70), **SOME, "infinite": NEXT}),
            Case("rows below a tile, zeros opposite infinities", {"mkn": (32, 64, 128), "infinite": ZEROS}),
            Case("more than 2³² elements of a", {"mkn": (1, DEEP, 8), "m": TALL}),
            Case("more than 2³² elements of b and of c", {"mkn": (4, 4, 1), "n": BROAD}),
            Case("any sides, infinities", {"mkn": (70, 37, 150), **SOME, "infinite": STALE}, hidden=True),
            Case("columns below a tile", {"mkn": (128, 64, 32)}, hidden=True),
            Case("one element", {"mkn": (1, 1, 1)}, hidden=True),
            Case("nothing to add up", {"mkn": (5, 0, 18)}, hidden=True),
        ),
        inputs=_matmul_inputs,
        run=calls.matmul,
        describe=_describe_matmul,
        expect=_matmul_expect,
        compare=_agree_by_squares,
        first_hint="Which elements of c are one thread's, and what do the tiles hold beyond the ends of a and b?",
        hint="Zeros for what lies outside of a and b, a barrier after the tiles are filled and one before they are "
        "filled anew, and a guard where c is written, for each of a thread's elements.",
        uses=("matmul_cpp", "CPP_TILE"),
        time_limit_s=LIMIT_S,
        kernel_sources=("matmul_cpp",),
        traced=True,
        performance=speed.MATMUL,
    ),
)
