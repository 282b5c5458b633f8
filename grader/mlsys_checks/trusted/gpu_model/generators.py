"""Cases of lab 02, their oracles and limits, and a case as code.

Oracles: operations executed on numbers that count; fractions; bytes marked one by one; banks that serve pass after
pass; blocks and warps added until they no longer fit; NumPy for what kernels compute.
"""

from __future__ import annotations

import itertools
import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from mlsys_checks.sandboxed import gpu_model as calls
from mlsys_checks.sandboxed.gpu_model import kernels
from mlsys_checks.sandboxed.spec import Arrays, Case, Mismatch, Query, Range
from mlsys_checks.sandboxed.trees import flatten, nest
from mlsys_checks.sandboxed.values import decode_text, decode_value, encode_text, encode_value, write_number
from mlsys_checks.trusted.answers import likely
from mlsys_checks.trusted.traced import (
    SPLIT,
    agree,
    allow_at_most,
    report_not_shared,
    report_scattered,
    report_split,
)
from mlsys_lab.errors import InputError
from mlsys_lab.hardware import device

Rng = np.random.Generator
Answers = dict[str, Any]
WARP, SECTOR, WORD, BANKS = 32, 32, 4, 32
HARDLY = 2.0**-36
"""Relative difference of times that are nearly equal: 100,000 times what a division rounds away."""


# --- cases, answers, code ---------------------------------------------------------------------------------------------


def _as_inputs(
    asked: Sequence[tuple[Any, ...]], objects: Mapping[str, Any] | None = None, given: Sequence[Any] = ()
) -> Arrays:
    """Inputs of a case. asked: function, arguments and, last, keyword arguments if there are any."""
    made = [
        (name, [arg for arg in args if not isinstance(arg, dict)], next((a for a in args if isinstance(a, dict)), {}))
        for name, *args in asked
    ]
    return {"case": encode_value({"objects": dict(objects or {}), "calls": made, "given": list(given)})}


def expect_answers(arrays: Arrays) -> Arrays:
    """The right answer to each call of a case, and what common mistakes give for it."""
    case, expected = decode_value(arrays["case"]), Arrays()
    for code, name, args, kwargs in calls.calls_of(case):
        placed, named = calls.bind(args, kwargs, {key: _plain(value) for key, value in case["objects"].items()})
        for answer, (right, mistakes) in ORACLES[name](*placed, **named).items():
            label = answer.format(code)
            kind = encode_text if isinstance(right, str) else np.asarray
            expected[label] = kind(right)
            wrong = {why: value for why, value in mistakes.items() if str(value) != str(right) and abs(value) < 2**63}
            expected |= likely(label, wrong)
    return expected


def _plain(value: Any) -> Any:
    """An object of a case as the oracle sees it: the fields of a record, the numbers of an array."""
    return value[1] if isinstance(value, list) and value and isinstance(value[0], str) else value


def render_calls(arrays: Arrays) -> str:
    """Render the objects and the calls of a case as code."""
    case = decode_value(arrays["case"])
    used = [code for code, *_ in calls.calls_of(case)]
    lines = [f"{name} = {_render(value)}" for name, value in case["objects"].items()]
    records = ("bound(", "occupancy(")
    return "\n".join([*lines, *(f"vars({code})" if code.startswith(records) else code for code in used)])


def _render(value: Any) -> str:
    if isinstance(value, dict):
        return f"dict({', '.join(f'{key}={write_number(one)}' for key, one in value.items())})"
    if value and isinstance(value[0], str):
        kind, fields = value
        return f"np.array({_render(fields)}, float)" if kind == "array" else f"{kind}({_render(fields)[5:-1]})"
    steps = {after - before for before, after in itertools.pairwise(value)}
    if len(value) > 3 and len(steps) == 1:
        (step,) = steps
        return f"list(range({value[0]}, {value[-1] + step}, {step}))" if step else f"[{value[0]}] * {len(value)}"
    return f"[{', '.join(map(write_number, value))}]"


