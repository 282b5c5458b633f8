"""A tiny lab for tests: two checks on pure numpy, one of them with a private input and a hidden case."""

from __future__ import annotations

import fake_calls
import numpy as np

from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Lab
from mlsys_checks.trusted.compare import close


def _inputs(rng: np.random.Generator, case: Case) -> Arrays:
    x = rng.normal(size=case.params["n"])
    return {"x": x, "_shift": np.array(1.0)}


ADD_ONE = Check(
    name="add_one",
    title="Add one",
    points=3.0,
    cases=(Case("single", {"n": 1}), Case("many", {"n": 7}), Case("empty", {"n": 0}, hidden=True)),
    inputs=_inputs,
    run=fake_calls.add_one,
    expect=lambda arrays: {"y": arrays["x"] + arrays["_shift"]},
    compare=close,
    hint="`x + 1` <b>does</b> it",
    uses=("add_one",),
    time_limit_s=0.5,
    describe=lambda arrays: f"x = {arrays['x'].round(2).tolist()}, {', '.join(arrays)}",
)
TWICE = Check(
    name="twice",
    title="Twice",
    points=2.0,
    cases=(Case("small", {"n": 3}),),
    inputs=_inputs,
    run=fake_calls.twice,
    expect=lambda arrays: {"y": 2 * arrays["x"]},
    compare=close,
    hint="x + x",
    uses=("twice",),
    time_limit_s=0.5,
)
LAB = Lab("fake", (ADD_ONE, TWICE))
