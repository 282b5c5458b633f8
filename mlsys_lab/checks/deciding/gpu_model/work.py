"""Task 1: FLOPs, least bytes and the roofline. Oracle: every operation run on numbers that count.

Where sizes are those of real models, operations of sizes 1 and 2 are run, and the counts go on as straight lines do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from mlsys_lab.checks.deciding.answers import agree, likely
from mlsys_lab.checks.learner.gpu_model import work as calls
from mlsys_lab.checks.learner.spec import Arrays, Case, Check
from mlsys_lab.checks.learner.values import encode_text
from mlsys_lab.hardware import device


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
    arrays, widths = {}, (8, 1) if case.hidden else (4, 2)
    for operation, ranges in case.params.items():
        rows = [[int(rng.integers(low, high)) for low, high in ranges] for _ in range(2)]
        if operation == "decode_attention":  # heads: a whole number for each key/value head
            rows = [[b, t, group * shared, shared, width] for b, t, group, shared, width in rows]
        arrays[operation] = np.array([[*row, width] for row, width in zip(rows, widths, strict=True)])
    return arrays


def _work_expect(arrays: Arrays) -> Arrays:
    expected = {}
    for operation, sizes, element_bytes, name in calls.calls_of(arrays):
        if math.prod(sizes) < LARGE:
            flops, moved = _count(operation, sizes)
        else:
            shared = [sizes[2] // sizes[3]] if operation == "decode_attention" else sizes[2:3]
            flops, moved = _extrapolate(operation, [*sizes[:2], *shared, *sizes[3:]])
        expected[f"FLOPs of {name}"] = np.array(flops)
        expected[f"bytes of {name}"] = np.array(moved * element_bytes)
        if element_bytes > 2:
            expected |= likely(f"bytes of {name}", {"these are elements": moved})
        if operation == "matmul":
            expected |= likely(f"FLOPs of {name}", {"a multiply-add is two FLOPs": flops // 2})
    return expected


def _shown(arrays: Arrays) -> str:
    return "\n".join(name for *_, name in calls.calls_of(arrays))


DEVICES = (("H100", "bf16"), ("H100", "fp32"), ("A100 80GB", "fp16"), ("RTX 4090", "fp16"), ("T4", "fp16"))

HIDDEN_DEVICES = (("H200", "fp8"), ("RTX 3090", "fp32"), ("A100 80GB", "bf16"))

NEAR = {"just left": 1 - 2.0**-12, "just right": 1 + 2.0**-12, "a copy": 0.0}
"""Intensities as parts of the ridge's, of cases in which it is not drawn."""


