"""Checks of lab 04: names, points, hints, and the sizes from which cases are drawn.

rows     Tasks 1 to 4: elementwise, softmax, RMS norm and its gradients
tiles    Tasks 5 to 8: order of tiles, product, attention, decode

Every check but `attention_bytes` is traced: values are compared first, then faults, then traffic (`trusted.traced`).
Sides of blocks are powers of two: `log_M` = 1 is a tile of 32 rows, `log_block` = 5 a block of 32 elements.
"""

from __future__ import annotations

from typing import Any

import torch

from mlsys_checks.sandboxed import triton as calls
from mlsys_checks.sandboxed.performance import Performance, Work
from mlsys_checks.sandboxed.spec import Case, Check, Lab, Range, draw_cases
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.repeats import repeat_first_case
from mlsys_checks.trusted.traced import agree
from mlsys_checks.trusted.triton import rows, tiles

HALF, BIT = {"half": True}, Range(0, 1)
WIDE = {**HALF, "wide": True}
KIND = {"half": BIT, "wide": BIT}

ELEMENTS = {"n": Range(1, 70, edges=(16, 32)), "log_block": Range(3, 5), **KIND}
ROWS = {"rows": Range(1, 4), "D": Range(1, 40, edges=(16, 32)), **KIND}
NORM = {**ROWS, "D": Range(2, 40, edges=(16, 32))}
BACKWARD = {**NORM, "rows": Range(1, 9), "programs": Range(1, 6), "log_block": Range(3, 5)}
SMALL_OTHERS = {"mean": -64.0, "spread": 0.05, "first": 14.0}
"""Exponentials below 1e-6 of the largest one, of which 300 add up to more than the tolerance."""
LOWEST = {"mean": -3.4028234663852886e38, "spread": 0.0}
"""The lowest float32: no finite number stands for −∞ next to it."""
TINY = {"mean": 0.0, "spread": 1e-4, "eps": 1e-8, "zeros": 1, **WIDE}
"""Squares as small as ε, which is 0 in half precision."""
LARGE_DY = {**HALF, "mean": 2.0, "spread": 0.1, "rows_of_dy": [2.5e4, 2.5e4, 2.5e4, -2.5e4]}
"""Gradients whose sum over rows is a float16, while that of the first three is none."""

ORDER = {"tiles_m": Range(1, 9), "tiles_n": Range(1, 7), "group": Range(1, 10), "log_M": BIT, "log_N": BIT}
TILES = {"log_M": Range(0, 2), "log_N": Range(0, 2), "log_K": BIT, "group": Range(1, 5)}
LAYOUT = {"a_transposed": BIT, "b_transposed": BIT, "padded": Range(0, 0)}
PRODUCT = {"m": Range(1, 70), "n": Range(1, 70), "k": Range(1, 60), **TILES, **LAYOUT, **KIND}
HEADS = {"heads": Range(1, 2), "tokens": Range(1, 50, edges=(16, 33)), "D": Range(1, 24, edges=(16,))}
ATTENTION = {**HEADS, "half": BIT, "log_M": BIT, "log_N": BIT}
EQUAL = {**HALF, "scores": {None: -1e6}, "scale": 2.0**80}
"""Every score is the same, 10³⁰ below zero: below any number but −∞."""
CANCELLING = {**HALF, "spread": 0.1, "scores": {None: 150.0}, "cancelling": 1.03, "scale": 0.3}
"""Scores of about −3 from large products, and so log-sum-exps near zero, where each rounding shows."""
RISING = {**HALF, "spread": 0.1, "scores": {17: 12.3, 33: 26.8}}
"""Scores whose exponentials, relative to a maximum of earlier blocks, exceed float16."""
ROUNDED = {**HALF, "spread": 0.0, "scores": {0: 3.75, None: -20.0}, "scale": 0.6927 / 3.75}
"""Weights of 1 and 0.50022, which rounds to a half; log-sum-exps come near zero."""
CACHE = {"sequences": Range(1, 3), "longest": Range(1, 70), "kv_heads": Range(1, 3)}
CACHE |= {"log_group": Range(0, 3), "log_size": BIT, "log_D": BIT, **KIND}


def _library_softmax(x: torch.Tensor) -> torch.Tensor:
    y = torch.softmax(x, 1)
    for _ in range(calls.REPEATS - 1):
        y = torch.softmax(torch.add(x, y, alpha=calls.WEIGHT), 1)
    return y


