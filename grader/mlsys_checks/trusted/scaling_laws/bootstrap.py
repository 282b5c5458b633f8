"""Task 4: the interval of what is fitted. Oracle: multinomial counts for the bootstrap, with what chance may do."""

from __future__ import annotations

import inspect
import math

import numpy as np

from mlsys_checks.sandboxed import scaling_laws as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.trusted.describe import describe_calls

MANY = 8_000
"""Resamples of the oracle."""
SIGMAS = 6.0
"""How far off chance may take a percentile, in its standard deviations: one interval end in a billion is further."""
TURN = "turn"
TURN_CODE = """\
turns = itertools.count()

def turn(*columns):
    return float(next(turns))
"""
"""The statistic that gives the number of its call, so that nothing is left to chance: all resamples lie in a row."""
STOPS_CODE = """\
def stops():
    try:
        {call}
    except ZeroDivisionError:
        return True
    return False
"""
"""Whether a mistake of the statistic's own comes out."""
RANKS_OFF = 2.0
"""How far off an end may be among them: percentiles are told by several rules, which differ by a rank."""


def _interval_inputs(rng: np.random.Generator, case: Case) -> Arrays:
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
    if statistic == "entries":
        arrays |= {"y": -x, "z": np.where(x > x.mean(), x, np.nan)} | dict.fromkeys(case.params.get("more", ""), x)
    if case.params.get("whole"):
        x = np.round(x - case.params.get("centred", False) * np.median(x))
    if statistic in ("picky", "flawed"):
        x = np.abs(x) + 1
        x[-1] = 0
    return {key: np.asarray(value) for key, value in arrays.items()} | {"x": x}


def _statistic_code(arrays: Arrays) -> list[str]:
    """The case's statistic, and a call of `bootstrap`, as code."""
    name = bytes(arrays["statistic"]).decode()
    code = TURN_CODE if name == TURN else inspect.getsource(calls.STATISTICS[name])
    columns = "".join(f'given["{column}"], ' for column in calls.COLUMNS if column in arrays)
    resamples, level, seed = (arrays[number].item() for number in ("resamples", "level", "seed"))
    call = f"bootstrap({name}, ({columns}), {resamples}, {level}, np.random.default_rng({seed}))"
    return [code, STOPS_CODE.format(call=call), "stops()"] if name == "flawed" else [code, call]


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


def _interval_expect(arrays: Arrays) -> Arrays:
    """Between which values each end must lie: percentiles somewhat below and above the one asked for."""
    level, resamples, bands = float(arrays["level"]), int(arrays["resamples"]), {}
    if bytes(arrays["statistic"]) == b"flawed":
        return {"stopped": np.array(True)}
    if bytes(arrays["statistic"]) == b"entries":
        entries = sum(len(arrays[name]) for name in calls.COLUMNS if name in arrays)
        return dict.fromkeys(("low", "high"), np.full(2, float(entries)))
    if bytes(arrays["statistic"]) == TURN.encode():
        ends = {"low": (1 - level) / 2 * resamples, "high": (1 + level) / 2 * resamples}
        return {name: np.array((end - RANKS_OFF, end + RANKS_OFF)) for name, end in ends.items()}
    samples = _samples(arrays)
    for name, p in (("low", (1 - level) / 2), ("high", (1 + level) / 2)):
        off = SIGMAS * math.sqrt(p * (1 - p) * (1 / resamples + 1 / MANY)) + 1 / resamples
        bands[name] = np.quantile(samples, np.clip((p - off, p + off), 0, 1))
    return bands


def _interval_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    if got.keys() != expected.keys():
        ends = ("an interval", "the statistic's ZeroDivisionError")
        return Mismatch("only a ValueError leaves a resample out", *(ends if "stopped" in expected else ends[::-1]))
    if "stopped" in expected:
        return None
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
            # At half of the level: what stands in for the third of the resamples that have none shows in the ends.
            Case("a statistic that some resamples do not have", {"statistic": "picky", "rows": 9, "level": 0.5}),
            Case("a median, which is 0 most often", {"statistic": "median", "rows": 31, "level": 0.8, "whole": True}),
            Case(
                "how many entries three columns have, some of them NaN",
                {"statistic": "entries", "rows": 8, "level": 0.8},
            ),
            Case("a statistic that divides by zero", {"statistic": "flawed", "rows": 9, "level": 0.8}),
            Case(
                "0, 1, 2, … for one resample after the other",
                {"statistic": TURN, "rows": 5, "level": 0.75, "resamples": 1500},
            ),
            Case(
                "likewise, and all of them", {"statistic": TURN, "rows": 6, "level": 1.0, "resamples": 900}, hidden=True
            ),
            Case(
                "a median of 0",
                {"statistic": "median", "rows": 33, "level": 0.6, "whole": True, "centred": True, "resamples": 1500},
                hidden=True,
            ),
            Case(
                "six columns",
                {"statistic": "entries", "more": "uvw", "rows": 7, "level": 0.6, "resamples": 90},
                hidden=True,
            ),
        ),
        inputs=_interval_inputs,
        run=calls.bootstrap,
        expect=_interval_expect,
        compare=_interval_compare,
        first_hint="What does one resample consist of, and what do you read off all of them?",
        hint="Draw as many row numbers as there are rows, with replacement, and take the same rows of every column. A "
        "ValueError leaves a resample out. A level of 0.8 lies between the 10th and the 90th percentile.",
        uses=("bootstrap",),
        describe=describe_calls(given=_statistic_code),
    ),
)
