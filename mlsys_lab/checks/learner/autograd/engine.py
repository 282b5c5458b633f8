"""How lab 01 meets the learner's engine: arrays as inputs, and an operation that only an engine can go back through."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch

from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.errors import InputError

SCALE = 8.0
"""By how much `scale_gradient` multiplies; a power of two, so that dividing by it again changes no digit."""


def scale_gradient(result: Any) -> Any:
    """The learner's tensor as it is, through an operation of ours whose vjp multiplies by `SCALE`.

    No derivative is so: who walks the engine's edges meets it, and who has another library differentiate does not.
    """
    edge = (result, lambda grad: grad * SCALE)
    return type(result)(result.data, requires_grad=result.requires_grad, edges=(edge,), op="scale_gradient")


def inputs_of(artifact: Any, arrays: Arrays, *names: str) -> list[Any]:
    """The named arrays as inputs of the learner's engine that want a gradient."""
    return [artifact.Tensor(torch.from_numpy(arrays[name]), requires_grad=True) for name in names]


def refuse_ring(name: str, make: Callable[[], Any]) -> None:
    """Raise `InputError` where the tensor `make` gives stays in memory when nobody holds it: a vjp of its own does."""
    collects = gc.isenabled()
    gc.disable()
    try:
        alive = weakref.ref(make())() is not None
    finally:
        if collects:
            gc.enable()
    if alive:
        expected = "arrays of the forward pass only, such as `value` where `out.data` is `value` (Task 1: a ring)"
        raise InputError(
            f"a vjp of {name} holds the node that it belongs to", got="a node that is not freed", expected=expected
        )
