"""Tasks 4 and 5: a moving average, a dot product, a sum by a tree. Oracle: NumPy in float64."""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed.cuda import shared as calls
from mlsys_checks.sandboxed.cuda.launches import THREADS, blocks
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.cuda.comparison import agree, each_thread, limits
from mlsys_checks.trusted.cuda.maps import normal
from mlsys_checks.trusted.traced import describe_launch

TREE_REQUESTS = 40
"""Most requests of a block's warps to shared memory: sequential addressing takes 29, 74 would be interleaved."""
TREE_ACCESSES = 26
"""Most accesses of one thread to shared memory: a store, seven additions of three, and the sum; one by one: 128."""


def _smooth_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    x = normal(rng, case.params["n"])
    if "infinite" in case.params:  # at both ends, beside which a 0 is added, and one opposite another
        x[[0, -1, THREADS // 2, THREADS // 2 + 1, THREADS]] = np.inf, -np.inf, np.inf, -np.inf, np.inf
    return {"x": x}


def _smooth_expect(arrays: Arrays) -> Arrays:
    x = arrays["x"].astype(np.float64)
    n = x.size
    needed = sum(min(first + THREADS + 1, n) - max(first - 1, 0) for first in range(0, n, THREADS))
    most = limits(reads={"x": needed}, writes={"y": n}, over={"sectors": 1, "passes": 0}, **each_thread(4, THREADS))
    padded = np.pad(x, 1)
    with np.errstate(invalid="ignore"):
        return {"y": ((padded[:-2] + padded[1:-1] + padded[2:]) / 3).astype(np.float32), **most}


def _dot_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    n = case.params["n"]
    given = {name: rng.uniform(0.5, 1.5, n).astype(np.float32) for name in "ab"}
    if "opposite" in case.params:  # one product of these two
        at = rng.integers(n)
        given["a"][at], given["b"][at] = case.params["opposite"]
    return given


def _dot_expect(arrays: Arrays) -> Arrays:
    a, b = (arrays[name].astype(np.float64) for name in "ab")
    most = limits(
        reads={"a": a.size, "b": a.size},
        writes={"out": 1},
        over={"sectors": 0, "passes": 0, "turns": 0},
        **each_thread(3, THREADS),
    )
    with np.errstate(invalid="ignore"):
        return {"out": np.array([(a * b).sum()], np.float32), **most}


def _sum_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    x = rng.uniform(20, 60, case.params["n"]).astype(np.float32)
    if "infinite" in case.params:
        x[rng.integers(x.size // 3)] = np.inf  # others come after it
    return {"x": x, "blocks": np.array(case.params["blocks"])}


def _sum_expect(arrays: Arrays) -> Arrays:
    x, count = arrays["x"], int(arrays["blocks"])
    most = limits(
        reads={"x": x.size},
        writes={"sums": count},
        over={"sectors": 1, "passes": 0, "turns": 0},
        **each_thread(blocks(x.size, count * THREADS) + 1, THREADS),
    ) | limits(accesses={"shared": TREE_ACCESSES}, requests={"shared": TREE_REQUESTS})
    return {"sums.sum()": np.array(x.sum(dtype=np.float64), np.float32), **most}


CHECKS = (
    Check(
        name="smooth",
        title="Neighbours through shared memory",
        points=8,
        cases=(
            Case("100 elements, one block", {"n": 100}),
            Case("three blocks, the last of whole warps", {"n": 2 * THREADS + 64}),
            Case("infinite elements", {"n": THREADS + 60, "infinite": True}),
            Case("a full block", {"n": THREADS}),
            Case("a block with one element", {"n": THREADS + 1}),
            Case("one element", {"n": 1}),
            Case("another length", {"n": 3 * THREADS - 1}, hidden=True),
        ),
        inputs=_smooth_inputs,
        run=calls.smooth,
        describe=describe_launch("smooth", "THREADS", lambda arrays: blocks(arrays["x"].size, THREADS), "y", "x.size"),
        expect=_smooth_expect,
        compare=agree,
        first_hint="Draw the block's shared array with both of its ends: who fills each place, and before whom must "
        "that be?",
        hint="Each thread loads its own element, the block's first and last thread one neighbour more, 0 where there "
        "is none. Then the barrier, which all threads reach, and only then the sum. The thread of the last element "
        "needs a 0 to its right, too.",
        uses=("smooth",),
        traced=True,
    ),
    Check(
        name="dot",
        title="A dot product by one block",
        points=7,
        cases=(
            Case("as many elements as threads", {"n": THREADS}),
            Case("100 elements", {"n": 100}),
            Case("a zero opposite an infinity", {"n": 96, "opposite": (0, np.inf)}),
            Case("no elements", {"n": 0}),
            Case("one element", {"n": 1}, hidden=True),
            Case("whole warps", {"n": 64}, hidden=True),
            Case("an infinity opposite a zero", {"n": 33, "opposite": (np.inf, 0)}, hidden=True),
            Case("an infinite product", {"n": 127, "opposite": (-2, np.inf)}, hidden=True),
        ),
        inputs=_dot_inputs,
        run=calls.dot,
        describe=describe_launch("dot", "THREADS", lambda arrays: 1, "out", "1"),
        expect=_dot_expect,
        compare=agree,
        first_hint="What lies in shared memory when the last sum begins, and who has put it there?",
        hint="Products of all threads into shared memory, a barrier, then one thread adds a.size of them in a variable "
        "and stores once. Shared memory that no thread has stored to holds anything.",
        uses=("dot",),
        traced=True,
    ),
    Check(
        name="block_sum",
        title="A sum by a tree",
        points=10,
        cases=(
            Case("two blocks, 200 elements", {"n": 200, "blocks": 2}),
            Case("three blocks, 896 elements", {"n": 7 * THREADS, "blocks": 3}),
            Case("an infinite element", {"n": 555, "blocks": 2, "infinite": True}),
            Case("fewer elements than threads", {"n": 77, "blocks": 1}, hidden=True),
            Case("a block without elements", {"n": 100, "blocks": 2}, hidden=True),
            Case("many turns", {"n": 1281, "blocks": 2}, hidden=True),
            Case("no elements", {"n": 0, "blocks": 2}, hidden=True),
        ),
        inputs=_sum_inputs,
        run=calls.block_sum,
        describe=describe_launch("block_sum", "THREADS", lambda arrays: int(arrays["blocks"]), "sums", "{blocks}"),
        expect=_sum_expect,
        compare=agree,
        first_hint="Draw the tree for eight threads: who adds whose number in each step, and who has to wait for whom?",
        hint="Every thread stores, also 0. In each step half as many threads as before add a number from the other "
        "half to their own; after each step there is a barrier, outside of the `if`.",
        uses=("block_sum",),
        traced=True,
    ),
)
