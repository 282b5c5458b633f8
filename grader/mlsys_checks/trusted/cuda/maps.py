"""Tasks 1 and 2: maps, guards, broadcasts, strides. Oracle: NumPy; limits: each element once, in whole sectors."""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed.cuda import maps as calls
from mlsys_checks.sandboxed.cuda.launches import HIGH, THREADS, WIDE, blocks
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.cuda.comparison import agree, each_thread, limits
from mlsys_checks.trusted.traced import describe_launch

ALIGNED = 8
"""Rows of so many numbers begin at sectors; others may take a sector more in each request."""
FROM_THE_END = 1
"""Sectors beyond the least of neighbours that are counted from the end of an array of any size."""


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Numbers of both signs."""
    return rng.standard_normal(shape, np.float32)


def put(rng: np.random.Generator, array: np.ndarray, *values: float) -> None:
    """Store values at places of the array that are drawn, each at another one."""
    array.reshape(-1)[rng.permutation(array.size)[: len(values)]] = values


def _relu_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    x = normal(rng, case.params["n"])
    if "times" in case.params:  # the doubles of large ones are beyond fp32, some of them themselves
        with np.errstate(over="ignore"):
            x *= np.float32(case.params["times"])
        put(rng, x, np.inf, -np.inf)
    return {"x": x}


def _relu_expect(arrays: Arrays) -> Arrays:
    x = arrays["x"]
    most = limits(reads={"x": x.size}, writes={"y": x.size}, over={"sectors": 0}, **each_thread(2, THREADS))
    return {"y": np.where(x > 0, x, np.float32(0)), **most}


def _sgd_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    n, rate = case.params["n"], case.params.get("rate", rng.uniform(0.05, 0.5))
    w, g = normal(rng, n), normal(rng, n)
    if "infinite" in case.params:
        put(rng, w, np.inf, -np.inf)
        put(rng, g, np.inf, -np.inf)
        w[n // 2] = g[n // 2] = np.inf
    return {"w": w, "g": g, "rate": np.array(rate, np.float32)}


def _sgd_expect(arrays: Arrays) -> Arrays:
    w, g = arrays["w"], arrays["g"]
    most = limits(
        reads={"w": w.size, "g": w.size},
        writes={"w": w.size},
        over={"sectors": FROM_THE_END},
        **each_thread(3, THREADS),
    )
    with np.errstate(invalid="ignore"):
        return {"w": w - arrays["rate"] * g, **most}


def _mask_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    scores = normal(rng, case.params["t"], case.params["t"])
    put(rng, scores, *(case.params.get("infinite", 0) * (np.inf, -np.inf)))
    return {"scores": scores}


def _mask_expect(arrays: Arrays) -> Arrays:
    scores = arrays["scores"]
    t = len(scores)
    most = limits(
        reads={"scores": t * (t + 1) // 2},
        writes={"masked": t * t},
        over={"sectors": int(t % ALIGNED > 0)},
        **each_thread(2, WIDE * HIGH),
    )
    return {"masked": np.where(np.tri(t, dtype=bool), scores, np.float32(-np.inf)), **most}


def _outer_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    rows, columns = case.params["shape"]
    u, v = normal(rng, rows), normal(rng, columns)
    if "zeros" in case.params:
        put(rng, u, 0, np.inf)
        put(rng, v, 0, np.inf)
    return {"u": u, "v": v}


def _outer_expect(arrays: Arrays) -> Arrays:
    u, v = arrays["u"], arrays["v"]
    n = u.size * v.size
    most = limits(
        reads={"u": n, "v": n},
        writes={"out": n},
        over={"sectors": int(v.size % ALIGNED > 0)},
        **each_thread(3, WIDE * HIGH),
    )
    with np.errstate(invalid="ignore"):
        return {"out": u[:, None] * v[None, :], **most}


def _axpy_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    n, a = case.params["n"], case.params.get("a", rng.uniform(-2, 2))
    x, y = normal(rng, n), normal(rng, n)
    if "infinite" in case.params:
        put(rng, x, np.inf, -np.inf)
        put(rng, y, np.inf, -np.inf)
    return {"a": np.array(a, np.float32), "x": x, "y": y, "blocks": np.array(case.params["blocks"])}


def _axpy_expect(arrays: Arrays) -> Arrays:
    x, y = arrays["x"], arrays["y"]
    turns = blocks(x.size, int(arrays["blocks"]) * THREADS)
    most = limits(
        reads={"x": x.size, "y": x.size},
        writes={"y": x.size},
        over={"sectors": FROM_THE_END},
        **each_thread(3 * turns, THREADS),
    )
    with np.errstate(invalid="ignore"):
        return {"y": y + arrays["a"] * x, **most}


def _square(arrays: Arrays) -> tuple[int, int]:
    t = len(arrays["scores"])
    return blocks(t, WIDE), blocks(t, HIGH)


CHECKS = (
    Check(
        name="relu",
        title="A thread for each element",
        points=4,
        cases=(
            Case("one block", {"n": THREADS}),
            Case("two blocks, large numbers", {"n": 2 * THREADS, "times": 1.5e38}),
            Case("three blocks, tiny numbers", {"n": 3 * THREADS, "times": 1e-30}),
            Case("five blocks", {"n": 5 * THREADS}, hidden=True),
        ),
        inputs=_relu_inputs,
        run=calls.relu,
        describe=describe_launch("relu", "THREADS", lambda arrays: arrays["x"].size // THREADS, "y", "x.size"),
        expect=_relu_expect,
        compare=agree,
        first_hint="Which element is this thread's, counted over all blocks, and how often does the text touch x?",
        hint="i = cuda.grid(1) counts over all blocks; cuda.threadIdx.x begins anew in each. Keep x[i] in a variable "
        "if you need it twice: each x[i] in the text is a load.",
        uses=("relu",),
        traced=True,
    ),
    Check(
        name="sgd_step",
        title="More threads than elements",
        points=6,
        cases=(
            Case("100 elements for 128 threads", {"n": 100}),
            Case("three blocks, the last one nearly idle", {"n": 2 * THREADS + 3}),
            Case("whole warps, infinite numbers", {"n": 3 * THREADS // 2, "infinite": True}),
            Case("one element", {"n": 1}, hidden=True),
            Case("two full blocks", {"n": 2 * THREADS}, hidden=True),
            Case("a rate of 0, infinite numbers", {"n": 50, "rate": 0, "infinite": True}, hidden=True),
        ),
        inputs=_sgd_inputs,
        run=calls.sgd_step,
        describe=describe_launch("sgd_step", "THREADS", lambda arrays: blocks(arrays["w"].size, THREADS)),
        expect=_sgd_expect,
        compare=agree,
        first_hint="How many threads are there, how many elements, and what do the others do?",
        hint="A thread whose i is not below w.size touches nothing, neither w nor g.",
        uses=("sgd_step",),
        traced=True,
    ),
    Check(
        name="causal_mask",
        title="Two dimensions, along rows",
        points=6,
        cases=(
            Case("16 queries and keys", {"t": 16}),
            Case("38 queries and keys, infinite scores", {"t": 38, "infinite": 99}),
            Case("any number", {"t": 35}, hidden=True),
            Case("one query", {"t": 1}, hidden=True),
        ),
        inputs=_mask_inputs,
        run=calls.causal_mask,
        describe=describe_launch("causal_mask", "(32, 4)", _square, "masked", "scores.shape"),
        expect=_mask_expect,
        compare=agree,
        first_hint="Write row and column of lanes 0, 1 and 2 of a warp. Are these neighbours in memory?",
        hint="cuda.grid(2) gives the place along x first. The threads of a warp are neighbours along x: let these be "
        "the columns. Guard rows and columns, and read a score only where column <= row.",
        uses=("causal_mask",),
        traced=True,
    ),
    Check(
        name="outer",
        title="A row times a column",
        points=6,
        cases=(
            Case("fewer rows than columns", {"shape": (2, 64)}),
            Case("more rows than columns, zeros and infinities", {"shape": (24, 16), "zeros": True}),
            Case("any numbers", {"shape": (13, 37)}, hidden=True),
            Case("one row", {"shape": (1, 40)}, hidden=True),
            Case("one column", {"shape": (9, 1)}, hidden=True),
        ),
        inputs=_outer_inputs,
        run=calls.outer,
        describe=describe_launch(
            "outer",
            "(32, 4)",
            lambda arrays: (blocks(arrays["v"].size, WIDE), blocks(arrays["u"].size, HIGH)),
            "out",
            "(u.size, v.size)",
        ),
        expect=_outer_expect,
        compare=agree,
        first_hint="Which of the two vectors does a thread's row belong to, and where does each of them end?",
        hint="u goes with the row, v with the column; each can run out before the threads do, so the guard has two "
        "sides.",
        uses=("outer",),
        traced=True,
    ),
    Check(
        name="axpy",
        title="More elements than threads",
        points=6,
        cases=(
            Case("fewer elements than threads", {"n": 100, "blocks": 2}),
            Case("elements for 17 turns and a half", {"n": 35 * THREADS, "blocks": 2}),
            Case("an odd number of elements, three blocks", {"n": 555, "blocks": 3}),
            Case("`a` is 0, infinite elements", {"n": 300, "blocks": 2, "a": 0, "infinite": True}),
            Case("any number, infinite elements", {"n": 1281, "blocks": 2, "infinite": True}, hidden=True),
            Case("no elements", {"n": 0, "blocks": 2}, hidden=True),
        ),
        inputs=_axpy_inputs,
        run=calls.axpy,
        describe=describe_launch("axpy", "THREADS", lambda arrays: int(arrays["blocks"])),
        expect=_axpy_expect,
        compare=agree,
        first_hint="With more elements than threads: which is a thread's first element, and how far is it to its next?",
        hint="A loop whose first element is the thread's place in the grid, and whose step is the number of all "
        "threads. A piece of neighbouring elements for each thread scatters a warp's requests.",
        uses=("axpy",),
        traced=True,
    ),
)