def _library_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def _library_flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]


# Targets follow from estimates; none has been measured on a GPU yet. Drawing inputs and adding up outputs counts
# against the learner (`Performance` says why): at an H100's data sheet figures a kernel as fast as torch's would reach
# about 0.8 for softmax, 0.7 for the product and 0.6 for attention.
SOFTMAX_SPEED = Performance(
    points=2,
    make=calls.make_softmax,
    call=calls.timed_softmax,
    library=_library_softmax,
    start=0.4,
    target=0.65,
    work=Work(size_bytes=calls.REPEATS * 2 * 4 * calls.ROWS * calls.COLUMNS),
)
MATMUL_SPEED = Performance(
    points=4,
    make=calls.make_matmul,
    call=calls.timed_matmul,
    library=_library_matmul,
    start=0.1,
    target=0.4,
    work=Work(size_bytes=3 * 2 * calls.SIDE**2, flops=2 * calls.SIDE**3, precision="fp16"),
)
FLASH_SPEED = Performance(
    points=4,
    make=calls.make_flash,
    call=calls.timed_flash,
    library=_library_flash,
    start=0.1,
    target=0.35,
    work=Work(
        size_bytes=4 * 2 * calls.HEADS * calls.TOKENS * calls.WIDTH,
        flops=2 * calls.HEADS * calls.TOKENS * (calls.TOKENS + 1) * calls.WIDTH,
        precision="fp16",
    ),
)


def _check(
    name: str, inputs: Any, run: Any, expect: Any, describe: Any, *, uses: str, compare: Any = agree, **parts: Any
) -> Check:
    """Return a traced check of kernels."""
    sides = {"inputs": inputs, "run": run, "expect": expect, "compare": compare}
    return Check(name, **sides, describe=describe, uses=tuple(uses.split()), traced=True, **parts)


