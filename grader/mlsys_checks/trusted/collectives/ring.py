"""Checks of task 3, and what task 4 predicts: chunks, and both halves of a ring. Oracle: slices of the sum of all."""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed import collectives as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.collectives.traffic import (
    check_ranks,
    draw,
    draw_ranks,
    given_x,
    longest,
    write_run,
)
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.traffic import expect_ranks


def _draw_chunks(rng: np.random.Generator, case: Case) -> Arrays:
    x = draw(rng, case.params["shape"], case.params.get("dtype", "float64"))
    return {"x": x, "parts": np.array(case.params["parts"])}


def _expect_chunks(arrays: Arrays) -> Arrays:
    turned = np.moveaxis(np.atleast_1d(arrays["x"]), 0, -1)
    chunks = np.array_split(turned.ravel(), int(arrays["parts"]))
    return {"count": np.array(len(chunks))} | {f"chunks[{i}]": chunk for i, chunk in enumerate(chunks)}


def _expect_reduce_scatter(arrays: Arrays) -> Arrays:
    xs = given_x(arrays)
    p, size = len(xs), xs[0].itemsize
    chunks = np.array_split(np.sum(xs, axis=0, dtype=xs[0].dtype).ravel(), p)
    return expect_ranks(
        [{"chunk": chunk} for chunk in chunks],
        bytes=[(xs[0].size - len(chunk)) * size for chunk in chunks],
        messages=p - 1,
        largest_message=longest(xs[0].size, p) * size,
        steps=p - 1,
    )


def _expect_all_gather(arrays: Arrays) -> Arrays:
    xs = given_x(arrays)
    p, sizes = len(xs), [x.nbytes for x in xs]
    everything = {"count": np.array(p)} | {f"gathered[{i}]": x for i, x in enumerate(xs)}
    # Whichever way round: all arrays but the neighbour's.
    most = [sum(sizes) - min(sizes[(r + 1) % p], sizes[(r - 1) % p]) for r in range(p)]
    return expect_ranks([everything] * p, bytes=most, total_bytes=(p - 1) * sum(sizes), messages=p - 1, steps=p - 1)


def _draw_counts(rng: np.random.Generator, case: Case) -> Arrays:
    return {name: np.array(case.params[name]) for name in ("n", "p")}


def _expect_counts(arrays: Arrays) -> Arrays:
    """Follow each chunk: it leaves all ranks but its owner while it is summed, all but the one before after that."""
    n, p = int(arrays["n"]), int(arrays["p"])
    sent = np.zeros(p, np.int64)
    for owner in range(p):
        chunk = len(range(owner, n, p))  # elements dealt out in turn make chunks of the same lengths
        for hop in range(1, p):
            sent[(owner + hop) % p] += chunk
            sent[(owner + hop - 1) % p] += chunk
    return {"elements": sent}


