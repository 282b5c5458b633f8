"""Checks of lab 02: names, points, hints, and the ranges from which cases are drawn.

generators   cases, oracles and limits, and a case as code. The two kernels are traced.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mlsys_checks.sandboxed import gpu_model as calls
from mlsys_checks.sandboxed.gpu_model import kernels
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Lab, Range, draw_cases
from mlsys_checks.trusted.answers import agree
from mlsys_checks.trusted.gpu_model import generators as draw
from mlsys_checks.trusted.repeats import repeat_first_case
from mlsys_checks.trusted.traced import describe_launch

BY_LSTSQ = 1e4
"""A fit may be off by 1e-5: digits are lost in equations whose columns differ by eight orders of magnitude."""


def _make_check(inputs: Callable[..., Arrays], cases: tuple[Case, ...], *, scale: float = 1.0, **parts: Any) -> Check:
    sides: dict[str, Any] = {"run": calls.run_calls, "expect": draw.expect_answers, "describe": draw.render_calls}
    sides["compare"] = draw.compare_warps if parts.get("traced") else partial(agree, scale=scale)
    return Check(inputs=inputs, cases=cases, **{**sides, **parts})


WORK: dict[str, Any] = {"operations": tuple(draw.OPERATIONS), "sizes": (1, 5)}
KINDS: dict[str, Any] = {"kinds": ("memory", "compute", "memory", "compute", "just memory", "just compute", "a copy")}
ALONE = (("compute",), ("memory",), ("overhead",))
TIES = (("compute", "memory"), ("memory", "overhead"), ("compute", "memory", "overhead"))
REGIME: dict[str, Any] = {"longest": ALONE, "fractions": (0.3, 0.4, 0.6, 0.9, 1.25, 3.0)}
MACHINE = {"samples": Range(1, 9), "warmup": Range(0, 5)}
FIT = {"points": Range(3, 17), "noise": 0.3}
SIDE_BY_SIDE, OFF, APART = (4, 0), (4, 4), (32, 0)
"""Patterns of a request: bytes from one lane to the next, and of the first lane behind a sector's start."""
ANYWHERE = ("random", "masked", "one lane", "random", "masked")
SECTORS: dict[str, Any] = {"function": "sectors_touched", "patterns": (*ANYWHERE, (24, 28))}
PASSES: dict[str, Any] = {"function": "bank_passes", "patterns": (*ANYWHERE, "crowd"), "width": 2}
ANY_LAUNCH = (Range(1, 1024, (32, 33)), Range(1, 255), Range(0, 120_000))
NO_SHARED = (Range(1, 1024, (40, 96)), Range(1, 255), 0)
LAUNCHES: dict[str, Any] = {
    "devices": ("H100", "RTX 3090", "RTX 4090"),
    "launches": (ANY_LAUNCH,) * 3 + (NO_SHARED,) * 3,
}
MIXED = {"blocks": Range(1, 3), "terms": Range(1, 9)}
ROWS = {"rows": Range(1, 4), "columns": Range(1, 300, (128, 129))}

