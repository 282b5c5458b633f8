"""Task 1a: FLOPs and least bytes. Oracle: every operation run on numbers that count.

Where sizes are those of real models, operations of sizes 1 and 2 are run, and the counts go on as straight lines do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mlsys_checks.sandboxed.gpu_model import work as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.sandboxed.values import encode_text
from mlsys_checks.trusted.answers import agree, likely


class Tally:
    """Counts operations, and which elements of which arrays are read from memory or written to it."""

    def __init__(self) -> None:
        self.flops = 0
        self.touched: set[tuple[object, ...]] = set()

    def read(self, *element: object) -> Counted:
        """An element, which has to be moved once."""
        self.touched.add(element)
        return Counted(self)

    def write(self, value: Counted, *element: object) -> None:
        """Store a result."""
        self.touched.add(element)

    def start(self) -> Counted:
        """A constant, for which nothing is moved."""
        return Counted(self)


class Counted:
    """A number of which only what is done with it is known."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def step(self, *_: object) -> Counted:
        """Any operation of one or two numbers: one FLOP."""
        self._tally.flops += 1
        return Counted(self._tally)

    __add__ = __sub__ = __mul__ = __truediv__ = step


LARGE = 2**16
"""Sizes whose product is as much are not run element by element."""


def _elementwise(t: Tally, n: int, inputs: int, flops_each: int) -> None:
    for i in range(n):
        value = [t.start(), *(t.read("input", place, i) for place in range(inputs))][-1]
        for _ in range(flops_each):
            value = value.step()
        t.write(value, "output", i)


def _softmax(t: Tally, rows: int, columns: int) -> None:
    for r in range(rows):
        x = [t.read("x", r, c) for c in range(columns)]
        for c, value in enumerate(_softmaxed(t, x)):
            t.write(value, "y", r, c)


def _softmaxed(t: Tally, x: list[Counted]) -> list[Counted]:
    top, total = t.start(), t.start()
    for value in x:
        top = top.step(value)  # the larger of two
    raised = [(value - top).step() for value in x]
    for value in raised:
        total = total + value
    return [value / total for value in raised]


def _layer_norm(t: Tally, rows: int, width: int) -> None:
    for r in range(rows):
        x = [t.read("x", r, i) for i in range(width)]
        total = squares = t.start()
        for value in x:
            total = total + value
        mean = total / width
        centred = [value - mean for value in x]
        for value in centred:
            squares = squares + value * value
        scale = (squares / width + t.start()).step().step()  # the root, and one over it
        for i, value in enumerate(centred):
            t.write(value * scale * t.read("weight", i) + t.read("bias", i), "y", r, i)


def _matmul(t: Tally, m: int, n: int, k: int) -> None:
    for i in range(m):
        for j in range(n):
            total = t.start()
            for at in range(k):
                total = total + t.read("a", i, at) * t.read("b", at, j)
            t.write(total, "c", i, j)


def _decode_attention(t: Tally, batch: int, tokens: int, heads: int, kv_heads: int, width: int) -> None:
    for b in range(batch):
        for head in range(heads):
            shared = head * kv_heads // heads
            scores = []
            for token in range(tokens):
                score = t.start()
                for i in range(width):
                    score = score + t.read("q", b, head, i) * t.read("k", b, token, shared, i)
                scores.append(score * t.start())
            weights = _softmaxed(t, scores)
            for i in range(width):
                mixed = t.start()
                for token, weight in enumerate(weights):
                    mixed = mixed + weight * t.read("v", b, token, shared, i)
                t.write(mixed, "out", b, head, i)


ORACLES: dict[str, Callable[..., None]] = {
    "elementwise": _elementwise,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "matmul": _matmul,
    "decode_attention": _decode_attention,
}


def _count(operation: str, sizes: list[int]) -> tuple[int, int]:
    """FLOPs of an operation, and elements that it moves."""
    tally = Tally()
    ORACLES[operation](tally, *sizes)
    return tally.flops, len(tally.touched)


def _extrapolate(operation: str, sizes: list[int]) -> tuple[int, int]:
    """FLOPs of an operation too large to run, and elements moved; linear in each size, so values at 1 and 2 tell."""
    flops = moved = 0
    for corner in itertools.product((1, 2), repeat=len(sizes)):
        share = math.prod(n - 1 if at == 2 else 2 - n for n, at in zip(sizes, corner, strict=True))
        # Heads are a multiple of the heads of keys and values: what is linear is how many share one.
        small = [*corner[:2], corner[2] * corner[3], *corner[3:]] if operation == "decode_attention" else list(corner)
        counts = _count(operation, small)
        flops, moved = flops + share * counts[0], moved + share * counts[1]
    return flops, moved


