"""Checks of tasks 1 and 2: messages between two ranks, broadcast and reduce. Oracle: who is to have what, and sums."""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed import collectives as calls
from mlsys_checks.sandboxed.ranks import split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Case
from mlsys_checks.trusted.collectives.traffic import check_ranks, draw_ranks, given_x, write_run
from mlsys_checks.trusted.traffic import expect_ranks


def _expect_from(name: str, steps: int, arrays: Arrays) -> Arrays:
    """Each rank gets the array of the rank that its number `name` says."""
    parts = split_ranks(arrays)
    received = [{"received": parts[int(part[name])]["x"]} for part in parts]
    return expect_ranks(received, bytes=[part["x"].nbytes for part in parts], messages=1, steps=steps)


def _expect_exchange(arrays: Arrays) -> Arrays:
    return _expect_from("partner", 2, arrays)


def _expect_send_recv(arrays: Arrays) -> Arrays:
    return _expect_from("source", 1, arrays)


def _tree_limits(arrays: Arrays) -> dict[str, int]:
    xs = given_x(arrays)
    most = xs[0].nbytes or sum(xs[0].shape)  # a shape without an element says something too, and grading counts that
    return {"total_bytes": (len(xs) - 1) * most, "steps": (len(xs) - 1).bit_length()}


def _expect_broadcast(arrays: Arrays) -> Arrays:
    parts = split_ranks(arrays)
    xs = given_x(arrays)
    return expect_ranks([{"received": xs[int(part["root"])]} for part in parts], **_tree_limits(arrays))


def _expect_reduce(arrays: Arrays) -> Arrays:
    xs, root = given_x(arrays), int(split_ranks(arrays)[0]["root"])
    total = {"sum": np.sum(xs, axis=0, dtype=xs[0].dtype)}
    nothing = {"nothing": np.array(True)}
    return expect_ranks([total if rank == root else nothing for rank in range(len(xs))], **_tree_limits(arrays))


def _permute(*destinations: int) -> dict[str, object]:
    """Parameters of a case in which rank i sends to destinations[i]."""
    sources = [destinations.index(rank) for rank in range(len(destinations))]
    return {"p": len(destinations), "destination": list(destinations), "source": sources}


TREES = (
    Case("two ranks", {"p": 2, "root": 0, "shape": (3,)}),
    Case("three ranks, the last is the root", {"p": 3, "root": 2, "shape": (4,), "dtype": "int32"}),
    Case("four ranks, a matrix on its side", {"p": 4, "root": 1, "shape": (2, 3), "transposed": True}),
    Case("six ranks", {"p": 6, "root": 0, "shape": (2,), "dtype": "float32"}),
    Case("one rank", {"p": 1, "root": 0, "shape": (3,)}),
    Case("nine ranks, one number without axes", {"p": 9, "root": 7, "shape": ()}),
    Case("five ranks, a matrix without rows", {"p": 5, "root": 1, "shape": (0, 2), "dtype": "float32"}),
    Case("two ranks, large numbers", {"p": 2, "root": 1, "shape": (7,), "dtype": "int64", "large": True}),
)
HIDDEN_TREES = (
    Case("eight ranks and many numbers", {"p": 8, "root": 3, "shape": (307,), "dtype": "float32"}, hidden=True),
    Case("seventeen ranks", {"p": 17, "root": 5, "shape": (2, 1, 3), "dtype": "int64"}, hidden=True),
    Case("five ranks", {"p": 5, "root": 4, "shape": (11,)}, hidden=True),
)

CHECKS = (
    check_ranks(
        name="exchange",
        title="Two ranks exchange arrays",
        points=4,
        cases=(
            Case("two ranks", {"p": 2, "partner": [1, 0], "shape": (3,), "dtype": "int64"}),
            Case(
                "two pairs, no two shapes alike",
                {"p": 4, "partner": [2, 3, 0, 1], "shapes": [(2, 1), (0,), (), (3,)]},
            ),
            Case("two ranks, two shapes of six numbers", {"p": 2, "partner": [1, 0], "shapes": [(2, 3), (3, 2)]}),
            Case(
                "three pairs and many numbers",
                {"p": 6, "partner": [4, 3, 5, 1, 0, 2], "shape": (13, 31), "dtype": "float32"},
                hidden=True,
            ),
        ),
        inputs=draw_ranks,
        run=calls.exchange,
        expect=_expect_exchange,
        first_hint="Write down what both ranks do, line beside line. Who receives while the other sends?",
        hint="Both compare the same two numbers: the rank with the lower one sends first and then receives, the other "
        "receives first and then sends.",
        uses=("exchange",),
        describe=write_run("exchange(rank, x, {partner})"),
    ),
    check_ranks(
        name="send_recv",
        title="Send to one rank and receive from another at once",
        points=6,
        cases=(
            Case("three ranks to the right", _permute(1, 2, 0) | {"shapes": [(2,), (), (0,)]}),
            Case("five ranks, two to the left", _permute(3, 4, 0, 1, 2) | {"shape": (2,), "dtype": "int64"}),
            Case("two ranks", _permute(1, 0) | {"shapes": [(1, 3), (3, 1)], "dtype": "float32"}),
            Case("a circle of three and one of four", _permute(4, 6, 5, 1, 2, 0, 3) | {"shape": (257,)}, hidden=True),
        ),
        inputs=draw_ranks,
        run=calls.send_recv,
        expect=_expect_send_recv,
        first_hint="Every rank must be ready to receive while its own message is under way.",
        hint="isend first, which returns at once; then recv; then wait() on the request of the isend.",
        uses=("send_recv",),
        describe=write_run("send_recv(rank, x, {destination}, {source})"),
    ),
    check_ranks(
        name="broadcast",
        title="Broadcast by a binomial tree",
        points=7,
        cases=(
            *TREES,
            Case("three ranks, NaN on all but the root", {"p": 3, "root": 1, "shape": (2,), "unset": (0, 2)}),
            *HIDDEN_TREES,
        ),
        inputs=draw_ranks,
        run=calls.broadcast,
        expect=_expect_broadcast,
        first_hint="Play it with six ranks on paper: who has the array before each step, and to whom does each send "
        "it?",
        hint="With v = (rank - root) % p and d = 1, 2, 4, …: if v < d and v + d < p, send to (rank + d) % p; if "
        "d <= v < 2d, receive from (rank - d) % p.",
        uses=("broadcast",),
        describe=write_run("broadcast(rank, x, {root})"),
    ),
    check_ranks(
        name="reduce",
        title="Reduce by the same tree",
        points=8,
        cases=(*TREES, *HIDDEN_TREES),
        inputs=draw_ranks,
        run=calls.reduce,
        expect=_expect_reduce,
        first_hint="A rank sends once, when it has added up all that it will get. When is that?",
        hint="With v = (rank - root) % p and d = 1, 2, 4, …: if v has the bit d, send the sum to (rank - d) % p and "
        "return None; else, if v + d < p, receive from (rank + d) % p and add.",
        uses=("reduce",),
        describe=write_run("reduce(rank, x, {root})"),
    ),
)
