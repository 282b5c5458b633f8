"""How the checks of lab 09's experts call the learner's code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mlsys_checks.sandboxed.model_parallel.given import copy_tensors, refuse_change, tensor_values
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import describe_value, parts
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank


def all_to_all(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `all_to_all`, then overwrite what was sent."""
    sent = copy_tensors(arrays, *(f"part{r}" for r in range(rank.size)))
    got = artifact.all_to_all(rank, sent)
    if not isinstance(got, list | tuple):
        raise InputError("all_to_all gives no list", got=describe_value(got), expected="a tensor from each rank")
    for r, one in enumerate(sent):
        refuse_change(f"parts[{r}]", one, arrays[f"part{r}"])
        one.fill_(7)
    return {"count": np.array(len(got))} | {
        f"from {r}": tensor_values(f"received[{r}]", one) for r, one in enumerate(got)
    }


def route(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `route`: experts, weights and which were kept."""
    (logits,) = copy_tensors(arrays, "logits")
    got = artifact.route(logits, int(arrays["k"]), int(arrays["capacity"]))
    names = ("experts", "weights", "kept")
    answers = {name: tensor_values(name, one) for name, one in zip(names, parts("route", got, *names), strict=True)}
    refuse_change("logits", logits, arrays["logits"])
    return answers


def dispatch(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `dispatch` with experts of one matrix each, of which a rank has its own alone; count the rows they got."""
    names = ("x", "experts", "weights", "kept", "owners")
    given, worked = copy_tensors(arrays, *names), []

    def work(e: int, rows: torch.Tensor) -> torch.Tensor:
        if f"expert{e}" not in arrays:
            raise InputError("a rank asks for an expert that lives elsewhere", got=f"expert {e} on rank {rank.rank}")
        worked.append(len(rows))
        return (rows @ torch.from_numpy(arrays[f"expert{e}"])).tanh()

    out = artifact.dispatch(rank, *given, work)
    for name, one in zip(names, given, strict=True):
        refuse_change(name, one, arrays[name])
    return {"result": tensor_values("result", out), "rows that experts worked on": np.array(sum(worked))}
