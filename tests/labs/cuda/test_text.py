"""Numbers in the text of lab 03."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mlsys_checks.sandboxed.cuda.launches import THREADS
from mlsys_checks.trusted.cuda.shared import TREE_REQUESTS
from mlsys_checks.trusted.cuda.speed import MATMUL, TRANSPOSE
from mlsys_lab.kernels.trace.banks import BANKS
from mlsys_lab.kernels.trace.events import WARP
from mlsys_lab.kernels.trace.sectors import SECTOR_BYTES
from tests.labs.figures import assert_held
from tests.labs.harness import labs, module_of

CUDA = next(lab for lab in labs() if lab.info.topic == "cuda")
ALIGNED = 256
"""Bytes of which the address of what CUDA allocates is a multiple."""
NUMBER = 4
"""Bytes of a number in fp32."""
WORDS = {8: "eight", 16: "sixteen"}
IN_CODE = (
    "launched with blocks of 32 × 4 threads",
    "have blocks of 32 × 4 threads",
    "request touches 32 sectors for 128 bytes",
)
GIVEN = ("`size_t` has 64 bits", "become 4 + 4 numbers for 16, if a thread makes", "the 100 points of the lab")


def tree_requests(*, interleaved: bool) -> int:
    """Requests of a block's warps to shared memory: a store, three for each addition, one for the sum."""
    lefts = [THREADS >> step for step in range(1, int(math.log2(THREADS)) + 1)]
    added = sum(min(left, THREADS // WARP) if interleaved else math.ceil(left / WARP) for left in lefts)
    return THREADS // WARP + 3 * added + 1


def computed() -> Iterator[str]:
    module = module_of(CUDA.reference, "reference.ipynb")
    side, tile, rows = module.SIDE, module.TILE, module.ROWS
    sectors = WARP * NUMBER // SECTOR_BYTES
    yield f"reads each number {WORDS[side]} times less often than the naive one"
    yield f"be {WORDS[WARP // sectors]} times slower with two indices exchanged"
    yield f"want a tile of {BANKS + 1} columns"
    yield f"8 bytes an element here (fp32); `sgd_step` {3 * NUMBER}."
    yield f"The {WARP} threads of a warp ask for memory"
    yield f"in **sectors** of {SECTOR_BYTES} bytes, {SECTOR_BYTES // NUMBER} numbers of fp32"
    yield f"a warp's {WARP} threads ask for memory"
    yield f"threads 0 to {WARP - 1} are the first warp, {WARP} to {2 * WARP - 1} the second"
    yield f"sides that are multiples of {WARP}"
    yield f"so that a warp is {WARP} threads along x"
    yield f"touches as many sectors as its {WARP} addresses lie in"
    yield f"With one thread adding, {THREADS} numbers take {THREADS} steps"
    half, quarter = THREADS // 2, THREADS // 4
    yield f"first {half} threads add the numbers of the last {half}"
    yield f"then the first {quarter} those of the next {quarter}"
    yield f"warps ask shared memory {tree_requests(interleaved=False)} times a block"
    yield f"Interleaved it would be {tree_requests(interleaved=True)}."
    yield f"The check asks for at most {TREE_REQUESTS},"
    yield f"a thread t ≥ {half} does nothing after"
    yield f"naive transpose writes {WARP} sectors in each request, for data that would fill {sectors}"
    yield f"reads a tile of {tile} × {tile} by rows"
    yield f"The block has {tile} × {rows} threads, so each moves {tile // rows}"
    yield f"Shared memory is spread over {BANKS} banks"
    yield f"if its lanes want {BANKS} different banks"
    yield f"of a tile with {BANKS} columns"
    yield f"blocks of ({tile}, {rows}) threads, one for each tile of {tile} × {tile}"
    yield f"launched with blocks of ({side}, {side}) threads, one for each square"
    yield f"begins at a multiple of {ALIGNED} bytes"
    yield f"With CPP_TILE {side} it is your kernel"
    yield f"elements that lie {side} rows and {side} columns apart"
    yield f"A tile of {side} × {side} gives {2 * side // (2 * NUMBER)} FLOP for each byte"
    yield f"{TRANSPOSE.points} points for a transpose at {TRANSPOSE.target} of its speed"
    yield f"{MATMUL.points} for a matrix product at {MATMUL.target} of cuBLAS"
    yield f"fewer from {TRANSPOSE.start} and {MATMUL.start} on"


def test_figures_are_computed_or_given() -> None:
    assert_held(CUDA, computed=computed(), in_code=IN_CODE, given=GIVEN)