# --- task 1: FLOPs and bytes ------------------------------------------------------------------------------------------


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
    """A number of which only the operations are known."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def step(self, *_: object) -> Counted:
        """Any operation of one or two numbers: one FLOP."""
        self._tally.flops += 1
        return Counted(self._tally)

    __add__ = __sub__ = __mul__ = __truediv__ = step


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
    for i, j in itertools.product(range(m), range(n)):
        total = t.start()
        for at in range(k):
            total = total + t.read("a", i, at) * t.read("b", at, j)
        t.write(total, "c", i, j)


def _decode_attention(t: Tally, batch: int, tokens: int, heads: int, kv_heads: int, width: int) -> None:
    for b, head in itertools.product(range(batch), range(heads)):
        group, scores = head * kv_heads // heads, []
        for token in range(tokens):
            score = t.start()
            for i in range(width):
                score = score + t.read("q", b, head, i) * t.read("k", b, token, group, i)
            scores.append(score * t.start())
        weights = _softmaxed(t, scores)
        for i in range(width):
            mixed = t.start()
            for token, weight in enumerate(weights):
                mixed = mixed + weight * t.read("v", b, token, group, i)
            t.write(mixed, "out", b, head, i)


OPERATIONS: dict[str, tuple[Callable[..., None], int]] = {
    "softmax": (_softmax, 2),
    "layer_norm": (_layer_norm, 2),
    "matmul": (_matmul, 3),
    "decode_attention": (_decode_attention, 5),
}
"""By operation, what executes it on a tally, and its number of sizes."""
MOST_EXECUTED = 2**12


def draw_work(rng: Rng, case: Case) -> Arrays:
    """Draw calls of each operation of a case: one, and it again with one size after the other set to 1.

    Query heads are drawn as a number for each key/value head. longer: a factor of the last size, of which no code that
    counts row by row or head by head makes a loop.
    """
    asked: list[tuple[Any, ...]] = []
    for operation in case.params["operations"]:
        low, high = case.params["sizes"]
        drawn = [Range(low, high).draw(rng) for _ in range(OPERATIONS[operation][1])]
        drawn[-1] *= case.params.get("longer", 1)
        for sizes in (drawn, *([*drawn[:i], 1, *drawn[i + 1 :]] for i in range(len(drawn)))):
            element_bytes = int(rng.choice((1, 4, 8)))
            if operation == "decode_attention":
                batch, tokens, group, kv_heads, width = sizes
                sizes = [batch, tokens, group * kv_heads, kv_heads, width]
            asked.append((f"{operation}_work", *sizes, element_bytes))
        asked.append((f"{operation}_work", *sizes))
    return _as_inputs(asked)


def _count_work(operation: str, *sizes: int) -> tuple[int, int]:
    """FLOPs of an operation and elements that it moves. Both are linear in each size, so values at 1 and 2 suffice."""
    if operation == "decode_attention":  # what is linear is the number of query heads for each key/value head
        sizes = (*sizes[:2], sizes[2] // sizes[3], *sizes[3:])
    if math.prod(sizes) <= MOST_EXECUTED:
        return _execute(operation, sizes)
    flops = moved = 0
    for corner in itertools.product((1, 2), repeat=len(sizes)):
        factor = math.prod(n - 1 if at == 2 else 2 - n for n, at in zip(sizes, corner, strict=True))
        counts = _execute(operation, corner)
        flops, moved = flops + factor * counts[0], moved + factor * counts[1]
    return flops, moved


def _execute(operation: str, sizes: Sequence[int]) -> tuple[int, int]:
    tally = Tally()
    if operation == "decode_attention":
        sizes = (*sizes[:2], sizes[2] * sizes[3], *sizes[3:])
    OPERATIONS[operation][0](tally, *sizes)
    return tally.flops, len(tally.touched)


def _work(operation: str) -> Callable[..., Answers]:
    arity = OPERATIONS[operation][1]

    def expect(*args: int) -> Answers:
        sizes, element_bytes = args[:arity], args[arity] if len(args) > arity else 2
        flops, moved = _count_work(operation, *sizes)
        counted = {"these are the bytes: FLOPs come first": moved * element_bytes}
        elements = {"these are elements, not bytes": moved}
        if operation == "matmul":
            counted["a multiplication and an addition are two FLOPs"] = flops // 2
        if operation == "decode_attention":
            heads = (*sizes[:3], sizes[2], sizes[4])
            elements["a group of query heads shares one head of keys and values"] = (
                element_bytes * _count_work(operation, *heads)[1]
            )
        return {"FLOPs of {}": (str(flops), counted), "bytes of {}": (str(moved * element_bytes), elements)}

    return expect


# --- tasks 1 and 3: bounds --------------------------------------------------------------------------------------------

DEVICES = (("H100", "bf16"), ("H100", "fp32"), ("A100 80GB", "fp16"), ("RTX 4090", "fp16"), ("T4", "fp16"))


def draw_bound(rng: Rng, case: Case) -> Arrays:
    """Draw works on rows of the device table. kinds: where the intensity lies compared with the ridge."""
    objects, asked = {}, []
    for i, kind in enumerate(case.params["kinds"]):
        row, precision = DEVICES[rng.integers(len(DEVICES))]
        peak, bandwidth = device(row).peak(precision), device(row).memory_bandwidth_bytes_per_s
        size = float(f"{np.exp(rng.uniform(8, 24)):.3g}")
        if kind == "equal":  # powers of two, so that both times are equal to the last bit
            peak, bandwidth = float(peak // 1e12) * 2.0**40, 2.0 ** int(rng.integers(36, 42))
            size = 2.0 ** int(rng.integers(8, 20))
        low, high = {"memory": (-5, -0.5), "compute": (0.5, 4)}.get(kind, (0, 0))
        flops = size * peak / bandwidth * np.exp(rng.uniform(low, high))
        flops *= {"a copy": 0.0, "just memory": 1 - HARDLY, "just compute": 1 + HARDLY}.get(kind, 1.0)
        objects[f"roof_{i}"] = {"peak_flops_per_s": peak, "bandwidth_bytes_per_s": bandwidth}
        asked.append(("bound", float(f"{flops:.3g}") if high or low else flops, size, f"**roof_{i}"))
    return _as_inputs(asked, objects)


def _bound(flops: float, size_bytes: float, *, peak_flops_per_s: float, bandwidth_bytes_per_s: float) -> Answers:
    work, size, peak, bandwidth = map(Fraction, (flops, size_bytes, peak_flops_per_s, bandwidth_bytes_per_s))
    compute_s, memory_s = work / peak, size / bandwidth
    time_s = max(compute_s, memory_s)
    swapped = {"these are bytes per FLOP": float(size / work)} if work else {}
    return {
        "{}.intensity": (float(work / size), swapped),
        "{}.ridge": (float(peak / bandwidth), {"this is bandwidth / peak": float(bandwidth / peak)}),
        "{}.time_s": (
            float(time_s),
            {
                "both times were added": float(compute_s + memory_s),
                "this is the shorter of two": float(min(compute_s, memory_s)),
            },
        ),
        "{}.flops_per_s": (float(work / time_s), {"this is the device's peak": peak_flops_per_s}),
        "{}.fraction": (
            float(work / time_s / peak),
            {"this is the fraction of the bandwidth": float(memory_s / time_s)},
        ),
        "{}.limit": ("memory" if memory_s > compute_s else "compute", {}),
    }


def draw_regime(rng: Rng, case: Case) -> Arrays:
    """Draw works whose `longest` times are the longest, equally long if several, on one machine.

    fractions: how much of the measured time the bound explains, one of these for each work. close: the other times are
    hardly shorter. copies: no FLOPs. overhead: 0 for a machine without.
    """
    p = case.params
    peak, bandwidth = 2.0 ** int(rng.integers(30, 48)), 2.0 ** int(rng.integers(28, 41))
    overhead = 2.0 ** -int(rng.integers(16, 22))
    asked, given = [], []
    for longest in p["longest"]:
        top = 1.0 if "overhead" in longest else 2.0 ** int(rng.integers(4, 9))
        shorter = 1 - HARDLY if p.get("close") else 2.0 ** -int(rng.integers(1, 4))
        units = {name: top if name in longest else top * shorter for name in ("compute", "memory")}
        if p.get("close") and "overhead" not in longest:
            units = {name: 1 + HARDLY if name in longest else 1.0 for name in units}
        if p.get("copies"):
            units["compute"] = 0.0
        flops, size = units["compute"] * overhead * peak, units["memory"] * overhead * bandwidth
        time_s = max(*units.values(), 1.0) * overhead / float(rng.choice(p["fractions"]))
        asked += [("predict_s", flops, size, "machine"), ("regime", time_s, flops, size, "machine")]
        right = _bound(flops, size, peak_flops_per_s=peak, bandwidth_bytes_per_s=bandwidth)
        given.append(([flops, size, peak, bandwidth], {name[3:]: value for name, (value, _) in right.items()}))
    fields = {"peak_flops_per_s": peak, "bandwidth_bytes_per_s": bandwidth, "overhead_s": overhead}
    return _as_inputs(asked, {"machine": ["Machine", fields | p.get("machine", {})]}, given)


def _times(flops: float, size_bytes: float, machine: Mapping[str, float]) -> dict[str, Fraction]:
    return {
        "compute": Fraction(flops) / Fraction(machine["peak_flops_per_s"]),
        "memory": Fraction(size_bytes) / Fraction(machine["bandwidth_bytes_per_s"]),
        "overhead": Fraction(machine["overhead_s"]),
    }


def _predict_s(flops: float, size_bytes: float, machine: Mapping[str, float]) -> Answers:
    times = _times(flops, size_bytes, machine)
    without = float(max(times["compute"], times["memory"]))
    mistakes = {"the three times were added": float(sum(times.values())), "this is without the overhead": without}
    return {"{}": (float(max(times.values())), mistakes)}


def _regime(time_s: float, flops: float, size_bytes: float, machine: Mapping[str, float]) -> Answers:
    times = _times(flops, size_bytes, machine)
    longest = sorted(times, key=lambda name: -times[name])[0]
    explained = times[longest] / Fraction(time_s)
    inverse = {"this is the measured time over the bound": float(1 / explained)} if explained else {}
    return {
        "fraction of {}": (float(explained), inverse),
        "limit of {}": (longest if explained >= Fraction(1, 2) else "unexplained", {}),
    }


# --- task 2: a timing loop and a fit ----------------------------------------------------------------------------------

STEP_S = 2.0**-30
"""The tick of the made-up clock."""
TICKS = (0, 0, 1, 2, 2, 3, 4, 6, 7, 9)
"""Times by a coarse clock: the median is another one without zeros, and if equal times count once."""
STALE = 0.125
"""A call whose input was seen before takes this fraction of its time: the input is still in the cache."""


class MadeUpMachine:
    """A clock, inputs to make and a call to time, whose times are given and unknown to the code that measures."""

    def __init__(self, arrays: Arrays) -> None:
        self._now_s = float(arrays["_start_s"])
        self._make_s, self._clock_s = float(arrays["_make_s"]), float(arrays["_clock_s"])
        self._calls_s: list[float] = arrays["_calls_s"].tolist()
        self._made = self._called = self._warmed = 0
        self._seen: set[int] = set()

    def answer(self, what: str, value: int) -> float:
        """Answer "clock" with the time, "make" with the number of a new input, and call input `value` for "call".

        Raises InputError for an input that was not made or has not been used, and for a call too many.
        """
        if what == "make":
            if self._made and self._made not in self._seen:
                raise InputError(
                    "`make_args` is called again before the arguments that it made last were used",
                    expected="in each turn, make arguments and call with them",
                )
            self._made += 1
            self._now_s += self._make_s
            return self._made
        if what == "call":
            self._call(value)
            return 0.0
        if what != "clock":
            raise InputError("a machine is asked for something else", got=what[:40], expected="make, call or clock")
        read_s = self._now_s
        self._now_s += self._clock_s
        return read_s

    def _call(self, value: int) -> None:
        if not 1 <= value <= self._made:
            raise InputError("`call` was called with something else", got=value, expected="*make_args()")
        if self._called == len(self._calls_s):
            raise InputError("`call` is called too often", expected=f"warmup + samples = {self._called} times")
        fresh = value not in self._seen
        self._now_s += self._calls_s[self._warmed] * (1.0 if fresh else STALE)
        self._called += 1
        self._warmed += fresh
        self._seen.add(value)


def make_machine(arrays: Arrays) -> Query:
    """The partner of a timing loop."""
    return MadeUpMachine(arrays).answer


def draw_machine(rng: Rng, case: Case) -> Arrays:
    """Draw the times of calls: slow in the warm-up, with one exception, and later disturbed now and then.

    Times are whole numbers of `STEP_S`, so that sums are exact. All differ, unless the clock is `coarse`: then those of
    the warm-up are equal, and the samples are a few of the clock's ticks.
    """
    samples, warmup = case.params["samples"], case.params["warmup"]
    calls_s = (1000.0 + rng.permutation(400))[: warmup + samples]
    calls_s[:warmup] *= 40
    calls_s[2:warmup][:1] = 500
    disturbed = warmup + rng.permutation(samples)[: samples // 4]
    calls_s[disturbed] *= 10
    clock_s = 30.0
    if case.params.get("coarse"):
        tick, clock_s, others = float(rng.integers(100, 900)), 0.0, rng.permutation(TICKS)
        calls_s = tick * np.array([40] * warmup + [0, *others[:5], 0, *others[5:], 0][:samples])
    return {
        "samples": np.array(samples),
        "warmup": np.array(warmup),
        "_start_s": np.array(float(rng.integers(1, 1000))),
        "_make_s": np.array(5000 * STEP_S),
        "_clock_s": np.array(clock_s * STEP_S),
        "_calls_s": calls_s * STEP_S,
    }


def expect_timing(arrays: Arrays) -> Arrays:
    """The calls' times, each with one reading of the clock, and their median."""
    samples, warmup, read_s = int(arrays["samples"]), int(arrays["warmup"]), float(arrays["_clock_s"])
    times = arrays["_calls_s"] + read_s
    kept, code = times[warmup:].tolist(), calls.measure_call(samples, warmup)
    ordered, p50, each = sorted(kept), f"p50_s of {code}", f"samples_s of {code}"
    used_again = np.full(samples, arrays["_calls_s"][1 % len(times)] * STALE + read_s)
    mistakes: dict[str, Any] = {
        "making the arguments was timed too": times[warmup:] + arrays["_make_s"],
        "these are the first calls, which are the warm-up": times[:samples],
        "arguments were used again": used_again,
        "these samples are sorted, not in the order of the calls": np.array(ordered),
    }
    return {
        each: times[warmup:],
        p50: np.array(statistics.median(kept)),
        **likely(each, {why: wrong for why, wrong in mistakes.items() if warmup or "warm-up" not in why}),
        **likely(
            p50,
            {
                "this is the mean": statistics.mean(kept),
                "this is the minimum": ordered[0],
                "this is the sum of all samples": sum(kept),
                "of an even number take the mean of the middle two, not the upper one": ordered[samples // 2],
                "of an even number take the mean of the middle two, not the lower one": ordered[(samples - 1) // 2],
            },
        ),
    }


def render_machine(arrays: Arrays) -> str:
    """Code that makes the machine up: an input is a list, whose number is the speed-up of its next call."""
    ticks = ", ".join(write_number(time_s / STEP_S) for time_s in arrays["_calls_s"].tolist())
    make, clock = (write_number(float(arrays[name]) / STEP_S) for name in ("_make_s", "_clock_s"))
    return "\n".join(
        [
            "now = [0]  # in ticks of 2**-30 s, about a nanosecond",
            f"ticks = [{ticks}]  # of one call after the other",
            f"made = [[{1 / STALE:g}]]  # inputs, each of which must be used before the next one is made",
            f"def make_args(): assert made[-1][0] > 1; now[0] += {make}; made.append([1]); return (made[-1],)",
            "# A call on an input that is in a cache is faster.",
            f"def call(x): now[0] += ticks[0] / x[0]; del ticks[: x[0] == 1]; x[0] = {1 / STALE:g}",
            f"def clock(): now[0] += {clock}; return (now[0] - {clock}) / 2**30  # and reading it takes time",
            f"timing = {calls.measure_call(int(arrays['samples']), int(arrays['warmup']))}",
            "timing.samples_s, timing.p50_s",
        ]
    )


def draw_fit(rng: Rng, case: Case) -> Arrays:
    """Draw sizes from 2**`low` to 2**`high` bytes, the first `empty` of them 0, and times that rise with them."""
    p = case.params
    low, high, points = p.get("low", 4), p.get("high", 27), p["points"]
    sizes = np.sort(2.0 ** rng.integers(low, high + 1, points))
    sizes[0], sizes[-1] = 2.0**low, 2.0**high
    sizes[: p.get("empty", 0)] = 0
    times = rng.uniform(1e-6, 9e-6) + sizes / rng.uniform(5e9, 3e12)
    if p.get("bent"):  # faster while a cache holds it: the line meets the axis below 0
        times *= np.sqrt(sizes / sizes[-1])
    times *= 1 + rng.uniform(0, p["noise"], points)
    objects = {"sizes_bytes": ["array", sizes.tolist()], "times_s": ["array", times.tolist()]}
    return _as_inputs([("fit_overhead_and_bandwidth", "sizes_bytes", "times_s")], objects)


def _fit(sizes_bytes: list[float], times_s: list[float]) -> Answers:
    """The least sum of squares, in fractions: where both derivatives vanish, by Cramer's rule."""
    ones = [1 / Fraction(time_s) for time_s in times_s]
    sizes = [Fraction(size) * one for size, one in zip(sizes_bytes, ones, strict=True)]
    rows = [[sum(map(operator.mul, a, b)) for b in (ones, sizes, [1] * len(ones))] for a in (ones, sizes)]
    (aa, ab, a1), (_, bb, b1) = rows
    determinant = aa * bb - ab * ab
    overhead, s_per_byte = float((a1 * bb - ab * b1) / determinant), float((aa * b1 - ab * a1) / determinant)
    plain_slope, plain = np.polyfit(sizes_bytes, times_s, 1)
    why = "here errors count in seconds, not relative to the time"
    mistakes = {why: 1 / plain_slope, "these are seconds per byte": s_per_byte}
    return {"overhead_s of {}": (overhead, {why: plain}), "bandwidth_bytes_per_s of {}": (1 / s_per_byte, mistakes)}


# --- task 4: requests of a warp ---------------------------------------------------------------------------------------


def draw_requests(rng: Rng, case: Case) -> Arrays:
    """Draw requests for a function: of lanes with a stride, spread at random, or of which most want one word.

    patterns: pairs of a stride in bytes and how far the first lane lies behind a sector's start, or the word
    "random", "masked", "one lane", "no lane", "far" or "crowd".
    """
    objects, asked = {}, []
    for i, pattern in enumerate(case.params["patterns"]):
        width = int(case.params.get("width") or 2 ** rng.integers(5))
        addresses = _draw_addresses(rng, pattern, width, case.params.get("start"))
        objects[f"request_{i}"] = addresses
        name = case.params["function"]
        asked.append((name, f"request_{i}", width) if name == "sectors_touched" else (name, f"request_{i}"))
    return _as_inputs(asked, objects)


def _draw_addresses(rng: Rng, pattern: Any, width: int, start: int | None) -> list[int]:
    first = SECTOR * int(rng.integers(1, 20)) if start is None else start
    lanes = np.arange(WARP)
    if not isinstance(pattern, str):
        stride, shift = pattern
        return [int(one) for one in first + shift + stride * lanes]
    if pattern == "crowd":  # most lanes want one word; four of them words of one other bank
        crowd, other = rng.permutation(BANKS)[:2]
        words = np.full(WARP, crowd)
        words[rng.permutation(WARP)[:4]] = other + BANKS * np.arange(4)
        return [int(one) for one in WORD * words]
    count = {"one lane": 1, "no lane": 0, "masked": int(rng.integers(2, WARP))}.get(pattern, WARP)
    unit = width if rng.random() < 0.5 else WORD
    drawn = unit * rng.integers(0, 2 ** int(rng.integers(3, 11)), count) + (2**33 + WORD if pattern == "far" else 0)
    return [int(one) for one in drawn]


def _sectors_touched(addresses: list[int], size_bytes: int) -> Answers:
    """Mark every byte that a lane asks for; count the sectors with a mark."""
    marked = {byte for at in addresses for byte in range(at, at + size_bytes)}
    behind = {one for at in addresses for one in (at // SECTOR, (at + size_bytes) // SECTOR)}
    mistakes = {
        "only the first byte of each lane was counted": len({at // SECTOR for at in addresses}),
        "this is right only if all lanes lie side by side": -(-len(addresses) * size_bytes // SECTOR),
        "lanes in one sector share it": len(addresses),
        "the byte behind a lane's last one was counted too": len(behind),
    }
    return {"{}": (len({byte // SECTOR for byte in marked}), mistakes)}


def _bank_passes(addresses: list[int]) -> Answers:
    """Serve a request pass by pass: each bank serves one word, to all lanes that want it."""
    waiting, passes = {address // WORD for address in addresses}, 0
    deepest = np.bincount(np.array(addresses, int) // WORD % BANKS, minlength=1).max()
    while waiting:
        serving = {word % BANKS: word for word in sorted(waiting)}
        waiting -= set(serving.values())
        passes += 1
    return {"{}": (passes, {"lanes that want one word share it": int(deepest)})}


# --- task 5: occupancy and bytes in flight ----------------------------------------------------------------------------

SCHEDULERS, REGISTERS_AT_ONCE, SHARED_AT_ONCE, RESERVED = 4, 256, 128, 1024
FIELDS = ("warps_per_unit", "blocks_per_unit", "register_bytes_per_unit", "shared_bytes_per_unit")


def draw_occupancy(rng: Rng, case: Case) -> Arrays:
    """Draw launches on a row of the device table, or on a `small` multiprocessor.

    launches: threads, registers and shared bytes, each a number or a `Range`; or "exact", with shared memory that a
    number of blocks fills to the byte, and then one byte more.
    """
    row = case.params["devices"][rng.integers(len(case.params["devices"]))]
    sm = dict(zip(FIELDS, (24, 16, 160 * 1024, 12 * 1024), strict=True))
    if row != "small":
        sm = {name: int(getattr(device(row), name)) for name in FIELDS}
    asked: list[tuple[Any, ...]] = []
    for launch in case.params["launches"]:
        launches: list[Any]
        if launch == "exact":
            blocks = int(rng.integers(2, 14))
            full = sm["shared_bytes_per_unit"] // blocks // SHARED_AT_ONCE * SHARED_AT_ONCE - RESERVED
            launches = [(64, 16, max(0, full)), (64, 16, max(0, full) + 1)]
        else:
            launches = [tuple(one.draw(rng) if isinstance(one, Range) else one for one in launch)]
        for threads, registers, shared in launches:
            asked.append(("occupancy", "sm", threads, {"registers": registers, "shared_bytes": shared}))
            if not shared:
                del asked[-1][-1]["shared_bytes"]
    return _as_inputs(asked, {"sm": ["Device", sm]})


def _occupancy(sm: Mapping[str, int], threads: int, *, registers: int, shared_bytes: int = 0) -> Answers:
    """Add blocks, by each resource alone, until one does not fit."""
    warps = sum(1 for _ in range(0, threads, WARP))
    per_warp = next(n for n in itertools.count(0, REGISTERS_AT_ONCE) if n >= registers * WARP)
    per_block = next(n for n in itertools.count(0, SHARED_AT_ONCE) if n >= shared_bytes + RESERVED)
    by = {
        "blocks": sm["blocks_per_unit"],
        "warps": _count_fits(sm["warps_per_unit"], warps),
        "registers": _count_fits(_place_warps(sm["register_bytes_per_unit"] // 4, per_warp), warps),
        "shared memory": _count_fits(sm["shared_bytes_per_unit"], per_block),
    }
    blocks = min(by.values())
    resident = {"these are the warps of one block": warps, "these are blocks": blocks}
    undivided = {"each quarter holds whole warps": sm["register_bytes_per_unit"] // 4 // per_warp // warps}
    return {
        **{f"{{}}.by['{name}']": (count, undivided if name == "registers" else {}) for name, count in by.items()},
        "{}.blocks": (blocks, {}),
        "{}.warps": (blocks * warps, resident),
        "{}.occupancy": (blocks * warps / sm["warps_per_unit"], {}),
    }


def _count_fits(room: int, each: int) -> int:
    return sum(1 for _ in range(each, room + 1, each))


def _place_warps(registers: int, per_warp: int) -> int:
    """Give warps their registers, from the quarter with most of them left, until one gets none."""
    quarters, warps = [registers // SCHEDULERS] * SCHEDULERS, 0
    while max(quarters) >= per_warp:
        quarters[quarters.index(max(quarters))] -= per_warp
        warps += 1
    return warps


def draw_flight(rng: Rng, case: Case) -> Arrays:
    """Draw a memory, and how its lanes wait. exceeds: by how much a whole number of warps falls short of enough."""
    p = case.params
    row = device(("H100", "A100 80GB", "RTX 4090")[rng.integers(3)])
    latency_s = float(f"{2 * rng.integers(100, 450) + 1}e-9")  # odd, so that no whole number of warps is just enough
    memory = [row.memory_bandwidth_bytes_per_s, latency_s, row.units]
    if p.get("slow"):  # a few bytes, and a part of one
        memory = [float(f"{rng.uniform(1e7, 9e7):.4g}"), memory[1], 2]
    if "exceeds" in p:
        memory = [2.0**41, 2.0**-21 * (1 + p["exceeds"]), 128]
    asked: list[tuple[Any, ...]] = []
    for _ in range(3):
        lane_bytes, loads = int(2 ** rng.integers(5)), int(Range(1, 6).draw(rng))
        if "exceeds" in p:
            loads = int(2 ** rng.integers(3))
        warps = int(Range(0, 64).draw(rng))
        more = {} if loads == 1 else {"loads": loads}
        asked += [("warps_needed", "*memory", lane_bytes, more)]
        asked += [("bandwidth_fraction", warps, "*memory", lane_bytes, more)]
    return _as_inputs(asked, {"memory": memory})


def _bytes_of_unit(bandwidth: float, latency_s: float, units: int) -> Fraction:
    return Fraction(bandwidth) * Fraction(latency_s) / units


def _warps_needed(bandwidth: float, latency_s: float, units: int, lane_bytes: int, *, loads: int = 1) -> Answers:
    """Add warp after warp to every multiprocessor until enough bytes are in flight."""
    wanted, warps = _bytes_of_unit(bandwidth, latency_s, units), 0
    while warps * WARP * lane_bytes * loads < wanted:
        warps += 1
    mistakes = {
        "a part of a warp takes a whole one": warps - 1,
        "these are the warps of the whole device": int(-(-wanted * units // (WARP * lane_bytes * loads))),
        "these are threads": int(-(-wanted // (lane_bytes * loads))),
        "this is with one load at a time": int(-(-wanted // (WARP * lane_bytes))),
    }
    return {"{}": (warps, mistakes)}


def _bandwidth_fraction(
    warps: int, bandwidth: float, latency_s: float, units: int, lane_bytes: int, *, loads: int = 1
) -> Answers:
    wanted = _bytes_of_unit(bandwidth, latency_s, units)
    exact = Fraction(warps * WARP * lane_bytes * loads) / wanted
    whole = -(-wanted // (WARP * lane_bytes * loads))
    mistakes = {
        "this is a percentage": min(100.0, 100 * float(exact)),
        "no more than all of the bandwidth can be used": float(exact),
        "these are the bytes of one lane, not of a warp": min(1.0, float(exact / WARP)),
        "all multiprocessors have warps, not one": min(1.0, float(exact / units)),
        "divide by the warps needed before they are rounded up": min(1.0, warps / whole),
    }
    return {"{}": (min(1.0, float(exact)), mistakes)}


ORACLES: Mapping[str, Callable[..., Answers]] = {
    **{f"{operation}_work": _work(operation) for operation in OPERATIONS},
    "bound": _bound,
    "fit_overhead_and_bandwidth": _fit,
    "predict_s": _predict_s,
    "regime": _regime,
    "sectors_touched": _sectors_touched,
    "bank_passes": _bank_passes,
    "occupancy": _occupancy,
    "warps_needed": _warps_needed,
    "bandwidth_fraction": _bandwidth_fraction,
}
"""By function, its answers by label ({} is the call as code), each with what common mistakes give."""


# --- tasks 6 and 7: kernels -------------------------------------------------------------------------------------------

SECTOR_NUMBERS, ITEM = 8, 4
"""Numbers of 4 bytes in a sector; bytes of a number."""
LARGEST = float(np.finfo(np.float32).max)
EXTREME = -LARGEST, -0.0, 0.0, 1e-30, LARGEST
"""Numbers at which a maximum may be computed wrongly."""
TRIVIAL = 1.0, 0.0, -1.0
"""Factors of rows that a kernel could treat apart."""


def draw_mixed(rng: Rng, case: Case) -> Arrays:
    """Draw numbers from -1 to 1. `zeros`: many zeros at odd positions; `extreme`: numbers of any size at even ones."""
    n, terms = kernels.THREADS * case.params["blocks"], case.params["terms"]
    x = rng.uniform(-1, 1, n).astype(np.float32)
    if case.params.get("zeros"):
        x[1::2] *= rng.integers(0, 2, n // 2)
    if case.params.get("extreme"):
        x[::2] = rng.choice(EXTREME, n // 2)
    return {"x": x, "c": rng.standard_normal(terms).astype(np.float32)}


def expect_mixed(arrays: Arrays) -> Arrays:
    """The result, and what a launch may do at most."""
    x, c = arrays["x"].astype(np.float64), arrays["c"]
    y = np.where(np.arange(x.size) % 2, np.polyval(c, x), np.maximum(x, 0)).astype(np.float32)
    blocks, of_c = x.size // kernels.THREADS, x.size // 2 * c.size * ITEM
    most = allow_at_most(
        "mixed",
        reads={"x": x.size * ITEM, "c": of_c},
        writes={"y": x.size * ITEM},
        busiest=2 * kernels.THREADS * ITEM + of_c // blocks,
        widest=kernels.THREADS,
        programs=blocks,
    )
    return {
        "y": y,
        **most,
        **flatten({kernels.WARPS: {kernels.LANES: 0, kernels.EACH: c.size + 4, kernels.ELSEWHERE: 0}}),
    }


def draw_scaled(rng: Rng, case: Case) -> Arrays:
    """Draw a matrix and factors. `trivial`: factors of 1, 0 and -1 among them, and zeros in the matrix."""
    rows, columns = case.params["rows"], case.params["columns"]
    x, s = rng.standard_normal((rows, columns), np.float32), rng.standard_normal(rows, np.float32)
    if case.params.get("trivial"):
        s[: len(TRIVIAL)] = TRIVIAL[:rows]
        x *= rng.integers(0, 2, x.shape)
    return {"x": x, "s": s}


def expect_scaled(arrays: Arrays) -> Arrays:
    """The result, and what a launch may do at most."""
    x, s = arrays["x"], arrays["s"]
    rows, columns = x.shape
    most = allow_at_most(
        "scale_rows",
        reads={"x": x.nbytes, "s": rows * kernels.THREADS * ITEM},
        writes={"y": x.nbytes},
        busiest=(2 * columns + kernels.THREADS) * ITEM,
        widest=kernels.THREADS,
        programs=rows,
    )
    over = int(columns % SECTOR_NUMBERS > 0)  # rows that do not start at sectors
    turns = -(-columns // kernels.THREADS)
    requests = SPLIT * kernels.THREADS // WARP * (2 * turns + 1)
    warps = {kernels.SECTORS: over, kernels.EACH: 2 * turns + 1, kernels.REQUESTS: requests}
    return {"y": s[:, None] * x, **most, **flatten({kernels.WARPS: warps})}


def compare_warps(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Values, memory and traffic as in every traced check, then what warps do."""
    others = nest(expected)
    limits = others.pop(kernels.WARPS)
    if (mismatch := agree(got, flatten(others))) is not None:
        return mismatch
    warps = nest(got)[kernels.WARPS]
    for name, most in limits.items():
        if (count := int(warps[name]["count"])) > most:
            return _report(name, count, int(most), decode_text(warps[name]["at"]))
    return None


def _report(name: str, count: int, most: int, at: str) -> Mismatch:
    if name == kernels.LANES:
        return Mismatch("a warp diverges: some of its lanes wait for the others", at, "all 32 lanes in each request")
    if name == kernels.ELSEWHERE:
        expected = f"each block stores into its own {kernels.THREADS} elements"
        return Mismatch("a block stores into elements of another block", at, expected)
    if name == kernels.REQUESTS:
        return report_split(at, "global", count, most)
    return report_scattered(at, most) if name == kernels.SECTORS else report_not_shared(at, "global", count, most)
