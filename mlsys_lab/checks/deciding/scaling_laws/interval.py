"""Task 4: the bootstrap. Oracle: resampling as multinomial counts, many more of them, and what chance may do."""

from __future__ import annotations

import math

import numpy as np

from mlsys_lab.checks.learner import scaling_laws as calls
from mlsys_lab.checks.learner.spec import Arrays, Case, Check, Mismatch

MANY = 8_000
"""Resamples of the oracle."""
SIGMAS = 6.0
"""How far off chance may take a percentile, in its standard deviations: one interval end in a billion is further."""


def _inputs(rng: np.random.Generator, case: Case) -> Arrays:
    rows, statistic = case.params["rows"], case.params["statistic"]
    x = rng.standard_normal(rows) + (rng.standard_exponential(rows) if statistic == "mean" else 0)
    arrays = {
        "statistic": np.frombuffer(statistic.encode(), dtype=np.uint8).copy(),
        "resamples": np.array(case.params.get("resamples", 2000)),
        "level": np.array(case.params["level"]),
        "seed": rng.integers(2**31),
    }
    if statistic == "slope":
        arrays["y"] = 2 * x + 0.5 * rng.standard_normal(rows)
    if statistic == "picky":
        x = np.abs(x) + 1
        x[-1] = 0
    return {key: np.asarray(value) for key, value in arrays.items()} | {"x": x}


def _samples(arrays: Arrays) -> np.ndarray:
    """The statistic over many resamples: how often each row is drawn is multinomial."""
    x = arrays["x"]
    rows = len(x)
    counts = np.random.default_rng(int(arrays["seed"]) + 1).multinomial(rows, np.full(rows, 1 / rows), MANY)
    means = counts @ x / rows
    match bytes(arrays["statistic"]).decode():
        case "picky":
            return np.asarray(means[counts[:, x == 0].sum(axis=1) > 0])
        case "median":  # the first place where half of the rows are counted
            order = np.argsort(x)
            middle = (np.cumsum(counts[:, order], axis=1) > rows // 2).argmax(axis=1)
            return np.asarray(x[order][middle])
        case "slope":
            y = arrays["y"]
            by_x = counts @ (x * y) / rows - means * (counts @ y / rows)
            return np.asarray(by_x / (counts @ x**2 / rows - means**2))
    return np.asarray(means)


def _expect(arrays: Arrays) -> Arrays:
    """Between which values each end must lie: percentiles somewhat below and above the one asked for."""
    samples, level, resamples = _samples(arrays), float(arrays["level"]), int(arrays["resamples"])
    bands = {}
    for name, p in (("low", (1 - level) / 2), ("high", (1 + level) / 2)):
        off = SIGMAS * math.sqrt(p * (1 - p) * (1 / resamples + 1 / MANY)) + 1 / resamples
        bands[name] = np.quantile(samples, np.clip((p - off, p + off), 0, 1))
    return bands


def _compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    for name, (least, most) in expected.items():
        end = float(got[name])
        slack = 1e-9 * (abs(least) + abs(most))
        if not least - slack <= end <= most + slack:
            return Mismatch(f"the interval's {name} end is off", f"{end:.5g}", f"{least:.5g} to {most:.5g}")
    return None


CHECKS = (
    Check(
        name="bootstrap",
        title="An interval from the runs alone",
        points=7,
        cases=(
            Case("a mean", {"statistic": "mean", "rows": 20, "level": 0.9}),
            Case("a slope: rows stay whole", {"statistic": "slope", "rows": 25, "level": 0.8}),
            Case("a statistic that some resamples do not have", {"statistic": "picky", "rows": 9, "level": 0.9}),
            Case("a median", {"statistic": "median", "rows": 31, "level": 0.8}),
            Case("another level", {"statistic": "mean", "rows": 12, "level": 0.5, "resamples": 1500}, hidden=True),
        ),
        inputs=_inputs,
        run=calls.bootstrap,
        expect=_expect,
        compare=_compare,
        hint="Draw as many row numbers as there are rows, with replacement, and take the same rows of every column. A "
        "ValueError leaves a resample out. A level of 0.8 lies between the 10th and the 90th percentile.",
        uses=("bootstrap",),
        describe=lambda arrays: (
            f"bootstrap(statistic, columns of {len(arrays['x'])} rows, {arrays['resamples']}, {arrays['level']}, rng)"
        ),
    ),
)
