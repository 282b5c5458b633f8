"""How the checks of lab 08's checkpoints call the learner's code: save, lose, load, and go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mlsys_lab.checks.learner.data_parallel.sharded import make_optimizer
from mlsys_lab.checks.learner.data_parallel.steps import hold, leaves, told
from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.checks.learner.values import array, whole
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank


def _read_parts(arrays: Arrays) -> list[dict[str, torch.Tensor]]:
    """The parts of a checkpoint, whose entries are arrays named "weights of 0" and so on, in order of rank."""
    names = [name.removesuffix(" of 0") for name in arrays if name.endswith(" of 0")]
    count = sum(name.startswith("weights of ") for name in arrays)
    return [{name: torch.from_numpy(arrays[f"{name} of {rank}"]).clone() for name in names} for rank in range(count)]


def reshard(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `reshard`: every entry of every new part; every position once each part has counted a step on its own."""
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
        answers |= {f"{name} of {rank}": array(f"{name} of part {rank}", one) for name, one in part.items()}
        for name, one in part.items():
            if isinstance(one, torch.Tensor) and (held := one.untyped_storage().nbytes()) > one.nbytes:
                what = f"{name} of part {rank} lies in more memory than it needs, all of which is saved with it"
                raise InputError(what, got=f"{held} bytes", expected=one.nbytes, help="clone() it")
    for part in got:
        part["position"] += 1
    later = {f"position of {rank}, a step later": array("position", part["position"]) for rank, part in enumerate(got)}
    return answers | later


def resume(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Train, save, lose everything, and twice load and train on, with random noise: all weights after each step."""
    torch.manual_seed(int(arrays["seed"]))
    weights, data, stop = leaves(arrays), torch.from_numpy(arrays["data"]), int(arrays["stop"])
    optimizer = make_optimizer(artifact, rank, arrays, weights)
    answers = _train(optimizer, weights, data[:stop], "step")
    part = artifact.save_state(optimizer, int(arrays["position"]))
    if not isinstance(part, dict):
        raise InputError("save_state gives no dictionary", got=type(part).__name__, expected="a dictionary of tensors")
    answers |= {f"axes of {name!r}": np.array(array(f"the part's {name!r}", one).ndim) for name, one in part.items()}
    _go_astray(optimizer, weights)
    for again in ("", "again, "):
        torch.manual_seed(0)
        weights = [torch.full_like(weight, 7.0).requires_grad_() for weight in weights]
        optimizer = make_optimizer(artifact, rank, arrays, weights)
        position = artifact.load_state(optimizer, part)
        answers |= {f"{again}position": whole("position", position)}
        position += 1  # as training counts, which leaves the part as it is
        answers |= told(f"{again}loaded: w", (weight.detach() for weight in weights))
        answers |= _train(optimizer, weights, data[stop:], f"{again}later step")
    later = artifact.save_state(optimizer, int(position))
    return answers | {"position of a later checkpoint": whole("position", later["position"])}


def _train(optimizer: Any, weights: list[torch.Tensor], data: torch.Tensor, name: str) -> Arrays:
    """A step for each number in data, with random noise: all weights after each."""
    answers: Arrays = {}
    for step, factor in enumerate(data):
        for weight in weights:
            weight.grad = weight.detach() * factor + torch.randn(weight.shape, dtype=weight.dtype)
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
