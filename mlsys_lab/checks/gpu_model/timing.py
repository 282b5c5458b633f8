"""Tasks 2 and 3: a timing loop, a fit, what binds. Oracles: made-up times, a solver for squares, fractions."""

from __future__ import annotations

import statistics
from fractions import Fraction
from functools import partial

import numpy as np
from scipy.optimize import least_squares

from mlsys_lab.checks.gpu_model.calls import timing as calls
from mlsys_lab.checks.gpu_model.calls.common import text
from mlsys_lab.checks.gpu_model.words import agree, likely
from mlsys_lab.checks.spec import Arrays, Case, Check

BY_SOLVER = 1e4
"""A fit may be off by 1e-5: digits are lost in equations whose columns differ by eight orders of magnitude."""
LEAST_SHARE = 0.5


def _median_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Calls that are slow at first; of the others a few were disturbed. Times in whole steps of 2⁻³⁰ s: exact sums."""
    samples, warmup = case.params["samples"], case.params["warmup"]
    calls_s = rng.integers(1000, 1400, warmup + samples).astype(float)
    calls_s[:warmup] *= 40
    disturbed = warmup + rng.permutation(samples)[: samples // 4]
    calls_s[disturbed] *= 10
    return {
        "samples": np.array(samples),
        "warmup": np.array(warmup),
        "start_s": np.array(float(rng.integers(1, 1000))),
        "make_s": np.array(5000 * 2.0**-30),
        "calls_s": calls_s * 2.0**-30,
    }


def _median_expect(arrays: Arrays) -> Arrays:
    warmup, times = int(arrays["warmup"]), arrays["calls_s"].tolist()
    kept, made, name = times[warmup:], float(arrays["make_s"]), calls.median_call(len(times) - warmup, warmup)
    right = statistics.median(kept)
    return {name: np.array(right)} | likely(
        name,
        {
            "this is the mean": statistics.mean(kept),
            "this is the least": min(kept),
            "this is all samples together": sum(kept),
            "the making of inputs was timed too": right + made,
            "warm-up is among the samples": statistics.median(times),
            "an input was used again": right * calls.STALE,
            "of an even number take the mean of the middle two": sorted(kept)[len(kept) // 2],
        },
    )


def _median_shown(arrays: Arrays) -> str:
    times = ", ".join(f"{1e6 * time_s:.3f}" for time_s in arrays["calls_s"])
    return (
        f"{calls.median_call(int(arrays['samples']), int(arrays['warmup']))}\n"
        f"# make() takes {1e6 * float(arrays['make_s']):.3f} µs; the calls, one after the other, take so many µs:\n"
        f"# {times}\n# and an eighth of that for an input that was there before"
    )


def _fit_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    sizes = np.sort(2.0 ** rng.integers(4, 28, case.params["points"]))
    sizes[0], sizes[-1] = 16, 2.0**27
    exact = rng.uniform(1e-6, 9e-6) + sizes / rng.uniform(5e9, 3e12)
    return {"sizes_bytes": sizes, "times_s": exact * (1 + rng.uniform(0, case.params["noise"], sizes.size))}


def _fit_expect(arrays: Arrays) -> Arrays:
    """The least of the sum of squares by a solver that walks there, in units in which both unknowns are about 1."""
    sizes, times = arrays["sizes_bytes"], arrays["times_s"]
    small, slope = times.min(), times.max() / sizes.max()
    off = least_squares(
        lambda one: (one[0] * small + one[1] * slope * sizes) / times - 1,
        (1.0, 1.0),
        xtol=1e-15,
        ftol=1e-15,
        gtol=1e-15,
    )
    plain_slope, plain = np.polyfit(sizes, times, 1)
    overhead, bandwidth = calls.OVERHEAD, calls.BANDWIDTH
    said = "here errors count in seconds, not relative to the time"
    return (
        {overhead: np.array(off.x[0] * small), bandwidth: np.array(1 / (off.x[1] * slope))}
        | likely(overhead, {said: plain})
        | likely(bandwidth, {said: 1 / plain_slope, "this is seconds per byte": off.x[1] * slope})
    )


def _fit_shown(arrays: Arrays) -> str:
    lists = {name: np.array2string(arrays[name], separator=", ", max_line_width=90, precision=9) for name in arrays}
    made = [f"{name} = np.array({values})" for name, values in lists.items()]
    return "\n".join([*made, calls.FIT])


def _regime_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Works of which `binds` is the longest time, or two are equal; measured at so much of the share asked for."""
    peak, bandwidth, overhead = (
        2.0 ** rng.integers(30, 48),
        2.0 ** rng.integers(28, 41),
        2.0 ** -int(rng.integers(16, 22)),
    )
    works = []
    for longest in case.params["binds"]:
        units = {"compute": 0.25, "memory": 0.375, "overhead": 1.0}
        if "overhead" not in longest:
            units = {name: 2.0 ** int(rng.integers(0, 3)) for name in units} | {"overhead": 1.0}
            top = 2.0 ** int(rng.integers(4, 9))
            units |= dict.fromkeys(longest, top)
        elif len(longest) > 1:
            units |= dict.fromkeys(longest, 1.0)
        share = case.params.get("share") or float(rng.integers(9, 16)) / 16
        time_s = max(units.values()) * overhead / share
        works.append([time_s, units["compute"] * overhead * peak, units["memory"] * overhead * bandwidth])
    return {"machine": np.array([peak, bandwidth, overhead]), "works": np.array(works)}


