"""Checks of lab 03: names, points, hints, and the ranges from which cases are drawn.

All but the predictions are traced: what is compared is what a kernel computed and what it did to memory. Of kernels in
CUDA C++, which an emulator runs, it is what they computed.

generators   inputs and oracles, limits of what may be counted, cases as code
comparison   how a launch is judged, and its messages
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlsys_checks.sandboxed import cuda as calls
from mlsys_checks.sandboxed.cuda import LAUNCHES, THREADS, TILE
from mlsys_checks.sandboxed.performance import Performance, Work
from mlsys_checks.sandboxed.spec import Case, Check, Lab, Range, draw_cases
from mlsys_checks.trusted import answers
from mlsys_checks.trusted.cuda import generators
from mlsys_checks.trusted.cuda.comparison import agree, agree_by_squares, agree_by_tiles
from mlsys_checks.trusted.cuda.generators import ENDS, NEXT, STALE, ZEROS
from mlsys_checks.trusted.repeats import repeat_first_case
from mlsys_checks.trusted.traced import describe_launch

if TYPE_CHECKING:
    from torch import Tensor

SHAPES = {
    "relu": "x.size",
    "causal_mask": "scores.shape",
    "outer": "(u.size, v.size)",
    "smooth": "x.size",
    "dot": "1",
    "block_sum": "{blocks}",
    "transpose": "x.T.shape",
    "matmul": "(a.shape[0], b.shape[1])",
}
"""Code for the shape of a kernel's output, where that is a new array."""
BLOCKS = {THREADS: "THREADS", (32, 4): "(32, 4)", (TILE, 8): "(TILE, ROWS)", (16, 16): "(SIDE, SIDE)"}
"""Code for a block."""


def _make_kernel_check(
    kernel: str, sizes: dict[str, Any], named: dict[str, dict[str, Any]], *, public: int, hidden: int, **fields: Any
) -> Check:
    """A check of one kernel: named cases that change some of the sizes, then cases that draw them."""
    name, plan = fields.pop("name", kernel), LAUNCHES[kernel]
    shape = SHAPES.get(kernel, "")
    return Check(
        name=name,
        cases=(
            *(Case(case, {**sizes, **changed}) for case, changed in named.items()),
            *draw_cases(sizes, public=public, hidden=hidden),
        ),
        inputs=generators.draw_for(kernel, getattr(generators, f"draw_{kernel}")),
        run=calls.launch,
        describe=describe_launch(kernel, BLOCKS[plan.block], plan.grid, plan.output if shape else "", shape),
        expect=getattr(generators, f"expect_{name}"),
        compare=agree,
        uses=(kernel,),
        traced=True,
        **fields,
    )


def library_transpose(x: Tensor) -> Tensor:
    """torch's copy of a transpose, as often as the learner's."""
    for _ in range(calls.TURNS):
        x = x.T.contiguous().view(x.shape)
    return x


def library_matmul(a: Tensor, b: Tensor) -> Tensor:
    """cuBLAS, through torch; in full fp32, since torch uses TF32 only on request."""
    return a.mm(b)


TRANSPOSE_SPEED = Performance(
    points=2,
    make=calls.make_transpose,
    call=calls.time_transpose,
    library=library_transpose,
    start=0.4,
    target=0.7,
    work=Work(size_bytes=calls.TURNS * 2 * 4 * calls.TURNED[0] * calls.TURNED[1]),
)
"""Extra points on a GPU, by a ratio to torch's speed. A transpose can be as fast as memory, and so can torch's. Inputs
to draw and an output to add up, some 5 passes over a matrix next to 32, count against the learner, so that 0.85 is the
most for one as fast as torch's. Without padding, a column takes 32 passes, which leaves about half the speed."""
MATMUL_SPEED = Performance(
    points=4,
    make=calls.make_matmul,
    call=calls.time_matmul,
    library=library_matmul,
    start=0.15,
    target=0.4,
    work=Work(size_bytes=3 * 4 * calls.EDGE**2, flops=2 * calls.EDGE**3, precision="fp32"),
)
"""Threads with 4 × 4 elements each make 8 requests to shared memory for 16 multiply-adds, and so reach half of the fp32
peak, where the library reaches about three quarters; with one element each it is an eighth."""

