"""How the checks of lab 09's divided matrices call the learner's code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mlsys_checks.sandboxed.model_parallel.given import (
    copy_tensors,
    go_back,
    refuse_change,
    require_tensor,
    tensor_values,
)
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import array
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank


def take_part(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `take_part` on what wants a gradient, then overwrite what the part was taken from."""
    (x,) = copy_tensors(arrays, "x")
    part = artifact.take_part(rank, x.requires_grad_(), int(arrays["dim"]))
    refuse_change("x", x, arrays["x"], wants=True)
    x.data.fill_(7.0)
    if isinstance(part, torch.Tensor) and part.requires_grad:
        raise InputError("the part leads back to x", got="a gradient is wanted", expected="none: detach() it")
    return {"part": tensor_values("part", part)}


def _linear(name: str, artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call a layer and go back from it: the result, and the gradients of what went in.

    Where x wants a gradient, one comes from elsewhere too, as beside a residual connection.
    """
    x, weight, bias = given = [one.requires_grad_() for one in copy_tensors(arrays, "x", "weight", "bias")]
    x.requires_grad_(x_wants := bool(arrays["x_wants"]))
    y = require_tensor(name, getattr(artifact, name)(rank, x, weight, bias), (len(x), len(bias)))
    answers = {"result": array("result", y.detach())}
    go_back(name, y, arrays["gradient"])
    if x.requires_grad:
        x.sum().backward()  # type: ignore[no-untyped-call]
    for one, called in zip(given, ("x", "weight", "bias"), strict=True):
        refuse_change(called, one, arrays[called], wants=x_wants or one is not x)
        if one.requires_grad:
            answers[f"{called}.grad"] = array(f"{called}.grad", one.grad)
    return answers


def _apply(name: str, artifact: Any, rank: Rank, given: np.ndarray) -> Arrays:
    """Apply an autograd function to r + 1 times a column-major array on rank r, and its backward pass to the same."""
    own = np.asfortranarray(given * (rank.rank + 1))
    x = torch.from_numpy(own).clone().requires_grad_()
    y = require_tensor(name, getattr(artifact, name).apply(x, rank), tuple(x.shape))
    answers = {name: array(name, y.detach())}
    go_back(name, y, own)
    refuse_change("x", x, own, wants=True)
    return answers | {f"{name}: x.grad": array("x.grad", x.grad)}


def column_linear(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `column_parallel_linear` and `CopyToTensorParallelRegion`, forward and backward."""
    return _linear("column_parallel_linear", artifact, rank, arrays) | _apply(
        "CopyToTensorParallelRegion", artifact, rank, arrays["x"]
    )


def row_linear(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `row_parallel_linear` and `ReduceFromTensorParallelRegion`, forward and backward."""
    return _linear("row_parallel_linear", artifact, rank, arrays) | _apply(
        "ReduceFromTensorParallelRegion", artifact, rank, arrays["gradient"]
    )


def parallel_mlp(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Two steps of descent of a `ParallelMLP`: result, gradient of x and this rank's parts after each.

    Nobody clears the parts' gradients, so they add up. The whole parameters that it is made of may want gradients.
    """
    names, wants = ("up", "up_bias", "down", "down_bias"), bool(arrays["wants"])
    given = [one.requires_grad_(wants) for one in copy_tensors(arrays, *names)]
    mlp = artifact.ParallelMLP(rank, *given)
    answers: Arrays = {}
    for step, data in enumerate(arrays["x"]):
        x = torch.from_numpy(data).clone().requires_grad_()
        y = require_tensor("ParallelMLP", mlp(x), (len(x), len(arrays["down_bias"])))
        answers[f"step {step}: result"] = array("result", y.detach())
        go_back("ParallelMLP", y, arrays["gradient"][step])
        answers[f"step {step}: x.grad"] = array("x.grad", x.grad)
        for name in names:
            part = getattr(mlp, name)
            answers[f"step {step}: {name}.grad"] = array(f"{name}.grad", part.grad)
            part.data -= 0.1 * part.grad
        refuse_change("x", x, data, wants=True)
    for name, whole_one in zip(names, given, strict=True):
        refuse_change(name, whole_one, arrays[name], wants=wants)
    return answers