def _regime_expect(arrays: Arrays) -> Arrays:
    peak, bandwidth, overhead = map(Fraction, arrays["machine"].tolist())
    expected = {}
    for row in arrays["works"].tolist():
        time_s, flops, size = map(Fraction, row)
        parts = {"compute": flops / peak, "memory": size / bandwidth, "overhead": overhead}
        longest = sorted(parts, key=lambda name: -parts[name])[0]
        share = parts[longest] / time_s
        given = f"{row[1]:g}, {row[2]:g}, machine)"
        least, name = f"predict_s({given}", f"regime({row[0]:g}, {given}"
        expected[least] = np.array(float(parts[longest]))
        expected |= likely(least, {"the three times were added": float(sum(parts.values()))})
        expected[f"what binds, from {name}"] = text(longest if share >= Fraction(LEAST_SHARE) else "unexplained")
        expected[f"share from {name}"] = np.array(float(share))
        expected |= likely(f"share from {name}", {"this is one over the share": float(1 / share)})
    return expected


def _regime_shown(arrays: Arrays) -> str:
    machine = ", ".join(f"{value:.17g}" for value in arrays["machine"])
    rows = [", ".join(f"{value:.17g}" for value in row) for row in arrays["works"]]
    return "\n".join([f"machine = Machine({machine})", *(f"regime({row}, machine)" for row in rows)])


ALONE = (("compute",), ("memory",), ("overhead",))
CHECKS = (
    Check(
        name="median_time",
        title="A timing loop",
        points=10,
        cases=(
            Case("an odd number of samples", {"samples": 5, "warmup": 2}),
            Case("an even number of samples", {"samples": 8, "warmup": 3}),
            Case("no warm-up", {"samples": 4, "warmup": 0}),
            Case("more samples", {"samples": 11, "warmup": 4}, hidden=True),
            Case("one sample", {"samples": 1, "warmup": 1}, hidden=True),
        ),
        inputs=_median_inputs,
        run=calls.median,
        describe=_median_shown,
        expect=_median_expect,
        compare=agree,
        hint="For each call, also of the warm-up: make an input, read the clock, call, read the clock again. Keep the "
        "differences of the calls after the warm-up only, and take their median.",
        uses=("median_time_s",),
    ),
    Check(
        name="fit",
        title="Overhead and bandwidth from times",
        points=8,
        cases=(
            Case("times on a line", {"points": 9, "noise": 0.0}),
            Case("disturbed times", {"points": 13, "noise": 0.3}),
            Case("others", {"points": 17, "noise": 0.5}, hidden=True),
        ),
        inputs=_fit_inputs,
        run=calls.fit,
        describe=_fit_shown,
        expect=_fit_expect,
        compare=partial(agree, scale=BY_SOLVER),
        hint="Divide the equation overhead + bytes · (1 / bandwidth) = time by the time: two columns, 1/t and bytes/t, "
        "and ones on the right. np.linalg.lstsq gives the two unknowns; the second is 1 / bandwidth.",
        uses=("fit_overhead_and_bandwidth",),
    ),
    Check(
        name="regime",
        title="Which of three binds",
        points=8,
        cases=(
            Case("one of three", {"binds": ALONE}),
            Case(
                "two or three are equal",
                {"binds": (("compute", "memory"), ("memory", "overhead"), ("compute", "memory", "overhead"))},
            ),
            Case("half of the time is explained", {"binds": ALONE, "share": 0.5}),
            Case("most of the time is not explained", {"binds": ALONE, "share": 0.4375}),
            Case("any work", {"binds": ALONE[::-1]}, hidden=True),
        ),
        inputs=_regime_inputs,
        run=calls.regime,
        describe=_regime_shown,
        expect=_regime_expect,
        compare=agree,
        hint="Three times: FLOPs over peak, bytes over bandwidth, the overhead. The longest is predicted, and binds if "
        "it makes at least half of the time that was measured; of equal ones the first in that order.",
        uses=("Machine", "predict_s", "regime"),
    ),
)
