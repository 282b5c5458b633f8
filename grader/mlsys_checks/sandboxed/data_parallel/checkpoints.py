"""How the checks of lab 08's checkpoints call the learner's code: save, lose, load, and go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mlsys_checks.sandboxed.data_parallel.sharded import DTYPES, make_optimizer
from mlsys_checks.sandboxed.data_parallel.steps import hold, leaves, told
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import array, whole
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank


BFLOAT16 = "bfloat16"
"""The name of an entry of this dtype, which crosses as bytes of whole numbers."""
NO_STATES = ("weights", "position", "random")
"""Entries of a part that are no states of the optimiser inside."""
DOUBLED = "from a part whose weights were doubled, "
"""How the answers are named that the last part leads to."""


def _read_parts(arrays: Arrays) -> list[dict[str, torch.Tensor]]:
    """The parts of a checkpoint, whose entries are arrays named "weights of 0" and so on, in order of rank."""
    names = [name.removesuffix(" of 0") for name in arrays if name.endswith(" of 0")]
    count = sum(name.startswith("weights of ") for name in arrays)
    parts = [{name: torch.from_numpy(arrays[f"{name} of {rank}"]).clone() for name in names} for rank in range(count)]
    return [{name: one.bfloat16() if name == BFLOAT16 else one for name, one in part.items()} for part in parts]


def reshard(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `reshard`: every entry of every new part, each a tensor in memory of its own."""
    given = _read_parts(arrays)
    names = [list(part) for part in given]
    got = artifact.reshard(given, int(arrays["size"]))
    hold("names of each part", [list(part) for part in given], names)
    if not isinstance(got, list | tuple) or not all(isinstance(part, dict) for part in got):
        raise InputError(
            "reshard gives no list of dictionaries", got=type(got).__name__, expected="a part for each rank"
        )
    answers = {"count": np.array(len(got))}
    for rank, part in enumerate(got):
        for name, one in part.items():
            half = isinstance(one, torch.Tensor) and one.dtype == torch.bfloat16
            answers[f"{name} of {rank}"] = array(f"{name} of part {rank}", one.to(torch.int8) if half else one)
    _require_own_memory(given, got)
    return answers


def _require_own_memory(given: Sequence[dict[str, torch.Tensor]], new: Sequence[dict[str, torch.Tensor]]) -> None:
    """Raise InputError where a new part's entry is no tensor, lies in another's memory or in more than it needs."""
    owners: dict[int, str] = {}
    for kind, parts in (("old part", given), ("part", new)):
        for name, one in ((f"{name} of {kind} {i}", one) for i, part in enumerate(parts) for name, one in part.items()):
            _require_tensor(name, one)
            if (held := one.untyped_storage().nbytes()) > one.nbytes:
                what = f"{name} lies in more memory than it needs, all of which is saved with it"
                raise InputError(what, got=f"{held} bytes", expected=one.nbytes, help="clone() it")
            if held and (owner := owners.setdefault(one.untyped_storage().data_ptr(), name)) != name:
                raise InputError(f"{name} lies in the memory of {owner}", help="clone() it")


def _require_tensor(name: str, one: Any) -> None:
    if not isinstance(one, torch.Tensor):
        raise InputError(f"{name} is no tensor", got=type(one).__name__, expected="a dictionary of tensors")


def resume(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Train, save, lose everything, and twice load and train on, with random noise: all weights after each step.

    What is saved in the end is loaded once more, its weights doubled: they come out of the part, not from elsewhere.
    """
    torch.manual_seed(int(arrays["seed"]))
    weights, data, stop = leaves(arrays), torch.from_numpy(arrays["data"]), int(arrays["stop"])
    optimizer = make_optimizer(artifact, rank, arrays, weights)
    answers = _train(optimizer, weights, data[:stop], "step")
    part = artifact.save_state(optimizer, int(arrays["position"]))
    most = -(-sum(weight.numel() for weight in weights) // rank.size)
    answers |= _describe(part, most, "")
    _go_astray(optimizer, weights)
    for again in ("", "again, ", DOUBLED):
        torch.manual_seed(0)
        weights = [torch.full_like(weight, 7.0).requires_grad_(weight.requires_grad) for weight in weights]
        optimizer = make_optimizer(artifact, rank, arrays, weights)
        position = _load(artifact, optimizer, part)
        answers |= {f"{again}position": whole("position", position)}
        position += 1  # as training counts, which leaves the part as it is
        answers |= told(f"{again}loaded: w", (weight.detach() for weight in weights))
        if again != DOUBLED:
            answers |= _train(optimizer, weights, data[stop:], f"{again}later step")
        if again == "again, ":
            saved = artifact.save_state(optimizer, int(position))
            answers |= _describe(saved, most, again)
            part = {name: 2 * one if name == "weights" else one for name, one in saved.items()}
    return answers


def _load(artifact: Any, optimizer: Any, part: dict[str, torch.Tensor]) -> Any:
    """Load a part into an optimiser that has a state of its own, if the part has any: that must be gone then."""
    states = optimizer.optimizer.state
    if len(part) > len(NO_STATES):
        states[optimizer.shard]["of the new one"] = torch.tensor(1)
    position = artifact.load_state(optimizer, part)
    if "of the new one" in states[optimizer.shard]:
        raise InputError("load_state leaves states of the new optimiser that are not in the part")
    return position


def _describe(part: Any, most: int, where: str) -> Arrays:
    """How many axes each entry of a checkpoint's part has, and the optimiser's states without axes.

    Raises InputError where an entry has more than a rank's share.
    """
    if not isinstance(part, dict):
        raise InputError("save_state gives no dictionary", got=type(part).__name__, expected="a dictionary of tensors")
    for name, one in part.items():
        _require_tensor(f"the part's {name!r}", one)
        if name != "random" and one.numel() > most:
            raise InputError(f"the part's {name!r} is more than this rank's share", got=one.numel(), expected=most)
    axes = {f"axes of {name!r}": np.array(one.ndim) for name, one in part.items()}
    return axes | {f"{where}saved {name}": array(f"the part's {name!r}", part[name]) for name in DTYPES if name in part}


def _train(optimizer: Any, weights: list[torch.Tensor], data: torch.Tensor, name: str) -> Arrays:
    """A step for each number in data, with random noise, of which a frozen weight gets none: all weights after each."""
    answers: Arrays = {}
    for step, factor in enumerate(data):
        for weight in weights:
            noise = torch.randn(weight.shape, dtype=weight.dtype)
            weight.grad = weight.detach() * factor + noise if weight.requires_grad else None
        optimizer.reduce_gradients()
        optimizer.step()
        answers |= told(f"{name} {step}: w", (weight.detach() for weight in weights))
    return answers


def _go_astray(optimizer: Any, weights: list[torch.Tensor]) -> None:
    """One step more, which a checkpoint must not follow."""
    for weight in weights:
        weight.grad = torch.randn(weight.shape, dtype=weight.dtype)
    optimizer.reduce_gradients()
    optimizer.step()