CPP_LIMIT_S = 30.0
"""Time limit of a case in CUDA C++, of which a compilation takes a second or two."""
LARGE = (66_560, 67_584)
"""Rows and columns of a matrix of more than 2³² elements: positions overflow 32 bits, with a sign or without."""
TALL, DEEP = 1_023_000, 4_208
"""Rows and columns of such a matrix where it is the first factor of a product."""
BROAD = 2**31 - 2**21
"""Columns of which four rows are such a matrix; an `int` holds this number, with a few beyond."""
FOLD, LONG = 2**28 + 1, 2**56 + 1
"""Factors of sides and of k for counts beyond 64 bits, whose digits no float64 holds."""

CHECKS = (
    _make_kernel_check(
        "relu",
        {"blocks": Range(1, 4), "scale": Range(-30, 38), "infinite": Range(0, 2)},
        {
            "one block": {"blocks": 1, "scale": 0, "infinite": 0},
            "two blocks, large numbers": {"blocks": 2, "scale": 38, "infinite": 1},
            "tiny numbers": {"scale": -30},
        },
        public=1,
        hidden=1,
        title="A thread for each element",
        points=4,
        first_hint="Which element is this thread's, counted over all blocks, and how often does your code load x?",
        hint="i = cuda.grid(1) counts over all blocks; cuda.threadIdx.x starts at 0 in each. Keep x[i] in a variable "
        "if you need it twice: each x[i] in your code is a load.",
    ),
    _make_kernel_check(
        "sgd_step",
        {"n": Range(1, 400, edges=(THREADS, 2 * THREADS, 192)), "infinite": Range(0, 1)},
        {
            "100 elements for 128 threads": {"n": 100, "infinite": 0},
            "whole warps": {"n": 3 * THREADS // 2, "infinite": 1},
            "a learning rate of 0": {"n": 50, "infinite": 1, "factor": 0},
            "an infinite learning rate": {"n": 50, "infinite": 0, "factor": float("inf")},
        },
        public=1,
        hidden=2,
        title="More threads than elements",
        points=6,
        first_hint="How many threads are there, how many elements, and what do the remaining threads do?",
        hint="A thread whose i is not below w.size touches nothing, neither w nor g.",
    ),
    _make_kernel_check(
        "causal_mask",
        {"t": Range(1, 40), "infinite": Range(0, 99)},
        {"16 queries and keys": {"t": 16, "infinite": 0}, "38 queries and keys": {"t": 38, "infinite": 99}},
        public=1,
        hidden=2,
        title="Two dimensions, along rows",
        points=6,
        first_hint="Write row and column of lanes 0, 1 and 2 of a warp. Are these neighbours in memory?",
        hint="cuda.grid(2) returns the position along x first. The threads of a warp are neighbours along x: let these "
        "be the columns. Guard rows and columns, and load a score only where column <= row.",
    ),
    _make_kernel_check(
        "outer",
        {"rows": Range(1, 24), "columns": Range(1, 70, edges=(32, 64)), "zeros": Range(0, 1)},
        {
            "fewer rows than columns": {"rows": 2, "columns": 64, "zeros": 0},
            "more rows than columns, zeros and infinities": {"rows": 24, "columns": 16, "zeros": 1},
        },
        public=2,
        hidden=2,
        title="A row times a column",
        points=6,
        first_hint="Which of the two vectors does a thread's row belong to, and where does each of them end?",
        hint="u goes with the row, v with the column; each can run out before the threads do, so the guard has two "
        "conditions.",
    ),
    _make_kernel_check(
        "axpy",
        {"n": Range(0, 1300), "blocks": Range(2, 4), "infinite": Range(0, 1)},
        {
            "fewer elements than threads": {"n": 100, "blocks": 2, "infinite": 0},
            "elements for 17 iterations and a half": {"n": 35 * THREADS, "blocks": 2},
            "an odd number of elements, three blocks": {"n": 555, "blocks": 3},
            "`a` is 0, infinite elements": {"n": 300, "blocks": 2, "infinite": 1, "factor": 0},
            "`a` is infinite": {"n": 300, "blocks": 2, "infinite": 0, "factor": float("inf")},
        },
        public=1,
        hidden=2,
        title="More elements than threads",
        points=6,
        first_hint="With more elements than threads: which is a thread's first element, and how far is it to its next?",
        hint="A loop that starts at the thread's position in the grid and steps by the number of all threads. A chunk "
        "of neighbouring elements for each thread scatters a warp's requests.",
    ),
    Check(
        name="predict_sectors",
        title="Sectors of two naive kernels, by hand",
        points=6,
        cases=(
            Case("small matrices", {"fold": 1, "long": 1}),
            Case("huge matrices", {"fold": FOLD, "long": LONG}),
            Case("other matrices", {"fold": Range(1, 9), "long": Range(1, 9)}, hidden=True),
        ),
        inputs=generators.draw_sectors,
        run=calls.predict,
        describe=generators.describe_predictions,
        expect=generators.expect_sectors,
        compare=answers.agree,
        first_hint="Take one warp and one of its loads: which addresses do its 32 lanes ask for?",
        hint="How many requests are there (one for each warp and load, so k for each warp in the product's loop), and "
        "how many sectors does one touch? There are three kinds: 32 neighbours, 32 elements in different rows, one "
        "element for all.",
        uses=("predict_transpose", "predict_matmul"),
    ),
    Check(
        name="predict_loads",
        title="Loads of a matrix product by tiles, by hand",
        points=7,
        cases=(
            Case("the naive kernel", {"side": 1, "other": 3, "long": 1}),
            Case("blocks of 8 × 8", {"side": 8, "other": 4, "long": 1}),
            Case("huge matrices, wide blocks", {"side": 40, "other": 16, "long": LONG}),
            *draw_cases({"side": Range(1, 12), "other": Range(1, 12), "long": Range(1, 5)}, public=0, hidden=1),
        ),
        inputs=generators.draw_loads,
        run=calls.predict,
        describe=generators.describe_predictions,
        expect=generators.expect_loads,
        compare=answers.agree,
        first_hint="What does one block load in all, and how many blocks are there?",
        hint="A block needs `side` rows of a, k numbers each, and as many columns of b; there are (m/side)·(n/side) "
        "blocks. Return whole numbers: divide by //.",
        uses=("predict_loads",),
    ),
    _make_kernel_check(
        "smooth",
        {"n": Range(1, 400, edges=(THREADS, THREADS + 1, 2 * THREADS)), "infinite": Range(0, 1)},
        {
            "100 elements, one block": {"n": 100, "infinite": 0},
            "three blocks, the last of whole warps": {"n": 2 * THREADS + 64, "infinite": 0},
            "infinite elements": {"n": THREADS + 60, "infinite": 1},
            "a full block": {"n": THREADS, "infinite": 0},
            "a block with one element": {"n": THREADS + 1, "infinite": 0},
        },
        public=1,
        hidden=2,
        title="Neighbours through shared memory",
        points=8,
        first_hint="Draw the block's shared array with both of its ends: which thread fills each element, and which "
        "threads read it?",
        hint="Each thread loads its own element, the block's first and last thread one neighbour more, 0 where there "
        "is none. Then the barrier, which all threads reach, and only then the sum. The thread of the last element "
        "needs a 0 to its right, too.",
    ),
    _make_kernel_check(
        "dot",
        {"n": Range(0, THREADS, edges=(1, 64))},
        {
            "as many elements as threads": {"n": THREADS},
            "100 elements": {"n": 100},
            "a zero opposite an infinity": {"n": 96, "opposite": (0, float("inf"))},
            "no elements": {"n": 0},
            "an infinite product": {"n": 127, "opposite": (-2, float("inf"))},
        },
        public=1,
        hidden=2,
        title="A dot product by one block",
        points=7,
        first_hint="What does shared memory hold when the last sum starts, and which thread has stored it there?",
        hint="Products of all threads into shared memory, a barrier, then one thread adds as many as there are "
        "elements, in a variable, and stores once. Shared memory that no thread has stored to holds anything.",
    ),
    _make_kernel_check(
        "block_sum",
        {"n": Range(0, 1300), "blocks": Range(1, 3), "infinite": Range(0, 1)},
        {
            "two blocks, 200 elements": {"n": 200, "blocks": 2, "infinite": 0},
            "three blocks, 896 elements": {"n": 7 * THREADS, "blocks": 3, "infinite": 0},
            "an infinite element": {"n": 555, "blocks": 2, "infinite": 1},
            "a block without elements": {"n": 100, "blocks": 2, "infinite": 0},
        },
        public=1,
        hidden=2,
        title="A sum by a tree",
        points=10,
        first_hint="Draw the tree for eight threads: which thread adds whose number in each step, and which threads "
        "have to wait for one another?",
        hint="Every thread stores, also 0. In each step half as many threads as before add a number from the other "
        "half to their own; after each step there is a barrier, outside of the `if`.",
    ),
    _make_kernel_check(
        "transpose",
        {"rows": Range(1, 66, edges=(32, 64)), "columns": Range(1, 66, edges=(32, 64))},
        {
            "one tile": {"rows": 32, "columns": 32},
            "sides of whole tiles": {"rows": 32, "columns": 64},
            "sides that do not divide by the tile": {"rows": 45, "columns": 38},
            "half a tile of rows": {"rows": 16, "columns": 64},
            "half a tile of columns": {"rows": 64, "columns": 16},
        },
        public=0,
        hidden=2,
        title="A transpose in whole sectors",
        points=8,
        first_hint="Follow threadIdx.x: along which axis of x does it run in the load, along which of y in the store?",
        hint="threadIdx.x runs along a row both times, of x and of y; so the turn is in the tile, which is filled by "
        "rows and emptied by columns. Where does the tile of y start? Each side has a guard.",
    ),
    _make_kernel_check(
        "transpose",
        {"rows": Range(30, 50), "columns": Range(30, 50)},
        {"one tile": {"rows": 32, "columns": 32}},
        public=0,
        hidden=1,
        name="transpose_banks",
        title="A transpose without bank conflicts",
        points=4,
        first_hint="In which banks are 32 neighbours of one column of your tile?",
        hint="The words of a column of the tile should be in different banks: how far apart are they, modulo 32? A "
        "column that is not used changes that.",
    ),
    _make_kernel_check(
        "matmul",
        {"m": Range(1, 20), "k": Range(0, 66), "n": Range(1, 20), "infinite": Range(0, 4)},
        {
            "one tile": {"m": 16, "k": 16, "n": 16, "infinite": 0},
            "two tiles and a half along k, infinities": {"m": 16, "k": 40, "n": 16, "infinite": STALE},
            "sides that do not divide by the tile": {"m": 18, "k": 9, "n": 20, "infinite": 0},
            "half a tile of rows, zeros opposite infinities": {"m": 8, "k": 32, "n": 16, "infinite": ZEROS},
            "half a tile of columns": {"m": 16, "k": 32, "n": 8, "infinite": 0},
            "nothing to add": {"m": 5, "k": 0, "n": 18, "infinite": 0},
        },
        public=0,
        hidden=2,
        title="A matrix product by tiles",
        points=8,
        first_hint="Take one step along k: which two tiles are there, which thread loads what, and when may they be "
        "filled again?",
        hint="For each step of SIDE along k: each thread loads one element of both tiles, zeros outside; a barrier; "
        "SIDE multiply-adds; a barrier before the tiles are filled again. Add in a variable, store once.",
    ),
    _make_kernel_check(
        "matmul",
        {"m": Range(1, 20), "k": Range(17, 33), "n": Range(1, 20)},
        {"whole tiles": {"m": 16, "k": 32, "n": 16}},
        public=0,
        hidden=1,
        name="matmul_memory",
        title="A matrix product in whole sectors, without bank conflicts",
        points=4,
        first_hint="In each access, which index does threadIdx.x stand in?",
        hint="threadIdx.x is the last index wherever a warp should access neighbours: of a and b when they are loaded, "
        "of both tiles when they are filled, of b's tile when it is multiplied, and of c.",
    ),
    Check(
        name="transpose_cpp",
        title="A transpose in CUDA C++",
        points=4,
        cases=(
            Case("one tile", {"rows": 32, "columns": 32, "some": 0}),
            Case("rows that do not divide by the tile", {"rows": 45, "columns": 64, "some": 0}),
            Case("some of the blocks", {"rows": 100, "columns": 70, "some": 1}),
            Case("the last tile of 66,560 × 67,584", {"rows": TILE, "columns": TILE, "some": 0, "sizes": LARGE}),
            *draw_cases({"rows": Range(1, 70), "columns": Range(1, 130), "some": Range(0, 1)}, public=0, hidden=2),
        ),
        inputs=generators.draw_transpose_cpp,
        run=calls.transpose_cpp,
        describe=generators.describe_transpose_cpp,
        expect=generators.expect_transpose_cpp,
        compare=agree_by_tiles,
        first_hint="Which line of your kernel of Task 6 has no counterpart here, and what does x[row, column] become?",
        hint="As in Task 6, with x[(size_t)row * columns + column] for x[row, column]: y has `rows` columns. Both "
        "sides of both matrices have a guard, and the barrier is outside of them.",
        uses=("transpose_cpp",),
        time_limit_s=CPP_LIMIT_S,
        kernel_sources=("transpose_cpp",),
        traced=True,
        performance=TRANSPOSE_SPEED,
    ),
    Check(
        name="matmul_cpp",
        title="A matrix product in CUDA C++",
        points=6,
        cases=(
            Case("whole tiles", {"m": 64, "k": 32, "n": 128, "some": 0}),
            Case("sides that do not divide by the tile", {"m": 20, "k": 37, "n": 50, "some": 0}),
            Case("infinities in the last column and row", {"m": 20, "k": 49, "n": 23, "some": 0, "infinite": ENDS}),
            Case("whole tiles, an odd number to add", {"m": 128, "k": 37, "n": 128, "some": 0}),
            Case("some of the blocks, an infinity in a", {"m": 132, "k": 12, "n": 70, "some": 1, "infinite": NEXT}),
            Case("rows below a tile, zeros and infinities", {"m": 32, "k": 64, "n": 128, "some": 0, "infinite": ZEROS}),
            Case("more than 2³² elements of a", {"m": 1, "k": DEEP, "n": 1, "some": 0, "sizes": (TALL, 8)}),
            Case("more than 2³² elements of b and of c", {"m": 1, "k": 4, "n": 1, "some": 0, "sizes": (4, BROAD)}),
            *draw_cases(
                {"m": Range(1, 130), "k": Range(0, 66), "n": Range(1, 150), "some": 1, "infinite": Range(0, 4)},
                public=0,
                hidden=2,
            ),
        ),
        inputs=generators.draw_matmul_cpp,
        run=calls.matmul_cpp,
        describe=generators.describe_matmul_cpp,
        expect=generators.expect_matmul_cpp,
        compare=agree_by_squares,
        first_hint="Which elements of c are one thread's, is CPP_TILE the side of the square that a block of your text "
        "computes, and what do the tiles hold beyond the ends of a and b?",
        hint="Zeros for what lies outside of a and b, a barrier after the tiles are filled and one before they are "
        "filled again, and a guard where c is stored, for each of a thread's elements.",
        uses=("matmul_cpp", "CPP_TILE"),
        time_limit_s=CPP_LIMIT_S,
        kernel_sources=("matmul_cpp",),
        traced=True,
        performance=MATMUL_SPEED,
    ),
)

LAB = Lab("cuda", repeat_first_case(CHECKS))
