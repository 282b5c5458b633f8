"""How the checks of lab 09's pipelines call the learner's code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mlsys_lab.checks.learner.model_parallel.given import copy_tensors, refuse_change
from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.checks.learner.values import array, describe_value, number, parts, whole
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank

KINDS = ("forward", "backward")
"""The kinds of a pipeline's actions, by the number in which they cross."""


def schedule(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `one_forward_one_backward`: for each stage its actions, kind and micro-batch."""
    stages = artifact.one_forward_one_backward(int(arrays["p"]), int(arrays["m"]))
    if not isinstance(stages, list | tuple) or len(stages) != int(arrays["p"]):
        got = f"{type(stages).__name__} of {len(stages)}" if isinstance(stages, list | tuple) else type(stages).__name__
        raise InputError("one_forward_one_backward gives no list for each stage", got=got, expected=int(arrays["p"]))
    return {f"stage {r}": _write_actions(f"stage {r}", actions) for r, actions in enumerate(stages)}


def _write_actions(where: str, actions: Any) -> np.ndarray:
    if not isinstance(actions, list | tuple):
        raise InputError(f"{where} has no list of actions", got=describe_value(actions), expected='[("forward", 0), …]')
    rows = []
    for action in actions:
        kind, micro_batch = parts(f"an action of {where}", action, "kind", "micro-batch")
        if kind not in KINDS:
            raise InputError(f"{where} has an action of another kind", got=repr(kind), expected=" or ".join(KINDS))
        rows.append((KINDS.index(kind), int(whole(f"a micro-batch of {where}", micro_batch))))
    return np.array(rows, dtype=np.int64).reshape(-1, 2)


def run_stage(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `run_stage` with a stage of two matrices: its gradients after all, and on the last rank the mean loss."""
    first, second = weights = [one.requires_grad_() for one in copy_tensors(arrays, "first", "second")]
    actions = [(KINDS[kind], micro_batch) for kind, micro_batch in arrays["actions"].tolist()]
    is_first, is_last = rank.rank == 0, rank.rank == rank.size - 1
    inputs = copy_tensors(arrays, *(f"x{i}" for i in range(len(actions) // 2))) if is_first else []

    def stage(x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, torch.Tensor) or x.ndim != 2 or x.shape[1] != len(first):
            raise InputError(
                "a stage is given something else", got=getattr(x, "shape", x), expected=f"(T, {len(first)})"
            )
        return (x @ first).tanh() @ second

    def loss(y: torch.Tensor, micro_batch: int) -> torch.Tensor:
        if not is_last:
            raise InputError("a rank that is not the last asks for a loss")
        return (y * torch.from_numpy(arrays[f"target{micro_batch}"])).sum(1).square().mean()

    mean = artifact.run_stage(rank, list(actions), stage, inputs, loss)
    for i, one in enumerate(inputs):
        refuse_change(f"inputs[{i}]", one, arrays[f"x{i}"])
        if one.requires_grad:
            raise InputError(f"your code changes its input inputs[{i}]", got="it wants a gradient after the call")
    if not is_last and mean is not None:
        raise InputError("run_stage gives a loss where there is none", got=repr(mean)[:40], expected="None")
    told = {"loss": number("loss", mean)} if is_last else {}
    return told | {
        f"{name}.grad": array(f"{name}.grad", one.grad) for name, one in zip(("first", "second"), weights, strict=True)
    }