CHECKS = (
    Check(
        name="split_chunks",
        title="Chunks as equal as can be",
        points=4,
        cases=(
            Case("ten numbers on four", {"shape": (10,), "parts": 4}),
            Case("two on three", {"shape": (2,), "parts": 3, "dtype": "int64"}),
            Case("a matrix on its side", {"shape": (3, 4), "parts": 5, "dtype": "float32"}),
            Case("one chunk", {"shape": (10,), "parts": 1}),
            Case("a matrix with nothing to split", {"shape": (0, 2), "parts": 4}),
            Case("many", {"shape": (7, 43), "parts": 8}, hidden=True),
            Case("a number without axes", {"shape": (), "parts": 2}, hidden=True),
        ),
        inputs=_draw_chunks,
        run=calls.split_chunks,
        expect=_expect_chunks,
        compare=close,
        first_hint="How many numbers does each chunk get at least, and how many are left over?",
        hint="Quotient and remainder of the division (Python's divmod has both): the share, and how many chunks are "
        "longer by one. torch.split takes a list of lengths.",
        uses=("split_chunks",),
        snippet="split_chunks(x.movedim(0, -1), parts)",
    ),
    check_ranks(
        name="reduce_scatter",
        title="Reduce-scatter round a ring",
        points=10,
        cases=(
            Case("two ranks", {"p": 2, "shape": (4,)}),
            Case("three ranks, seven numbers", {"p": 3, "shape": (7,), "dtype": "int32"}),
            Case("four ranks, two numbers", {"p": 4, "shape": (2,)}),
            Case("two ranks, a matrix of four rows", {"p": 2, "shape": (4, 3)}),
            Case("four ranks, a matrix on its side", {"p": 4, "shape": (2, 5), "transposed": True, "dtype": "float32"}),
            Case("one rank", {"p": 1, "shape": (3,)}),
            Case("no numbers", {"p": 3, "shape": (0,)}),
            Case("two ranks, half precision", {"p": 2, "shape": (5,), "dtype": "float16"}),
            Case("five ranks and many numbers", {"p": 5, "shape": (17, 1, 19)}, hidden=True),
            Case("eight ranks", {"p": 8, "shape": (301,), "dtype": "float32"}, hidden=True),
        ),
        inputs=draw_ranks,
        run=calls.reduce_scatter,
        expect=_expect_reduce_scatter,
        first_hint="Three ranks on paper: where does chunk 0 start, so that rank 0 is the last to add to it?",
        hint="Rank r first sends its own chunk r - 1. In step s = 2 … p it receives a partial sum, adds its own chunk "
        "r - s, and sends the result on in the next step. The last one is chunk r.",
        uses=("reduce_scatter",),
        describe=write_run("reduce_scatter(rank, x)"),
    ),
    check_ranks(
        name="all_gather",
        title="All-gather round a ring",
        points=8,
        cases=(
            Case("two ranks", {"p": 2, "shape": (2,)}),
            Case("three ranks", {"p": 3, "shapes": [(2,), (2,), (1,)], "dtype": "int64"}),
            Case("four ranks, one of them with nothing", {"p": 4, "shapes": [(), (0,), (4,), (2,)]}),
            Case("three ranks with matrices", {"p": 3, "shapes": [(2, 2), (1, 3), (2, 1)], "dtype": "float32"}),
            Case("one rank", {"p": 1, "shape": (3,)}),
            Case("five ranks and many numbers", {"p": 5, "shapes": [(90,), (7,), (211,), (13,), (50,)]}, hidden=True),
            Case("eight ranks", {"p": 8, "shape": (37,), "dtype": "float32"}, hidden=True),
        ),
        inputs=draw_ranks,
        run=calls.all_gather,
        expect=_expect_all_gather,
        first_hint="What comes from the left in the first step is whose array? And in the second?",
        hint="In step s = 0, 1, … p - 2 rank r sends on the array of rank r - s, and receives that of rank r - s - 1.",
        uses=("all_gather",),
        describe=write_run("all_gather(rank, x)"),
    ),
    Check(
        name="ring_elements",
        title="What each rank sends, predicted",
        points=4,
        cases=(
            Case("ten on four", {"n": 10, "p": 4}),
            Case("three on five", {"n": 3, "p": 5}),
            Case("ten on two", {"n": 10, "p": 2}),
            Case("one rank", {"n": 10, "p": 1}),
            Case("no elements", {"n": 0, "p": 4}),
            Case("more elements than a float can tell apart", {"n": 2**61 - 3, "p": 6}),
            Case("many", {"n": 1003, "p": 7}, hidden=True),
        ),
        inputs=_draw_counts,
        run=calls.ring_elements,
        expect=_expect_counts,
        compare=close,
        first_hint="Reduce-scatter sends every chunk but one, all-gather sends every chunk but another. Which two?",
        hint="2n less the length of this rank's own chunk and less the length of its right neighbour's.",
        uses=("ring_elements",),
        snippet="ring_elements(n, p)",
    ),
)
