"""Calls of tasks 3 and 4: arrays. Every gradient starts from a given array, so that no task leans on a later one."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from mlsys_checks.sandboxed.autograd.engine import (
    AGAIN,
    by_column,
    count_products,
    go_back,
    inputs_of,
    refuse_recorded,
    refuse_ring,
)
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.storage import storage_only
from mlsys_checks.sandboxed.values import array

FAR = {"float16": (8.0, 1e-3, 5e4), "float32": (70.0, 1e-32, 2.5e38), "float64": (300.0, 1e-200, 1.25e308)}
"""Numbers far out by dtype: one whose exp has room for a gradient, a small one, and almost the largest."""
FLOPS = "FLOPs of the backward pass"
NO_LOG = "log of 0 is −∞, and of −1 NaN"


def expressions(dtype: np.dtype) -> dict[str, Callable[[Any, Any], Any]]:
    """Expressions of x and y by name, with constants that come near to what a dtype holds."""
    far, small, large = FAR[dtype.name]
    return {
        "x * y": lambda x, y: x * y,
        "(x * x).exp()": lambda x, y: (x * x * 0.5).exp(),
        f"((x * x + 1) * {small:g}).log()": lambda x, y: ((x * x + 1.0) * small).log(),
        f"(x * 0 + {far:g}).exp()": lambda x, y: (x * 0.0 + far).exp(),
        f"(x - {far:g}).exp()": lambda x, y: (x - far).exp(),
        "x.tanh()": lambda x, y: x.tanh(),
        "(x * 4000).tanh()": lambda x, y: (x * 4000.0).tanh(),
        "x.relu()": lambda x, y: x.relu(),
        f"(x.tanh() * {large:g}).relu() * {10 / large:g}": lambda x, y: (x.tanh() * large).relu() * (10 / large),
        "z.relu() + z.exp() + z.tanh(), z = x * 0 - inf": lambda x, y: _at_infinity(x * 0.0 - math.inf),
        # Sums hand one array on to both operands, `permute` a view of it: whoever adds to it in place spoils another's.
        "(x + y) + y * y": lambda x, y: (x + y) + y * y,
        "y * y + (x + y)": lambda x, y: y * y + (x + y),
        "x.permute(0, …) + x * y": lambda x, y: permute(x) + x * y,
        "x * y + x.permute(0, …)": lambda x, y: x * y + permute(x),
    }


def _at_infinity(z: Any) -> Any:
    return z.relu() + z.exp() + z.tanh()


def permute(x: Any) -> Any:
    """The axes of x in the order that they have: an operation whose gradient is a view of the one that arrives."""
    return x.permute(*range(x.ndim)) if x.ndim else x


@storage_only
def unbroadcast(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `unbroadcast`: a gradient, summed down to a shape."""
    shape = tuple(arrays["shape"].tolist())
    return {"result": array("the result", artifact.unbroadcast(torch.from_numpy(arrays["grad"]), shape))}


@storage_only
def elementwise(artifact: Any, arrays: Arrays) -> Arrays:
    """Each expression and the gradients of its inputs, and that of x after a second pass with twice the gradient."""
    got = {}
    for name, f in expressions(arrays["x"].dtype).items():
        x, y = inputs_of(artifact, arrays, "x", "y")
        result = f(x, y)
        g = by_column(arrays["g2" if "y" in name else "g1"])
        go_back(artifact, result, g)
        got[name] = array(name, result)
        got[f"x.grad of {name}"] = array(f"x.grad of {name}", x.grad)
        if "y" in name:
            got[f"y.grad of {name}"] = array(f"y.grad of {name}", y.grad)
        go_back(artifact, result, 2 * g)
        again = f"x.grad of {name} {AGAIN}"
        got[again] = array(again, x.grad)
        refuse_ring(name, partial(f, x, y))
        refuse_recorded(artifact, name, partial(f, x, y))
    with np.errstate(all="ignore"):
        logs = artifact.Tensor(torch.tensor([0.0, -1.0])).log().data
    return got | {NO_LOG: np.array(bool(logs[0] == -math.inf and logs[1].isnan()))}


@storage_only
def matmul(artifact: Any, arrays: Arrays) -> Arrays:
    """A product of matrices, the FLOPs of a backward pass, and both gradients after it and after a second one."""
    x, y = inputs_of(artifact, arrays, "x", "y")
    result, g = x @ y, by_column(arrays["g"])
    with count_products() as products:
        go_back(artifact, result, g)
    got = {"x @ y": array("x @ y", result), "x.grad": array("x.grad", x.grad), "y.grad": array("y.grad", y.grad)}
    go_back(artifact, result, 2 * g)
    got |= {f"{name} {AGAIN}": array(f"{name} {AGAIN}", of.grad) for name, of in (("x.grad", x), ("y.grad", y))}
    refuse_ring("x @ y", lambda: x @ y)
    refuse_recorded(artifact, "x @ y", lambda: x @ y)
    return got | {FLOPS: np.array(products.flops)}
