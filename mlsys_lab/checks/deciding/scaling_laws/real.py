"""Task 7: a fit to real runs. Oracle: reweighted least squares from several starts, on runs that were really made."""

from __future__ import annotations

import numpy as np

from mlsys_lab.checks.deciding.scaling_laws.oracle import Truth, huber, refit, residuals
from mlsys_lab.checks.deciding.scaling_laws.words import describe_calls
from mlsys_lab.checks.learner import scaling_laws as calls
from mlsys_lab.checks.learner.spec import Arrays, Case, Check, Mismatch

RUNS = (
    (5672, 117440, 4.8031),
    (9660, 69120, 4.8101),
    (14416, 46272, 4.9095),
    (26232, 25344, 5.2832),
    (9660, 206976, 4.4390),
    (14416, 138624, 4.3609),
    (26232, 76288, 4.4640),
    (41120, 48576, 4.7307),
    (14416, 416000, 4.0864),
    (26232, 228864, 3.9765),
    (41120, 145920, 3.9979),
    (80112, 75008, 4.2147),
    (26232, 686400, 3.7919),
    (41120, 437760, 3.6429),
    (80112, 224896, 3.7189),
    (131392, 137088, 3.8724),
    (80112, 673920, 3.3525),
)
"""(N, D, validation loss) of the runs that task 7 makes: the plan of sixteen with seed 0, and the one held out.

Recorded on 2026-11-21 with torch 2.13.0 on two cores, on the 61,159 tokens of the book of that day.
"""
JITTER = 0.002
"""How far losses are moved in each draw, relative: other seeds would move them by more."""
NEAR = 0.003
"""By how much a prediction may differ from the oracle's: the least objective is reached, or it is not."""
STARTS = (
    Truth(3.0, 50.0, 300.0, 0.45, 0.45),
    Truth(2.5, 100.0, 100.0, 0.5, 0.35),
    Truth(3.5, 1e4, 700.0, 1.1, 0.6),
)


def _inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Some of the runs, in no order; one or two have no loss."""
    n_params, tokens, loss = np.array(RUNS)[rng.permutation(len(RUNS))].T
    loss = loss * np.exp(JITTER * rng.standard_normal(len(loss)))
    cheap = np.flatnonzero(n_params * tokens < np.sort(n_params * tokens)[len(RUNS) // 2])
    loss[rng.choice(cheap, case.params.get("failed", 0), replace=False)] = np.nan
    if case.params.get("last_failed"):
        loss[np.argmax(n_params * tokens)] = np.nan
    return {"n_params": n_params, "tokens": tokens, "loss": loss, "held_out": np.array(case.params["held_out"])}


def _expect(arrays: Arrays) -> Arrays:
    held_out = int(arrays["held_out"])
    runs = [row for row in zip(*(arrays[k] for k in ("n_params", "tokens", "loss")), strict=True) if row[2] == row[2]]
    runs.sort(key=lambda row: row[0] * row[1])
    known, (n_params, tokens, measured) = np.array(runs[:-held_out]).T, np.array(runs[-held_out:]).T
    law = min((refit(start, *known) for start in STARTS), key=lambda one: huber(residuals(one, *known)))
    return {"predicted": law.loss(n_params, tokens), "measured": measured}


def _compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    for name, off in (("measured", 1e-9), ("predicted", NEAR)):
        one, want = got[name], expected[name]
        if one.shape != want.shape:
            return Mismatch(f"`{name}` has the wrong shape", str(one.shape), str(want.shape))
        if not np.all(np.abs(one / want - 1) <= off):
            shown = (np.array2string(values, precision=4, separator=", ") for values in (one, want))
            return Mismatch(f"`{name}` is wrong", *shown)
    return None


CHECKS = (
    Check(
        name="backtest",
        title="Real runs: the costliest ones predicted from the others",
        points=8,
        cases=(
            Case("the most expensive run put aside", {"held_out": 1}),
            Case("four runs put aside", {"held_out": 4}),
            Case("two put aside, the costliest of all without a loss", {"held_out": 2, "last_failed": True}),
            Case("more runs without a loss", {"held_out": 3, "failed": 2, "last_failed": True}, hidden=True),
        ),
        inputs=_inputs,
        run=calls.backtest,
        expect=_expect,
        compare=_compare,
        hint="Leave out runs without a loss, sort the others by n_params · tokens, fit to all but the last `held_out`, "
        "and give back (law.loss at the last ones, their losses).",
        uses=("Law", "fit_law", "backtest"),
        describe=describe_calls("backtest(n_params, tokens, loss, {held_out})"),
        time_limit_s=60,
    ),
)