CHECKS = (
    _make_check(
        draw.draw_work,
        (
            *(
                Case(name.replace("_", " "), {**WORK, "operations": (name,), "sizes": (2, 5)})
                for name in draw.OPERATIONS
            ),
            Case("counts beyond 64 bits", {**WORK, "sizes": (2001, 3999), "longer": 2**41 - 1}),
            *draw_cases(WORK, public=2, hidden=2, sizes=(1, 9000)),
        ),
        name="work",
        title="FLOPs and least bytes of operations",
        points=12,
        first_hint="For FLOPs, write a tally next to every sign of the operation's formula. For bytes, list the arrays "
        "that come in and go out, with their shapes.",
        hint="Go through the task's formulas one sign at a time: every +, −, ×, /, max, exp and root is one FLOP, and "
        "a sum of n numbers is n of them. Bytes: each array that comes in or goes out counts once, and what rows or "
        "heads share counts once for all of them. What stays on the chip does not count.",
        uses=("softmax_work", "layer_norm_work", "matmul_work", "decode_attention_work"),
    ),
    _make_check(
        draw.draw_bound,
        (
            Case("memory-bound", {"kinds": ("memory",) * 3}),
            Case("compute-bound", {"kinds": ("compute",) * 3}),
            Case("on the ridge", {"kinds": ("equal",) * 2}),
            *draw_cases(KINDS, public=2, hidden=2),
        ),
        name="bound",
        title="The roofline's bound, and what limits",
        points=6,
        first_hint="Work out by hand how long each of the device's two limits takes for this work alone.",
        hint="There are two times: FLOPs at the peak, bytes at the bandwidth. Both run at once, so the longer one "
        "counts. Its rate is FLOPs per second of that time, and the fraction is that rate over the peak.",
        uses=("Bound", "bound"),
    ),
    _make_check(
        draw.draw_machine,
        (
            Case("an odd number of samples", {"samples": 5, "warmup": 3}),
            Case("an even number of samples", {"samples": 8, "warmup": 4}),
            Case("two samples, no warm-up", {"samples": 2, "warmup": 0}),
            Case("a coarse clock", {"samples": len(draw.TICKS) + 3, "warmup": 9, "coarse": True}),
            *draw_cases(MACHINE, public=1, hidden=2, samples=Range(20, 51), warmup=Range(10, 40)),
        ),
        name="median_time",
        title="A timing loop",
        points=10,
        run=calls.run_measure,
        partner=draw.make_machine,
        expect=draw.expect_timing,
        describe=draw.render_machine,
        first_hint="If `p50_s` is wrong, look at `median_s`. If `samples_s` is, write down, turn by turn, what happens "
        "between two readings of the clock, and which turns count.",
        hint="Only the call happens between its two readings of the clock. Turns of the warm-up are like all others, "
        "and do not count because they come first, not because they are slow.",
        uses=("Timing", "median_s", "measure"),
    ),
    _make_check(
        draw.draw_fit,
        (
            Case("times on a line", {"points": 9, "noise": 0.0}),
            Case("disturbed times, and calls that move nothing", {"points": 13, "noise": 0.3, "empty": 2}),
            Case("times that rise faster than sizes", {"points": 9, "noise": 0.1, "low": 23, "bent": True}),
            *draw_cases(FIT, public=1, hidden=2, high=36),
        ),
        scale=BY_LSTSQ,
        name="fit",
        title="Overhead and bandwidth from times",
        points=8,
        first_hint="In which unit does the task count the error of a measurement: in seconds, or relative to the time?",
        hint="Each measurement is an equation p · o + q · (1 / β) = 1, which should hold as nearly as possible. What "
        "are p and q of a measurement? np.linalg.lstsq solves many such equations in the sense of least squares.",
        uses=("fit_overhead_and_bandwidth",),
    ),
    _make_check(
        draw.draw_regime,
        (
            Case("one time is the longest", {**REGIME, "fractions": (0.6, 0.75, 0.9)}),
            Case("two or three times are equal", {**REGIME, "longest": TIES, "fractions": (0.75,)}),
            Case("exactly half is explained", {**REGIME, "fractions": (0.5,)}),
            Case("hardly less than half is explained", {**REGIME, "fractions": (0.5 - draw.HARDLY,)}),
            Case("the other times are hardly shorter", {**REGIME, "close": True}),
            Case("faster than predicted", {**REGIME, "fractions": (1.25, 3.0)}),
            Case("a copy", {**REGIME, "longest": ALONE[1:], "copies": True}),
            Case("no overhead", {**REGIME, "longest": ALONE[:2], "machine": {"overhead_s": 0.0}}),
            *draw_cases(REGIME, public=1, hidden=2),
        ),
        name="regime",
        title="Which of three times limits",
        points=8,
        first_hint="Compute the three times of the machine by hand, next to the one that was measured.",
        hint="The machine's three numbers give three times in seconds. The longest is the prediction. It limits the "
        "call if it makes up at least half of the measured time. The fraction is returned in either case.",
        uses=("Machine", "predict_s", "regime"),
    ),
    _make_check(
        draw.draw_requests,
        (
            Case("side by side, and one number off", {**SECTORS, "patterns": (SIDE_BY_SIDE, OFF), "width": 4}),
            Case("from address 0", {**SECTORS, "patterns": (APART, (8, 0), (0, 0)), "width": 4, "start": 0}),
            Case("lanes that reach into the next sector", {**SECTORS, "patterns": ((64, 28), (48, 20)), "width": 16}),
            Case("one lane, and none", {**SECTORS, "patterns": ("one lane", "no lane")}),
            Case("far up in memory", {**SECTORS, "patterns": ("far", (2**28, 0))}),
            *draw_cases(SECTORS, public=3, hidden=2),
        ),
        name="sectors",
        title="Sectors of a warp's request",
        points=8,
        first_hint="Draw memory as a row of sectors, and mark what the first lanes of the failing request touch.",
        hint="Number the sectors from 0. In which one is the first byte of a lane, and in which one its last? Lanes "
        "that touch the same sector pay for it once.",
        uses=("sectors_touched",),
    ),
    _make_check(
        draw.draw_requests,
        (
            Case("side by side, and one word for all", {**PASSES, "patterns": (SIDE_BY_SIDE, (0, 8))}),
            Case("strides of words", {**PASSES, "patterns": ((8, 0), (12, 0), (64, 4), (128, 0), (132, 0), (4096, 0))}),
            Case("most lanes want one word", {**PASSES, "patterns": ("crowd", "crowd")}),
            Case("two lanes in a word", {**PASSES, "patterns": ((2, 0), (64, 2))}),
            Case("one lane, and none", {**PASSES, "patterns": ("one lane", "no lane")}),
            *draw_cases(PASSES, public=2, hidden=2),
        ),
        name="banks",
        title="Passes of a warp's request through the banks",
        points=8,
        first_hint="Write down the words that two lanes ask for, and the banks that these words are in.",
        hint="Which word is an address in, and which bank is that word in? All banks work at once. Each takes a pass "
        "for every *different* word that is asked of it, and without lanes there is no pass.",
        uses=("bank_passes",),
    ),
    _make_check(
        draw.draw_occupancy,
        (
            Case("slots for blocks and for warps", {**LAUNCHES, "launches": ((32, 16, 0), (256, 16, 0), (200, 16, 0))}),
            Case("registers", {**LAUNCHES, "launches": ((256, 128, 0), (1024, 40, 0), (96, 33, 0), (40, 64, 0))}),
            Case("shared memory, to the byte", {**LAUNCHES, "launches": ("exact", "exact", (128, 32, 13_500))}),
            Case("not one block fits", {**LAUNCHES, "launches": ((1024, 128, 0), (64, 32, 240_000))}),
            Case("a smaller multiprocessor", {**LAUNCHES, "devices": ("small",), "launches": (NO_SHARED,) * 4}),
            *draw_cases(LAUNCHES, public=2, hidden=2, launches=(ANY_LAUNCH, NO_SHARED) * 5),
        ),
        name="occupancy",
        title="Resident blocks and warps of a multiprocessor",
        points=10,
        first_hint="Fill one multiprocessor on paper: what does one block take of the resource that is wrong?",
        hint="Compute how many blocks each of the four resources allows; the smallest counts. What a block takes is "
        "rounded up, step by step as the table says. How often it fits is rounded down, for registers twice: warps "
        "into a quarter, then blocks.",
        uses=("Device", "Occupancy", "occupancy"),
    ),
    _make_check(
        draw.draw_flight,
        (
            Case("a device", {}),
            Case("exactly enough", {"exceeds": 0.0}),
            Case("half a byte more than that on each multiprocessor", {"exceeds": 2.0**-14}),
            *draw_cases({}, public=1, hidden=2, slow=True),
        ),
        name="in_flight",
        title="Warps that keep the memory busy",
        points=6,
        first_hint="Little's law: how many bytes must be in flight on the whole device, and how many on one SM?",
        hint="Divide the bytes in flight among the multiprocessors. How many bytes does one warp have in flight, with "
        "all its lanes and loads? The first function asks how many warps suffice, the second how far some warps get.",
        uses=("warps_needed", "bandwidth_fraction"),
    ),
    _make_check(
        draw.draw_mixed,
        (
            Case("one block", {"blocks": 1, "terms": 5}),
            Case("two blocks", {"blocks": 2, "terms": 3}),
            Case("many terms, and zeros at odd positions", {"blocks": 1, "terms": 17, "zeros": True}),
            Case("the largest numbers at even positions", {"blocks": 1, "terms": 3, "extreme": True}),
            *draw_cases(MIXED, public=1, hidden=2),
        ),
        name="mixed",
        title="A branch between warps",
        points=12,
        run=kernels.run_mixed,
        expect=draw.expect_mixed,
        describe=describe_launch(
            "mixed", "THREADS", lambda arrays: arrays["x"].size // kernels.THREADS, "y", "x.size", zeros_matter=True
        ),
        first_hint="Which 32 lanes are a warp, and do all of them go the same way at your `if`?",
        hint="Branch on something that is the same for all lanes of a warp, such as the number of the warp. Then "
        "choose the elements to suit: which of them are of the kind that this warp computes?",
        uses=("mixed",),
        traced=True,
    ),
    _make_check(
        draw.draw_scaled,
        (
            Case("a row of as many numbers as threads", {"rows": 2, "columns": 128}),
            Case("longer rows", {"rows": 2, "columns": 512}),
            Case("more rows than columns", {"rows": 7, "columns": 5}),
            Case("a long row", {"rows": 1, "columns": 4 * 1024 + 129}),
            Case("factors of 1, 0 and -1, and zeros", {"rows": 3, "columns": 333, "trivial": True}),
            *draw_cases(ROWS, public=1, hidden=2),
        ),
        name="scale_rows",
        title="Rows read side by side",
        points=12,
        run=kernels.run_scale_rows,
        expect=draw.expect_scaled,
        describe=describe_launch(
            "scale_rows", "THREADS", lambda arrays: len(arrays["x"]), "y", "x.shape", zeros_matter=True
        ),
        first_hint="Write down the columns that lanes 0, 1 and 2 of a warp load in one turn of the loop, and then in "
        "the next.",
        hint="In each turn the threads of the block take neighbouring columns. How far is it then from one column of a "
        "thread to its next? What depends only on the row is loaded before the loop.",
        uses=("scale_rows",),
        traced=True,
    ),
)
LAB = Lab("gpu-model", repeat_first_case(CHECKS))