CHECKS = (
    _check(
        "silu_mul",
        rows.draw_silu,
        calls.silu_mul,
        rows.expect_silu,
        rows.describe_silu,
        uses="silu_mul_kernel",
        compare=rows.compare_programs,
        title="An elementwise kernel with a mask",
        points=5,
        cases=(
            Case("two full blocks", {"n": 32}),
            Case("a last block that is not full", {"n": 37}),
            Case("one element, nearly zero", {"n": 1, "mean": 7e-4, "spread": 1e-4}),
            Case("half precision, gates of about −17", {"n": 51, **HALF, "mean": -17.0, "spread": 1.0, "up": 3000.0}),
            Case("gates far from zero, half precision in, float32 out", {"n": 40, "spread": 100.0, **WIDE}),
            Case("gates of about −50", {"n": 19, "mean": -50.0, "spread": 2.0}),
            Case("a gate of about −10³⁰", {"n": 3, "first": -1e30}),
            *draw_cases(ELEMENTS, public=1, hidden=2, n=Range(1, 200)),
        ),
        first_hint="Which offsets of the last program are beyond the array, and which of your lines still touch "
        "them? If only values differ: what is computed before `.to(tl.float32)`?",
        hint="A program's offsets are a block that starts at its number times BLOCK. Those below `n` are inside; both "
        "loads and the store need that mask. tl.sigmoid wants float32.",
    ),
    _check(
        "softmax",
        rows.draw_softmax,
        calls.softmax,
        rows.expect_softmax,
        rows.describe_softmax,
        uses="softmax_kernel",
        title="Softmax of rows of any length",
        points=8,
        cases=(
            Case("a row that fills its block", {"rows": 2, "D": 8}),
            Case("rows that do not fill their block", {"rows": 3, "D": 13}),
            Case("large numbers", {"rows": 2, "D": 11, "mean": 120.0, "spread": 30.0}),
            Case("all far below zero, two of them −∞", {"rows": 2, "D": 6, "mean": -1e5, "masked": [0, 4]}),
            Case("all of them the lowest float32", {"rows": 2, "D": 3, **LOWEST}),
            Case("half precision in, float32 out", {"rows": 2, "D": 21, **WIDE}),
            Case("a large number and 300 small ones", {"rows": 2, "D": 301, **SMALL_OTHERS}),
            *draw_cases(ROWS, public=2, hidden=2, D=Range(1, 300, edges=(256,))),
        ),
        first_hint="What is in the lanes beyond the row's end, and what do they do to the maximum and to the sum?",
        hint="What is loaded beyond the end must not be the maximum, and its exponential must be 0. Subtract the "
        "maximum before exp, divide by the row's sum, store under the same mask.",
    ),
    _check(
        "softmax_traffic",
        rows.draw_softmax,
        calls.softmax,
        rows.expect_softmax_traffic,
        rows.describe_softmax,
        uses="softmax_kernel",
        performance=SOFTMAX_SPEED,
        title="Softmax loads and stores each number once",
        points=4,
        cases=(
            Case("rows of 29", {"rows": 4, "D": 29}),
            *draw_cases({**ROWS, "D": Range(16, 64)}, public=1, hidden=1, rows=Range(2, 6)),
        ),
        first_hint="How often does the kernel load the row, and does another program load it too?",
        hint="One tl.load, kept in a variable, serves maximum, sum and quotients: nothing has to be stored in between. "
        "Each program has one row, that of its own number.",
    ),
    _check(
        "rms_norm",
        rows.draw_norm,
        calls.rms_norm,
        rows.expect_norm,
        rows.describe_norm,
        uses="rms_norm_kernel",
        title="RMS norm of rows, and their r",
        points=6,
        cases=(
            Case("rows of 8", {"rows": 3, "D": 8}),
            Case("rows that do not fill their block", {"rows": 3, "D": 13}),
            Case("small numbers, where ε matters", {"rows": 2, "D": 7, "spread": 0.01, "eps": 0.1}),
            Case("half precision in, float32 out", {"rows": 2, "D": 19, "spread": 300.0, **WIDE}),
            Case("smaller numbers and ε, half precision, a row of zeros", {"rows": 3, "D": 7, **TINY}),
            Case("one element", {"rows": 1, "D": 1}),
            *draw_cases(NORM, public=1, hidden=2, D=Range(1, 200)),
        ),
        first_hint="Which number does the mean divide by, where is ε, and at which address is a row's r?",
        hint="The mean divides by D; ε is added to it under the root. r is one number per row: store it at r_ptr + "
        "row. Beyond the row's end x must be 0.",
    ),
    _check(
        "rms_norm_traffic",
        rows.draw_norm,
        calls.rms_norm,
        rows.expect_norm_traffic,
        rows.describe_norm,
        uses="rms_norm_kernel",
        title="RMS norm loads each row once",
        points=3,
        cases=(
            Case("rows of 27", {"rows": 4, "D": 27}),
            Case("other rows", {**NORM, "rows": Range(2, 5), "D": Range(16, 64)}, hidden=True),
        ),
        first_hint="What of a row is used twice, and where is it in between?",
        hint="Keep x between the sum of its squares and the product. One program, one row.",
    ),
    _check(
        "rms_norm_backward",
        rows.draw_backward,
        calls.rms_norm_backward,
        rows.expect_backward,
        rows.describe_backward,
        uses="rms_norm_backward_kernel sum_rows_kernel",
        title="Gradients of x and of the weight",
        points=9,
        cases=(
            Case("one program", {"rows": 2, "D": 8, "programs": 1}),
            Case("rows that do not divide among programs", {"rows": 5, "D": 13, "programs": 2, "eps": 0.5}),
            Case("more columns than one program adds", {"rows": 3, "D": 21, "programs": 3}),
            Case("half precision in, float32 out", {"rows": 4, "D": 19, "programs": 3, **WIDE}),
            Case("half precision, large partial sums", {"rows": 4, "D": 5, "programs": 4, **LARGE_DY}),
            Case("seventy programs", {"rows": 71, "D": 5, "programs": 70}),
            Case("one column, seventy rows per program", {"rows": 140, "D": 1, "programs": 2, "eps": 0.5}),
            *draw_cases({**BACKWARD, "eps": 0.5}, public=1, hidden=2, spread_of_dy=50.0),
        ),
        first_hint="Which result is off? dx depends on one row, dw on all: look at the row's sum first, then at the "
        "partial sums.",
        hint="∂r/∂x is −r³ · x / D, so dx is r times (g minus x̂ times a mean over the row). That mean divides by D. "
        "A partial sum adds dy · x̂, without w, over the rows of its program, and sum_rows_kernel adds all P rows.",
    ),
    _check(
        "rms_norm_backward_traffic",
        rows.draw_backward,
        calls.rms_norm_backward,
        rows.expect_backward_traffic,
        rows.describe_backward,
        uses="rms_norm_backward_kernel sum_rows_kernel",
        title="The backward pass loads x and dy once, and shares its work",
        points=4,
        cases=(
            Case("6 rows, 3 programs", {"rows": 6, "D": 21, "programs": 3}),
            Case("11 rows, 2 programs", {"rows": 11, "D": 33, "programs": 2, "log_block": 3}, hidden=True),
            Case("others", {**BACKWARD, "rows": Range(4, 12), "D": Range(17, 40)}, hidden=True),
        ),
        first_hint="What is the same for all rows of a program, and what is complete only after the last?",
        hint="Load w before the loop. Within it, x and dy are loaded once and serve dx as well as the partial sum, "
        "which is stored once, after the loop.",
    ),
    _check(
        "tile_order",
        tiles.draw_order,
        calls.order,
        tiles.expect_order,
        tiles.describe_order,
        uses="tile_index order_kernel",
        title="Which tile is whose",
        points=6,
        cases=(
            Case("row-major, all tiles full", {"tiles_m": 3, "tiles_n": 4, "group": 1, "cut": 0}),
            Case("groups of 2 rows, the last one lower", {"tiles_m": 3, "tiles_n": 4, "group": 2, "cut": 1}),
            Case("two full groups of 3 rows", {"tiles_m": 6, "tiles_n": 2, "group": 3}),
            Case("a group larger than the matrix, tall tiles", {"tiles_m": 2, "tiles_n": 3, "group": 8, "log_M": 1}),
            Case("groups of 82 rows", {"tiles_m": 85, "tiles_n": 2, "group": 82}),  # 164 · (1 / 164) < 1 in float32
            *draw_cases(ORDER, public=3, hidden=3, tiles_m=Range(1, 14)),
        ),
        first_hint="Draw the tiles of the failing case and number the programs. How high is the last group?",
        hint="How many programs has a full group? // gives the group, % the place in it. The last group may be lower "
        "than GROUP_M: within a group, go down a column of that height, then the next.",
    ),
    _check(
        "matmul",
        tiles.draw_matmul,
        calls.matmul,
        tiles.expect_matmul,
        tiles.describe_matmul,
        uses="matmul_kernel",
        title="A product of tiles, accumulated in float32",
        points=10,
        cases=(
            Case("one tile", {"m": 16, "n": 16, "k": 16}),
            Case("three edges", {"m": 19, "n": 23, "k": 29}),
            Case("A transposed", {"m": 32, "n": 9, "k": 21, "a_transposed": True}),
            Case("B transposed", {"m": 9, "n": 32, "k": 21, "b_transposed": True}),
            Case("rows further apart than they are long", {"m": 18, "n": 16, "k": 21, "padded": True}),
            Case(
                "half precision, sums that pass 65,504 on their way",
                {"m": 9, "n": 1, "k": 300, **HALF, "mean": 60.0, "cancelling": True},
            ),
            Case("half precision, sums of 1,100 numbers", {"m": 1, "n": 5, "k": 1100, **WIDE, "mean": 1.0}),
            Case("grouped tiles, all of them full", {"m": 48, "n": 32, "k": 16, "group": 2}),
            Case("tiles of three sides", {"m": 70, "n": 67, "k": 37, "log_M": 1, "log_N": 2, "group": 2}),
            Case("one number", {"m": 1, "n": 1, "k": 1}),
            *draw_cases(PRODUCT, public=1, hidden=2),
        ),
        first_hint="What is special about this case: an edge inside a tile, a stride, half precision? Which of your "
        "lines depends on that?",
        hint="Rows and columns of the tile come from tile_index, the place along K from the loop. A load has two "
        "edges, and what is beyond K must add nothing to a sum. The accumulator starts as zeros in float32.",
    ),
    _check(
        "matmul_traffic",
        tiles.draw_matmul,
        calls.matmul,
        tiles.expect_matmul_traffic,
        tiles.describe_matmul,
        uses="matmul_kernel",
        compare=rows.compare_programs,
        performance=MATMUL_SPEED,
        title="A is loaded once per column of tiles, B once per row",
        points=6,
        cases=(
            Case("3 × 2 tiles", {"m": 37, "n": 29, "k": 20, "group": 2}),
            Case("half precision", {"m": 18, "n": 40, "k": 33, **HALF, "group": 2, "log_N": 1}, hidden=True),
            Case("others", {**PRODUCT, "m": Range(20, 70), "n": Range(20, 70), "group": Range(2, 3)}, hidden=True),
        ),
        first_hint="How often does a program load the same tile, how often does it store, and which tile is it?",
        hint="Each program computes one tile, the one that tile_index gives for this GROUP_M: per step along K one "
        "tile of A and one of B, and C once at the end.",
    ),
    Check(
        name="attention_bytes",
        title="Bytes of naive attention and of FlashAttention",
        points=6,
        cases=(
            Case("one block, two, and four", {"count": 0, "also": [[16, 16, 16], [32, 16, 16], [64, 16, 16]]}),
            Case("other head dimensions, and blocks of any size", {"count": 3}),
            Case(
                "one number changed at a time",
                {"count": 0, "also": [[720, 20, 24], [1440, 20, 24], [720, 21, 24], [720, 20, 48]]},
            ),
            Case("a hundred thousand tokens", {"count": 1, "low": 1000, "high": 1100, "least": 90}),
            Case("many others", {"count": 60, "least": 1}, hidden=True),
            Case("a million tokens", {"count": 0, "also": [[500 * 2003, 1999, 2003]]}, hidden=True),
        ),
        inputs=tiles.draw_sizes,
        run=calls.attention_bytes,
        expect=tiles.expect_bytes,
        compare=close,
        describe=tiles.describe_bytes,
        first_hint="Take two blocks and go through the programs: what does each load, and what does it store?",
        hint="Launch by launch: how many columns of tiles load all of Q, how many rows of tiles all of K, and which of "
        "the S² numbers are loaded or stored each time? D fits into one tile. Flash: how many blocks of keys does "
        "block number i of queries load? Use //, and 4 bytes per number.",
        uses=("naive_attention_bytes", "flash_attention_bytes"),
    ),
    _check(
        "flash",
        tiles.draw_attention,
        calls.flash,
        tiles.expect_attention,
        tiles.describe_attention,
        uses="flash_kernel",
        compare=tiles.compare_attention,
        title="Causal FlashAttention and its log-sum-exp",
        points=12,
        cases=(
            Case("one block", {"heads": 1, "tokens": 16, "D": 16}),
            Case("two heads, a last block that is not full", {"heads": 2, "tokens": 21, "D": 16}),
            Case("two heads, D no power of two", {"heads": 2, "tokens": 35, "D": 20, "scale": 0.3}),
            Case("scores far apart, wide key blocks", {"heads": 1, "tokens": 33, "D": 16, "spread": 7.0, "log_N": 1}),
            Case("the first key outweighs all others", {"heads": 1, "tokens": 20, "D": 16, "scores": {0: 110.0}}),
            Case("all scores far below zero", {"heads": 1, "tokens": 20, "D": 16, "scores": {None: -110.0}}),
            Case("equal scores, 10³⁰ below zero", {"heads": 1, "tokens": 20, "D": 16, "spread": 0.0, **EQUAL}),
            Case("wide query blocks", {"heads": 2, "tokens": 45, "D": 35, "log_M": 1}),
            Case("many blocks of keys", {"heads": 1, "tokens": 1041, "D": 16, "log_M": 7}),
            Case("half precision, large products that cancel", {"heads": 1, "tokens": 40, "D": 16, **CANCELLING}),
            Case("half precision, scores that rise block by block", {"heads": 1, "tokens": 40, "D": 16, **RISING}),
            Case("half precision, weights that all round down", {"heads": 1, "tokens": 33, "D": 1, **ROUNDED}),
            Case("half precision, large values", {"heads": 1, "tokens": 9, "D": 1, **HALF, "value": 3e4}),
            Case("one token", {"heads": 1, "tokens": 1, "D": 16, "scores": {0: -3.0}}),
            *draw_cases(ATTENTION, public=1, hidden=2, spread=3.0),
        ),
        first_hint="Which keys may the first query see, and what happens to your sums when a larger score comes?",
        hint="Scores of keys that a query does not see become -inf before the maximum is taken. The sum and the "
        "weighted values are both multiplied by exp(old maximum - new maximum). The log-sum-exp is the maximum plus "
        "the logarithm of the sum, of the scaled scores.",
    ),
    _check(
        "flash_traffic",
        tiles.draw_attention,
        calls.flash,
        tiles.expect_attention_traffic,
        tiles.describe_attention,
        uses="flash_kernel",
        compare=tiles.compare_attention,
        performance=FLASH_SPEED,
        title="Keys and values once for each block of queries that sees them",
        points=6,
        cases=(
            Case("three blocks", {"heads": 1, "tokens": 48, "D": 16}),
            Case("two heads", {"heads": 2, "tokens": 45, "D": 16, **HALF, "log_M": 1}, hidden=True),
            Case("others", {**ATTENTION, "tokens": Range(33, 70), "D": Range(8, 24)}, hidden=True),
        ),
        first_hint="Which is the last key that a program's queries see, and where does its loop end?",
        hint="Load Q before the loop. The loop ends with the block that holds the program's last query: no later key "
        "is seen. Nothing is stored before the end.",
    ),
    _check(
        "decode",
        tiles.draw_decode,
        calls.decode,
        tiles.expect_decode,
        tiles.describe_decode,
        uses="decode_kernel",
        compare=tiles.compare_decode,
        title="Attention of one token over a paged cache",
        points=10,
        cases=(
            Case("one full block", {"lengths": [16], "kv_heads": 1, "log_group": 0}),
            Case("blocks in any order, the last one not full", {"lengths": [67, 3]}),
            Case("four queries per group", {"lengths": [18], "log_group": 2, "scale": 0.7}),
            Case("scores far apart", {"lengths": [50], "kv_heads": 1, "spread": 5.0}),
            Case(
                "half precision in, float32 out",
                {"lengths": [64, 11], "kv_heads": 1, "log_size": 1, "log_D": 0, "log_group": 2, "scale": 0.3, **WIDE},
            ),
            Case("the first key outweighs all others", {"lengths": [36], "scores": {0: 110.0}}),
            Case("all scores far below zero", {"lengths": [19], "scores": {None: -110.0}}),
            Case("equal scores, 10³⁰ below zero", {"lengths": [19], "equal": True, **EQUAL}),
            Case(
                "a group of 32 unlike queries", {"lengths": [20], "log_group": 5, "scores": {0: 110.0}, "quiet": True}
            ),
            Case("one token", {"lengths": [1], "kv_heads": 1}),
            Case(
                "many blocks, the last key outweighs",
                {"lengths": [1025], "kv_heads": 1, "log_group": 0, "log_D": 0, "scores": {1024: 110.0}},
            ),
            *draw_cases(CACHE, public=1, hidden=2),
        ),
        first_hint="Where in the cache is the sequence's last token: which block, which slot, which head? If the case "
        "is about scores: what happens to maximum and sum from one block to the next?",
        hint="Token t is in entry t // BLOCK_SIZE of the sequence's row of the block table, in slot t % BLOCK_SIZE; a "
        "slot is kv_heads rows of D. Slots past the sequence's end are not loaded, and their scores are -inf. A "
        "program's query heads are the GROUP neighbours of its KV head. Maximum and sum are kept apart, as in Task 7: "
        "next to a large maximum the logarithm of the sum is lost.",
    ),
    _check(
        "decode_traffic",
        tiles.draw_decode,
        calls.decode,
        tiles.expect_decode_traffic,
        tiles.describe_decode,
        uses="decode_kernel",
        compare=tiles.compare_decode,
        title="Each cached key once for all queries of its group",
        points=5,
        cases=(
            Case("four queries per group", {"lengths": [41, 20], "log_group": 2}),
            Case("others", {"lengths": [5, 3, 33], "log_size": 1, "log_D": 0}, hidden=True),
            Case("any", {**CACHE, "longest": Range(20, 70)}, hidden=True),
        ),
        first_hint="How many blocks does this sequence fill, and how often is each of its keys loaded?",
        hint="Load a block's keys once, under a mask that ends with the sequence, and multiply them with all queries "
        "of the group at once. Go through as many blocks as the sequence has, not through the whole table.",
    ),
)

LAB = Lab("triton", repeat_first_case(CHECKS))
