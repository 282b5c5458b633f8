"""Calls of tasks 5 and 6: moving numbers about, and the loss."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from mlsys_checks.sandboxed.autograd.engine import (
    AGAIN,
    by_column,
    go_back,
    inputs_of,
    refuse_recorded,
    refuse_ring,
)
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.storage import storage_only
from mlsys_checks.sandboxed.values import array

KEYS: dict[str, Callable[[torch.Tensor], Any]] = {
    "x[2]": lambda rows: 2,
    "x[1:4]": lambda rows: slice(1, 4),
    "x[:, -1]": lambda rows: (slice(None), -1),
    "x[rows]": lambda rows: rows,
    "x[rows, 0]": lambda rows: (rows, 0),
    "x[arange, rows % 3]": lambda rows: (torch.arange(len(rows)) % 5, rows % 3),
    "x[mask]": lambda rows: torch.arange(5) % 2 == 0,
    "x[list]": lambda rows: rows.tolist(),
    "x[None, list, -1]": lambda rows: (None, rows.tolist(), -1),
}
LONG: dict[str, Callable[[torch.Tensor], Any]] = {
    "x[None, :, None, rows % 3, None]": lambda rows: (None, slice(None), None, rows % 3, None)
}
TURNED = "reshape between transposes"
LOSS_GRADS = ("logits.grad", f"logits.grad {AGAIN}")


def axis_of(arrays: Arrays) -> int | tuple[int, ...] | None:
    """The `axis` argument that the arrays stand for."""
    axes = tuple(arrays["axes"].tolist())
    return axes if arrays["is_tuple"] else axes[0] if axes else None


def keys_of(arrays: Arrays) -> dict[str, Any]:
    """The keys by name, one of five parts among them where the arrays ask for a `long` one."""
    rows = torch.from_numpy(arrays["rows"])
    return {name: key(rows) for name, key in (KEYS | LONG if arrays["long"] else KEYS).items()}


@storage_only
def sums(artifact: Any, arrays: Arrays) -> Arrays:
    """sum, mean and reshape, and the gradients of their input."""
    axis, keepdims, got = axis_of(arrays), bool(arrays["keepdims"]), {}
    for name in ("sum", "mean"):
        (x,) = inputs_of(artifact, arrays, "x")
        result = getattr(x, name)(axis=axis, keepdims=keepdims)
        go_back(artifact, result, by_column(arrays["g"]))
        got[name], got[f"x.grad of {name}"] = array(name, result), array(f"x.grad of {name}", x.grad)
        refuse_ring(name, partial(getattr(x, name), axis=axis, keepdims=keepdims))
        refuse_recorded(artifact, name, partial(getattr(x, name), axis=axis, keepdims=keepdims))
    (x,) = inputs_of(artifact, arrays, "x")
    result = x.reshape(arrays["g2"].shape[0], -1)
    go_back(artifact, result, torch.from_numpy(arrays["g2"]))
    refuse_ring("reshape", partial(x.reshape, arrays["g2"].shape[0], -1))
    refuse_recorded(artifact, "reshape", partial(x.reshape, arrays["g2"].shape[0], -1))
    (a,) = inputs_of(artifact, arrays, "x")  # neither what is reshaped nor the gradient lies in one piece of memory
    rows = arrays["g2"].shape[0]
    turned = a.reshape(-1, rows).T.reshape(-1).reshape(rows, -1).T
    go_back(artifact, turned, torch.from_numpy(arrays["g2"]).reshape(-1, rows))
    got |= {TURNED: array(TURNED, turned), f"x.grad of {TURNED}": array(f"x.grad of {TURNED}", a.grad)}
    return got | {"reshape": array("reshape", result), "x.grad of reshape": array("x.grad of reshape", x.grad)}


@storage_only
def index(artifact: Any, arrays: Arrays) -> Arrays:
    """What each key picks out, and the gradient of what it was picked from."""
    got = {}
    for name, key in keys_of(arrays).items():
        (x,) = inputs_of(artifact, arrays, "x")
        result = x[key]
        got[name] = array(name, result)
        for times, grad in enumerate((f"x.grad of {name}", f"x.grad of {name} {AGAIN}"), start=1):
            go_back(artifact, result, times * by_column(arrays[f"g of {name}"]))
            got[grad] = array(grad, x.grad)
        refuse_ring(name, partial(x.__getitem__, key))
        refuse_recorded(artifact, name, partial(x.__getitem__, key))
    return got


@storage_only
def loss(artifact: Any, arrays: Arrays) -> Arrays:
    """The loss, and the gradient of the logits after one backward pass and after a second one."""
    (logits,) = inputs_of(artifact, arrays, "logits")
    result = artifact.cross_entropy(logits, torch.from_numpy(arrays["labels"]))
    got = {"loss": array("loss", result)}
    for times, name in enumerate(LOSS_GRADS, start=1):
        go_back(artifact, result, times * torch.from_numpy(arrays["g"]))
        got[name] = array(name, logits.grad)
    refuse_ring("cross_entropy", partial(artifact.cross_entropy, logits, torch.from_numpy(arrays["labels"])))
    refuse_recorded(
        artifact, "cross_entropy", partial(artifact.cross_entropy, logits, torch.from_numpy(arrays["labels"]))
    )
    return got
