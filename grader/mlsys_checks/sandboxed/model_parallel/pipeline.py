"""How the checks of lab 09's pipelines call the learner's code."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mlsys_checks.sandboxed.model_parallel.given import copy_tensors, refuse_change
from mlsys_checks.sandboxed.repeated_calls import call_twice
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import array, describe_value, number, parts, whole
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank

KINDS = ("forward", "backward")
"""The kinds of a pipeline's actions, by the number in which they cross."""


def schedule(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `one_forward_one_backward`: for each stage its actions, kind and micro-batch."""
    call = partial(artifact.one_forward_one_backward, int(arrays["p"]), int(arrays["m"]))
    stages = call_twice("one_forward_one_backward", call)
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


class _Stage:
    """Layers of a rank: two matrices. `held` is how many earlier results were still held when the next was asked for.

    `back` has the numbers of the micro-batches among `inputs` in the order in which they went back.
    """

    def __init__(self, first: torch.Tensor, second: torch.Tensor, inputs: Sequence[np.ndarray], *, room: int) -> None:
        self._first, self._second, self._inputs, self._room = first, second, inputs, room
        self._results: list[weakref.ref[torch.Tensor]] = []
        self.held, self.back = 0, list[int]()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the layers for (T, D); InputError for anything else."""
        if not isinstance(x, torch.Tensor) or x.ndim != 2 or x.shape[1] != len(self._first):
            expected = f"(T, {len(self._first)})"
            raise InputError("a stage is given something else", got=getattr(x, "shape", x), expected=expected)
        self.held = max(self.held, self._count_held())
        y: torch.Tensor = (x @ self._first).tanh() @ self._second
        self._results.append(weakref.ref(y))
        came = [i for i, one in enumerate(self._inputs) if np.array_equal(one, x.detach().numpy())]
        if came and y.requires_grad:
            y.register_hook(lambda _: self.back.extend(came))  # type: ignore[no-untyped-call]
        return y

    def _count_held(self) -> int:
        """Count results that somebody holds; where they are too many, without those that only wait to be collected.

        Once too many were held, no collection (which takes long in a large process) can change the verdict.
        """
        held = sum(one() is not None for one in self._results)
        if held > self._room >= self.held:
            gc.collect()
            held = sum(one() is not None for one in self._results)
        return held


def run_stage(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `run_stage` with a stage of two matrices: its gradients after all, and on the last rank the mean loss.

    The first rank, which knows what comes in, tells in which order its micro-batches went back.
    """
    first, second = weights = [one.requires_grad_() for one in copy_tensors(arrays, "first", "second")]
    actions = [(KINDS[kind], micro_batch) for kind, micro_batch in arrays["actions"].tolist()]
    is_first, is_last = rank.rank == 0, rank.rank == rank.size - 1
    inputs = copy_tensors(arrays, *(f"x{i}" for i in range(len(actions) // 2))) if is_first else []
    room = 1 + max(accumulate(1 if kind == "forward" else -1 for kind, _ in actions))
    stage = _Stage(first, second, [arrays[f"x{i}"] for i in range(len(inputs))], room=room)

    def loss(y: torch.Tensor, micro_batch: int) -> torch.Tensor:
        if not is_last:
            raise InputError("a rank that is not the last asks for a loss")
        return (y * torch.from_numpy(arrays[f"target{micro_batch}"])).sum(1).square().mean()

    mean = artifact.run_stage(rank, list(actions), stage, inputs, loss)
    for i, one in enumerate(inputs):
        refuse_change(f"inputs[{i}]", one, arrays[f"x{i}"])
    if not is_last and mean is not None:
        raise InputError("run_stage gives a loss where there is none", got=repr(mean)[:40], expected="None")
    if stage.held > room:
        what = "your code holds results of micro-batches that have gone back"
        raise InputError(what, got=f"{stage.held} at a time", expected=f"at most {room - 1} in flight, and one more")
    told = {"loss": number("loss", mean)} if is_last else {}
    told |= {"micro-batches in the order in which they went back": np.array(stage.back)} if is_first else {}
    return told | {
        f"{name}.grad": array(f"{name}.grad", one.grad) for name, one in zip(("first", "second"), weights, strict=True)
    }
