"""Checks of all-reduce in three forms (tasks 4 to 6) and of averaged gradients (task 8). Oracle: sums by NumPy."""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed import collectives as calls
from mlsys_checks.sandboxed.ranks import join_ranks, split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Case
from mlsys_checks.trusted.collectives.traffic import (
    check_ranks,
    draw,
    draw_ranks,
    given_x,
    longest,
    write_run,
    write_tensor,
)
from mlsys_checks.trusted.traffic import expect_ranks


def _sums(xs: list[np.ndarray]) -> list[Arrays]:
    return [{"sum": np.sum(xs, axis=0, dtype=xs[0].dtype)}] * len(xs)


def _least_bytes(xs: list[np.ndarray]) -> int:
    """Bytes that all ranks together send in any all-reduce: p - 1 to add each number up, p - 1 to tell the sum."""
    return 2 * (len(xs) - 1) * xs[0].nbytes


def _expect_all_reduce(arrays: Arrays) -> Arrays:
    xs = given_x(arrays)
    p, n, size = len(xs), xs[0].size, xs[0].itemsize
    return expect_ranks(
        _sums(xs),
        bytes=2 * (n - n // p) * size,  # all chunks but one, twice; which one is the algorithm's affair
        total_bytes=_least_bytes(xs),
        messages=2 * (p - 1),
        largest_message=longest(n, p) * size,
        steps=2 * (p - 1),
    )


def _expect_halving_doubling(arrays: Arrays) -> Arrays:
    xs = given_x(arrays)
    p, n, size = len(xs), xs[0].size, xs[0].itemsize
    levels = p.bit_length() - 1
    power, folded = 1 << levels, p > 1 << levels
    # At distance d no more than the d longest of P chunks.
    distances = [d * (n // power) + min(d, n % power) for d in (1 << k for k in range(levels))]
    exchanged = sum(distances)
    return expect_ranks(
        _sums(xs),
        bytes=(2 * exchanged + folded * n) * size,
        total_bytes=_least_bytes(xs),
        messages=2 * levels + folded,
        distances=np.zeros(0) if folded else size * np.array(distances, dtype=np.int64),  # pairs may be numbered anew
        steps=2 * levels + 2 * folded,
    )


def _expect_hierarchical(arrays: Arrays) -> Arrays:
    xs, island = given_x(arrays), int(split_ranks(arrays)[0]["island"])
    p, n, size = len(xs), xs[0].size, xs[0].itemsize
    islands, chunk = p // island, longest(xs[0].size, island)
    crossing = 2 * (chunk - chunk // islands) * size
    return expect_ranks(
        _sums(xs),
        bytes=2 * (n - n // island) * size + crossing,
        total_bytes=_least_bytes(xs),
        messages=2 * (island - 1) + 2 * (islands - 1),
        steps=2 * (island - 1) + 2 * (islands - 1),
        crossing=crossing,
        island=island,
    )


HINT_WHOLE = "The chunks of all ranks in order, joined, have the elements of x; reshape gives them its shape."
CHECKS = (
    check_ranks(
        name="all_reduce",
        title="All-reduce round a ring",
        points=8,
        cases=(
            Case("two ranks", {"p": 2, "shape": (5,)}),
            Case("three ranks, a matrix on its side", {"p": 3, "shape": (2, 4), "transposed": True, "dtype": "int32"}),
            Case("four ranks, ten numbers", {"p": 4, "shape": (10,), "dtype": "float32"}),
            Case("four ranks, three numbers", {"p": 4, "shape": (3,)}),
            Case("four ranks, one number without axes", {"p": 4, "shape": ()}),
            Case("three ranks, a matrix without rows", {"p": 3, "shape": (0, 2)}),
            Case("one rank", {"p": 1, "shape": (1, 1)}),
            Case("five ranks and many numbers", {"p": 5, "shape": (7, 1, 43)}, hidden=True),
            Case("eight ranks", {"p": 8, "shape": (509,), "dtype": "float32"}, hidden=True),
            Case("three ranks, large numbers", {"p": 3, "shape": (7,), "dtype": "int64", "large": True}, hidden=True),
        ),
        inputs=draw_ranks,
        run=calls.all_reduce,
        expect=_expect_all_reduce,
        first_hint="After reduce_scatter rank r has chunk r. What do all need now, and in which shape?",
        hint=HINT_WHOLE,
        uses=("all_reduce",),
        describe=write_run("all_reduce(rank, x)"),
    ),
    check_ranks(
        name="halving_doubling",
        title="Recursive halving and doubling",
        points=11,
        cases=(
            Case("two ranks", {"p": 2, "shape": (6,)}),
            Case("four ranks, seven numbers", {"p": 4, "shape": (7,), "dtype": "int64"}),
            Case("three ranks", {"p": 3, "shape": (4,), "dtype": "int32"}),
            Case("six ranks, a matrix on its side", {"p": 6, "shape": (2, 3), "transposed": True}),
            Case("four ranks, one number without axes", {"p": 4, "shape": ()}),
            Case("four ranks, a matrix without rows", {"p": 4, "shape": (0, 2)}),
            Case("one rank", {"p": 1, "shape": (3,)}),
            Case("eight ranks and many numbers", {"p": 8, "shape": (301,)}, hidden=True),
            Case("seven ranks", {"p": 7, "shape": (10, 1, 11), "dtype": "int64", "large": True}, hidden=True),
            Case("eight ranks, six numbers", {"p": 8, "shape": (6,), "dtype": "float32"}, hidden=True),
            Case("sixteen ranks", {"p": 16, "shape": (37,), "dtype": "int64"}, hidden=True),
        ),
        inputs=draw_ranks,
        run=calls.halving_doubling,
        expect=_expect_halving_doubling,
        first_hint="First two ranks, then four. Which of the two halves does rank 1 keep at distance 2, and which at "
        "1?",
        hint="At distance d the partner is rank ^ d; without the bit d one keeps the first half, with it the second. "
        "On the way back the piece that comes goes behind one's own, or with the bit before it.",
        uses=("halving_doubling",),
        describe=write_run("halving_doubling(rank, x)"),
    ),
    check_ranks(
        name="hierarchical",
        title="All-reduce over islands",
        points=8,
        cases=(
            Case("two islands of two", {"p": 4, "island": 2, "shape": (7,)}),
            Case("two islands of three", {"p": 6, "island": 3, "shape": (2, 4), "transposed": True, "dtype": "int32"}),
            Case("three islands of two, one number without axes", {"p": 6, "island": 2, "shape": ()}),
            Case("two islands of two, a matrix without rows", {"p": 4, "island": 2, "shape": (0, 2)}),
            Case("islands of one", {"p": 5, "island": 1, "shape": (2, 3), "dtype": "float32"}),
            Case("one island", {"p": 5, "island": 5, "shape": (5, 1)}),
            Case("one rank", {"p": 1, "island": 1, "shape": (3,)}),
            Case("two islands of four and many numbers", {"p": 8, "island": 4, "shape": (333,)}, hidden=True),
            Case("six islands of two", {"p": 12, "island": 2, "shape": (9, 1, 13), "dtype": "float32"}, hidden=True),
            Case("three islands of two, twelve numbers", {"p": 6, "island": 2, "shape": (12,)}, hidden=True),
        ),
        inputs=draw_ranks,
        run=calls.hierarchical,
        expect=_expect_hierarchical,
        first_hint="Which ranks are in an island with rank 5, and which have the same place as rank 5 in the others?",
        hint="Inside: the `island` ranks from rank - rank % island on. Across: rank % island, and every island-th "
        "after it. reduce_scatter inside, all_reduce of that chunk across, all_gather inside.",
        uses=("hierarchical",),
        describe=write_run("hierarchical(rank, x, {island})"),
    ),
)


# --- gradients --------------------------------------------------------------------------------------------------------


def _draw_gradients(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw weights, alike on all ranks, and each rank's x of each weight, but for pairs (rank, weight) in `without`."""
    p, dtype = case.params["p"], case.params.get("dtype", "float64")
    weights = {f"w{i}": draw(rng, shape, dtype) for i, shape in enumerate(case.params["shapes"])}
    parts = []
    for rank in range(p):
        xs = {
            f"x of {name}": draw(rng, w.shape, dtype)
            for i, (name, w) in enumerate(weights.items())
            if (rank, i) not in case.params.get("without", ())
        }
        parts.append(weights | xs | {"bucket_bytes": np.array(case.params["bucket_bytes"])})
    return join_ranks(parts)


def _expect_gradients(arrays: Arrays) -> Arrays:
    parts = split_ranks(arrays)
    p, weights = len(parts), {name: w for name, w in parts[0].items() if name.startswith("w")}
    xs = {
        name: np.sum([part.get(f"x of {name}", np.zeros_like(w)) for part in parts], axis=0)
        for name, w in weights.items()
    }
    means = {f"{name}.grad": (2 * w * xs[name] / p).astype(w.dtype) for name, w in weights.items()}
    counts, size = [w.size for w in weights.values()], parts[0]["w0"].itemsize
    room = int(parts[0]["bucket_bytes"]) // size
    buckets = _fill_buckets(counts[::-1], room)
    messages = 2 * (p - 1) * len(buckets)
    return expect_ranks(
        [means] * p,
        total_bytes=2 * (p - 1) * sum(counts) * size,
        messages=messages,
        largest_message=longest(max(room, *counts), p) * size,
        steps=messages,
        buckets=np.array(buckets) * size,
    )


def _fill_buckets(counts: list[int], room: int) -> list[int]:
    """Elements of each bucket, with so much room for neighbours: cut wherever the next is too much."""
    sums, cut, buckets = np.cumsum([0, *counts]), 0, []
    while cut < len(counts):
        fits = int(np.searchsorted(sums, sums[cut] + room, side="right")) - 1
        end = max(fits, cut + 1)
        buckets.append(int(sums[end] - sums[cut]))
        cut = end
    return buckets


def _describe_gradients(arrays: Arrays) -> str:
    parts = split_ranks(arrays)
    names = [name for name in parts[0] if name.startswith("w")]
    weights = "".join(f"    {write_tensor(name, parts[0][name])},\n" for name in names)
    lines = []
    for part in parts:
        grads = (2 * part[name] * part[f"x of {name}"] if f"x of {name}" in part else None for name in names)
        written = ", ".join("None" if grad is None else write_tensor("grad", np.round(grad, 6)) for grad in grads)
        lines.append(f"    [{written}],\n")
    return (
        f"weights = [\n{weights}]\ngrads = [\n{''.join(lines)}]\n\n"
        "def average(rank, grads):\n"
        "    parameters = [Tensor(w, requires_grad=True) for w in weights]\n"
        "    for parameter, grad in zip(parameters, grads):\n"
        "        parameter.grad = grad\n"
        f"    average_gradients(rank, parameters, {int(parts[0]['bucket_bytes'])})\n"
        "    return [parameter.grad for parameter in parameters]\n\n"
        "run(average, grads)"
    )


GRADIENTS = (
    check_ranks(
        name="average_gradients",
        title="Gradients of your engine, averaged over ranks",
        points=12,
        cases=(
            Case("two ranks, one bucket", {"p": 2, "shapes": [(2, 3), (3,)], "bucket_bytes": 1 << 20}),
            Case(
                "three ranks, a bucket filled to the last byte",
                {"p": 3, "shapes": [(2,), (3,), (1,), (4,)], "bucket_bytes": 40},
            ),
            Case(
                "a parameter that is larger than a bucket",
                {"p": 2, "shapes": [(2,), (11,), (1,), (2,)], "bucket_bytes": 40, "dtype": "float32"},
            ),
            Case(
                "a rank without a gradient",
                {"p": 3, "shapes": [(2,), (2, 2)], "bucket_bytes": 24, "without": [(1, 0), (2, 1)]},
            ),
            Case(
                "a rank without any gradient",
                {"p": 2, "shapes": [(3,), (1, 2)], "bucket_bytes": 16, "without": [(1, 0), (1, 1)]},
            ),
            Case(
                "parameters that would fit into a bucket before",
                {"p": 2, "shapes": [(4,), (), (3,), (2, 2)], "bucket_bytes": 40},
            ),
            Case(
                "a bucket of five numbers of four bytes",
                {"p": 2, "shapes": [(2,), (3,)], "bucket_bytes": 20, "dtype": "float32"},
            ),
            Case("the same five numbers of eight bytes", {"p": 2, "shapes": [(2,), (3,)], "bucket_bytes": 20}),
            Case("a bucket for each", {"p": 2, "shapes": [(2, 3), (3,)], "bucket_bytes": 0}),
            Case("one rank", {"p": 1, "shapes": [(2,), (3,)], "bucket_bytes": 64, "without": [(0, 1)]}),
            Case(
                "four ranks and many numbers",
                {
                    "p": 4,
                    "shapes": [(17, 5), (17,), (3, 17), (3,), (40,), (90,), (2,), (33,), *[(2,)] * 10],
                    "bucket_bytes": 400,
                    "dtype": "float32",
                },
                hidden=True,
            ),
            Case(
                "five ranks, none with a gradient of one",
                {"p": 5, "shapes": [(30,), (4, 4), (7,)], "bucket_bytes": 200, "without": [(r, 1) for r in range(5)]},
                hidden=True,
            ),
        ),
        inputs=_draw_gradients,
        run=calls.average_gradients,
        expect=_expect_gradients,
        first_hint="All ranks must make the same all-reduces in the same order, whatever gradients each of them has.",
        hint="Fill the buckets by the parameters' sizes, from the last to the first. For each: join the flat gradients "
        "(for None zeros of the weight's dtype), all_reduce, divide by rank.size, split, reshape, and set grad.",
        uses=("Tensor", "average_gradients"),
        describe=_describe_gradients,
    ),
)