def _bound_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Pieces of work on rows of the device table: left or right of the ridge, in three digits; upon it; or `NEAR`."""
    rows = []
    for name, precision in case.params.get("devices", DEVICES):
        peak, bandwidth = device(name).peak(precision), device(name).memory_bandwidth_bytes_per_s
        if case.params["side"] == "ridge":
            peak, bandwidth = float(peak // 1e12) * 2.0**40, 2.0 ** int(rng.integers(36, 42))
            size = 2.0 ** int(rng.integers(8, 20))
            rows.append([size * peak / bandwidth, size, peak, bandwidth])
            continue
        size = float(f"{np.exp(rng.uniform(8, 24)):.3g}")
        if case.params["side"] in NEAR:
            rows.append([size * peak / bandwidth * NEAR[case.params["side"]], size, peak, bandwidth])
            continue
        low, high = {"left": (-5, -0.5), "right": (0.5, 4)}[case.params["side"]]
        flops = float(f"{size * peak / bandwidth * np.exp(rng.uniform(low, high)):.3g}")
        rows.append([flops, size, peak, bandwidth])
    return {"works": np.array(rows)}


def _bound_expect(arrays: Arrays) -> Arrays:
    expected = {}
    for row in arrays["works"].tolist():
        flops, size, peak, bandwidth = map(Fraction, row)
        compute_s, memory_s, name = flops / peak, size / bandwidth, calls.bound_call(row)
        least = f"least seconds from {name}"
        expected[f"intensity from {name}"] = np.array(float(flops / size))
        if flops:
            expected |= likely(f"intensity from {name}", {"these are bytes per FLOP": float(size / flops)})
        expected[least] = np.array(float(max(compute_s, memory_s)))
        expected |= likely(
            least,
            {
                "both times were added": float(compute_s + memory_s),
                "this is the shorter of two": float(min(compute_s, memory_s)),
            },
        )
        expected[f"limit from {name}"] = encode_text("memory" if memory_s > compute_s else "compute")
    return expected


def _bound_shown(arrays: Arrays) -> str:
    return "\n".join(map(calls.bound_call, arrays["works"].tolist()))


CHECKS = (
    Check(
        name="work",
        title="FLOPs and least bytes of operations",
        points=12,
        cases=(
            Case("elementwise operations", {"elementwise": [(1, 60), (1, 4), (1, 9)]}),
            Case("softmax", {"softmax": [(2, 9), (2, 20)]}),
            Case("layer norm", {"layer_norm": [(2, 9), (2, 20)]}),
            Case("matrix products", {"matmul": [(2, 9), (2, 9), (2, 9)]}),
            Case("attention of one new token", {"decode_attention": [(2, 4), (2, 9), (2, 4), (2, 4), (2, 6)]}),
            Case("products of more than a float counts", {"matmul": [(2**20, 3 * 2**19)] * 3}),
            Case(
                "one of each",
                {
                    name: [(1, 7)] * (5 if name == "decode_attention" else 3)
                    for name in ("elementwise", "matmul", "decode_attention")
                },
                hidden=True,
            ),
            Case(
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
            Case("nothing is read", {"elementwise": [(2, 60), (0, 1), (1, 9)]}, hidden=True),
            Case("equal sizes", {"matmul": [(6, 7)] * 3, "softmax": [(6, 7)] * 2}, hidden=True),
        ),
        inputs=_work_inputs,
        run=calls.work,
        describe=_shown,
        expect=_work_expect,
        compare=agree,
        pointer="Take the operation whose count is off, and write its formula down with a tally beside every sign.",
        hint="Go through the task's formulas one sign at a time: every +, −, ×, /, max, exp and root is one FLOP, a "
        "sum of n numbers n of them. Bytes: each array that comes in or goes out once, what rows or heads share once "
        "for all of them; what stays on the chip, not at all.",
        uses=("elementwise_work", "softmax_work", "layer_norm_work", "matmul_work", "decode_attention_work"),
    ),
    Check(
        name="bound",
        title="Intensity, least time and what limits",
        points=6,
        cases=(
            Case("short of bytes", {"side": "left"}),
            Case("short of FLOPs", {"side": "right"}),
            Case("on the ridge", {"side": "ridge", "devices": (("H100", "bf16"), ("A100 80GB", "fp16"))}),
            Case("copies", {"side": "a copy"}),
            Case("hardly short of bytes", {"side": "just left"}),
            Case("hardly short of FLOPs", {"side": "just right"}, hidden=True),
            Case("other devices, short of bytes", {"side": "left", "devices": HIDDEN_DEVICES}, hidden=True),
            Case("other devices, short of FLOPs", {"side": "right", "devices": HIDDEN_DEVICES}, hidden=True),
        ),
        inputs=_bound_inputs,
        run=calls.bound,
        describe=_bound_shown,
        expect=_bound_expect,
        compare=agree,
        pointer="Put the device's two limits on paper: how long does each take for this work alone?",
        hint="Two times: FLOPs at the peak, bytes at the bandwidth. Both go on at once, so the work takes as long as "
        "one of them, not as both. What does the task say where they are equal?",
        uses=("bound",),
    ),
)