def _work_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Calls of the operations that a case names: two of drawn sizes, or one, and it with each number at its least."""
    arrays, widths = {}, (8, 1) if case.hidden else (4, 2)
    for operation, ranges in case.params["sizes"].items():
        rows = [[int(rng.integers(low, high)) for low, high in ranges] for _ in widths]
        if operation == "decode_attention":  # heads: a whole number for each key/value head
            rows = [[b, t, group * shared, shared, width] for b, t, group, shared, width in rows]
        rows = [[*row, width] for row, width in zip(rows, widths, strict=True)]
        arrays[operation] = np.array(_with_each_least(operation, rows[0]) if case.params.get("least") else rows)
    return arrays


def _with_each_least(operation: str, row: list[int]) -> list[list[int]]:
    """A call, and the same call with one number after the other at the least that it may be."""
    least = [1] * len(row)
    if operation == "elementwise":  # a copy, and what is made of nothing
        least[1:3] = 0, 0
    if operation == "decode_attention":  # each query head has keys and values of its own
        least[2] = row[3]
    return [row, *([*row[:i], least[i], *row[i + 1 :]] for i in range(len(row)))]


def _work_expect(arrays: Arrays) -> Arrays:
    expected = {}
    for operation, sizes, element_bytes, name in calls.calls_of(arrays):
        if math.prod(sizes) < LARGE:
            flops, moved = _count(operation, sizes)
        else:
            shared = [sizes[2] // sizes[3]] if operation == "decode_attention" else sizes[2:3]
            flops, moved = _extrapolate(operation, [*sizes[:2], *shared, *sizes[3:]])
        expected[f"FLOPs of {name}"] = encode_text(flops)  # as a text it may be beyond 64 bits
        expected[f"bytes of {name}"] = encode_text(moved * element_bytes)
        if element_bytes > 2:
            expected |= likely(f"bytes of {name}", {"these are elements": moved})
        if operation == "matmul":
            expected |= likely(f"FLOPs of {name}", {"a multiply-add is two FLOPs": flops // 2})
    return expected


def _shown(arrays: Arrays) -> str:
    return "\n".join(name for *_, name in calls.calls_of(arrays))


def _sized(
    name: str, sizes: Mapping[str, Sequence[tuple[int, int]]], *, least: bool = False, hidden: bool = False
) -> Case:
    """A case of operations, each with the ranges that its sizes are drawn from, bytes an element apart."""
    return Case(name, {"sizes": sizes, "least": least}, hidden=hidden)


CHECKS = (
    Check(
        name="work",
        title="FLOPs and least bytes of operations",
        points=12,
        cases=(
            _sized("elementwise operations", {"elementwise": [(1, 60), (1, 4), (1, 9)]}),
            _sized("softmax", {"softmax": [(2, 9), (2, 20)]}),
            _sized("layer norm", {"layer_norm": [(2, 9), (2, 20)]}),
            _sized("matrix products", {"matmul": [(2, 9), (2, 9), (2, 9)]}),
            _sized("attention of one new token", {"decode_attention": [(2, 4), (2, 9), (2, 4), (2, 4), (2, 6)]}),
            _sized(
                "each number in turn at its least",
                {
                    "elementwise": [(2, 60), (2, 4), (2, 9)],
                    "softmax": [(2, 9), (2, 20)],
                    "layer_norm": [(2, 9), (2, 20)],
                    "matmul": [(2, 9), (2, 9), (2, 9)],
                    "decode_attention": [(2, 4), (2, 9), (2, 4), (2, 4), (2, 6)],
                },
                least=True,
            ),
            _sized(
                "more than a float counts, or 64 bits",
                {"elementwise": [(2**60, 2**61), (8, 12), (8, 12)], "matmul": [(2**21, 3 * 2**20)] * 3},
            ),
            _sized(
                "one of each",
                {
                    name: [(1, 7)] * (5 if name == "decode_attention" else 3)
                    for name in ("elementwise", "matmul", "decode_attention")
                },
                hidden=True,
            ),
            _sized(
                "sizes of real models",
                {
                    "elementwise": [(2**30, 2**31), (2, 5), (3, 9)],
                    "softmax": [(5000, 9000), (100_000, 200_000)],
                    "layer_norm": [(100_000, 200_000), (5000, 9000)],
                    "matmul": [(3000, 9000)] * 3,
                    "decode_attention": [(9, 65), (3000, 9000), (3, 9), (3, 9), (65, 129)],
                },
                hidden=True,
            ),
            _sized("equal sizes", {"matmul": [(6, 7)] * 3, "softmax": [(6, 7)] * 2}, hidden=True),
        ),
        inputs=_work_inputs,
        run=calls.work,
        describe=_shown,
        expect=_work_expect,
        compare=agree,
        first_hint="Take the operation whose count is off, and write its formula down with a tally beside every sign.",
        hint="Go through the task's formulas one sign at a time: every +, −, ×, /, max, exp and root is one FLOP, a "
        "sum of n numbers n of them. Bytes: each array that comes in or goes out once, what rows or heads share once "
        "for all of them; what stays on the chip, not at all.",
        uses=("elementwise_work", "softmax_work", "layer_norm_work", "matmul_work", "decode_attention_work"),
    ),
)
