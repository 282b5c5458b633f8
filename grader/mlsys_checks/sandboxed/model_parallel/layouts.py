"""How the checks of lab 09's layouts call the learner's code."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.repeated_calls import call_twice
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import describe_value, number, whole
from mlsys_lab.errors import InputError

SIZES = ("data", "tensor", "pipeline")


def _model_and_machine(artifact: Any, arrays: Arrays) -> tuple[Any, Any]:
    return artifact.Model(*arrays["model"].tolist()), artifact.Machine(*arrays["rates"].tolist(), int(arrays["node"]))


def step_parts(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `step_parts`: seconds by what they are spent on."""
    model, machine = _model_and_machine(artifact, arrays)
    layout = artifact.Layout(*arrays["layout"].tolist())
    got = call_twice("step_parts", partial(artifact.step_parts, model, machine, layout, int(arrays["batch"])))
    names = ("compute", "bubble", "link", "network")
    if not isinstance(got, dict) or set(got) != set(names):
        found = ", ".join(map(str, got)) if isinstance(got, dict) else type(got).__name__
        raise InputError("step_parts gives something else", got=found, expected=f"a dictionary of {', '.join(names)}")
    return {name: number(name, got[name]) for name in names}


def choose_layout(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `choose_layout`: data, tensor and pipeline, or zeros for None."""
    model, machine = _model_and_machine(artifact, arrays)
    got = artifact.choose_layout(model, machine, int(arrays["devices"]), int(arrays["batch"]))
    if got is None:
        return {name: np.array(0) for name in SIZES}
    if not isinstance(got, artifact.Layout):
        raise InputError("choose_layout gives no layout", got=describe_value(got), expected="a Layout, or None")
    return {name: whole(name, getattr(got, name)) for name in SIZES}
