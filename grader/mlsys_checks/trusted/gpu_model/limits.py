"""Tasks 1b and 3: which limit binds, of two and of three. Oracle: fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from mlsys_checks.sandboxed.gpu_model import timing, work
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.sandboxed.values import encode_text, write_number
from mlsys_checks.trusted.answers import agree, likely
from mlsys_lab.hardware import device

DEVICES = (("H100", "bf16"), ("H100", "fp32"), ("A100 80GB", "fp16"), ("RTX 4090", "fp16"), ("T4", "fp16"))
HIDDEN_DEVICES = (("H200", "fp8"), ("RTX 3090", "fp32"), ("A100 80GB", "bf16"))
HARDLY = 2.0**-36
"""By so much times differ that are nearly equal: a hundred thousand times as much as a division rounds away."""
NEAR = {"just left": 1 - HARDLY, "just right": 1 + HARDLY, "a copy": 0.0}
"""Intensities as parts of the ridge's, of cases in which it is not drawn."""
LEAST_SHARE = 0.5
FACTOR = 1024.0
"""By so much one number is changed where one is at a time: enough for another answer, whatever binds."""


def _with_each_changed(row: list[float], factors: tuple[float, ...]) -> list[list[float]]:
    """A row, and it with one number after the other changed by its factor."""
    return [row, *([*row[:i], row[i] * factor, *row[i + 1 :]] for i, factor in enumerate(factors))]


def _bound_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Pieces of work on rows of the device table: left or right of the ridge, in three digits; upon it; or `NEAR`.

    Where a case says so, each is followed by itself with one number after the other divided by `FACTOR`.
    """
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
        row = [flops, size, peak, bandwidth]
        rows += _with_each_changed(row, (1 / FACTOR,) * 4) if case.params.get("changed") else [row]
    return {"works": np.array(rows)}


def _bound_expect(arrays: Arrays) -> Arrays:
    expected = {}
    for row in arrays["works"].tolist():
        flops, size, peak, bandwidth = map(Fraction, row)
        compute_s, memory_s, name = flops / peak, size / bandwidth, work.bound_call(row)
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
    return "\n".join(map(work.bound_call, arrays["works"].tolist()))


def _regime_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Works of which `binds` is the longest time, or two are equal; measured at so much of the share asked for.

    Each is asked on every machine: one that is drawn, and it with another overhead, or with each number changed.
    """
    peak, bandwidth, overhead = (
        2.0 ** int(rng.integers(30, 48)),
        2.0 ** int(rng.integers(28, 41)),
        2.0 ** -int(rng.integers(16, 22)),
    )
    machines, works = [[peak, bandwidth, overhead * times] for times in case.params.get("overheads", (1.0,))], []
    for longest in case.params["binds"]:
        units = {"compute": 0.25, "memory": 0.375, "overhead": 1.0}
        if "overhead" not in longest:
            units = {name: 2.0 ** int(rng.integers(0, 3)) for name in units} | {"overhead": 1.0}
            top = 2.0 ** int(rng.integers(4, 9))
            units |= dict.fromkeys(longest, top)
        elif len(longest) > 1:
            units |= dict.fromkeys(longest, 1.0)
        if case.params.get("close"):  # the others are hardly shorter
            (first,) = longest
            units = {name: 1 + HARDLY * ((name == first) - (first == "overhead")) for name in units}
        if case.params.get("copies"):
            units["compute"] = 0.0
        share = case.params.get("share") or float(rng.integers(9, 16)) / 16
        time_s = max(units.values()) * overhead / share
        works.append([time_s, units["compute"] * overhead * peak, units["memory"] * overhead * bandwidth])
    if case.params.get("changed"):
        machines = _with_each_changed(machines[0], (1 / FACTOR, 1 / FACTOR, FACTOR))
        works = [row for work in works for row in _with_each_changed(work, (FACTOR,) * 3)]
    return {"machines": np.array(machines), "works": np.array(works)}


def _regime_expect(arrays: Arrays) -> Arrays:
    expected = {}
    for (peak, bandwidth, overhead), machine in timing.machines(arrays):
        for time_s, flops, size in arrays["works"].tolist():
            parts = {
                "compute": Fraction(flops) / Fraction(peak),
                "memory": Fraction(size) / Fraction(bandwidth),
                "overhead": Fraction(overhead),
            }
            longest = sorted(parts, key=lambda name: -parts[name])[0]
            share = parts[longest] / Fraction(time_s)
            least, name = timing.predict_call(flops, size, machine), timing.regime_call(time_s, flops, size, machine)
            expected[least] = np.array(float(parts[longest]))
            expected |= likely(least, {"the three times were added": float(sum(parts.values()))})
            explained = share >= Fraction(LEAST_SHARE)
            expected[f"what binds, from {name}"] = encode_text(longest if explained else "unexplained")
            expected[f"share from {name}"] = np.array(float(share))
            expected |= likely(f"share from {name}", {"this is one over the share": float(1 / share)})
    return expected


def _regime_shown(arrays: Arrays) -> str:
    made, said = [], []
    for numbers, machine in timing.machines(arrays):
        made.append(f"{machine} = Machine({', '.join(map(write_number, numbers))})")
        for time_s, flops, size in arrays["works"].tolist():
            said += [timing.predict_call(flops, size, machine), timing.regime_call(time_s, flops, size, machine)]
    return "\n".join(made + said)


ALONE = (("compute",), ("memory",), ("overhead",))
BOUND = Check(
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
        Case(
            "short of bytes, and one number changed at a time",
            {"side": "left", "devices": HIDDEN_DEVICES, "changed": True},
            hidden=True,
        ),
        Case(
            "short of FLOPs, and one number changed at a time",
            {"side": "right", "devices": HIDDEN_DEVICES, "changed": True},
            hidden=True,
        ),
    ),
    inputs=_bound_inputs,
    run=work.bound,
    describe=_bound_shown,
    expect=_bound_expect,
    compare=agree,
    first_hint="Put the device's two limits on paper: how long does each take for this work alone?",
    hint="Two times: FLOPs at the peak, bytes at the bandwidth. Both go on at once, so the work takes as long as "
    "one of them, not as both. What does the task say where they are equal?",
    uses=("bound",),
)
REGIME = Check(
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
        Case("hardly half of the time is explained", {"binds": ALONE, "share": LEAST_SHARE - HARDLY}),
        Case("the others are hardly shorter", {"binds": ALONE, "close": True}),
        Case("faster than the model says", {"binds": ALONE, "share": 1.25}),
        Case("three times as fast as the model says", {"binds": ALONE, "share": 3.0}),
        Case(
            "copies, also with no overhead and with one below 0",
            {"binds": (("memory",), ("overhead",)), "copies": True, "overheads": (1.0, 0.0, -FACTOR)},
        ),
        Case("any work", {"binds": ALONE[::-1]}, hidden=True),
        Case("one number changed at a time", {"binds": (("compute",),), "changed": True}, hidden=True),
    ),
    inputs=_regime_inputs,
    run=timing.regime,
    describe=_regime_shown,
    expect=_regime_expect,
    compare=agree,
    first_hint="Three numbers of the machine, three times: write them beside the one that was measured.",
    hint="The machine's three numbers give three times in seconds; the longest is predicted, and binds if it makes "
    "at least half of the time that was measured. The share is told whatever binds.",
    uses=("Machine", "predict_s", "regime"),
)
