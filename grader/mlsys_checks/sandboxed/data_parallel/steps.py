"""How the checks of lab 08's first step call the learner's code, on the learner's engine; weights in, arrays out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import array, number
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank


def named(arrays: Arrays, letter: str) -> list[torch.Tensor]:
    """Copy the arrays that a letter and a number name, such as w0, w1, …, as tensors.

    Matrices lie transposed in memory where the case says so.
    """
    names = [name for name in arrays if name[0] == letter and name[1:].isdecimal()]
    tensors = [torch.from_numpy(arrays[name]).clone() for name in names]
    return [one.T.contiguous().T if "transposed" in arrays and one.ndim == 2 else one for one in tensors]


def leaves(arrays: Arrays) -> list[torch.Tensor]:
    """Copy the arrays w0, w1, … as weights of torch, which want gradients, but for one that the case may freeze."""
    frozen = int(arrays.get("frozen", -1))
    return [weight.requires_grad_(i != frozen) for i, weight in enumerate(named(arrays, "w"))]


def told(name: str, tensors: Iterable[Any]) -> Arrays:
    """Name tensors, of torch or of an engine, by their places, as arrays."""
    return {f"{name}{i}": array(f"{name}{i}", one) for i, one in enumerate(tensors)}


def gradients(where: str, weights: Iterable[Any]) -> Arrays:
    """Name the gradients of weights by their places and by where they were taken, as arrays.

    Raises InputError where two of them overlap in memory.
    """
    grads = [weight.grad for weight in weights]
    answers = {f"w{i}.grad{where}": array(f"w{i}.grad", grad) for i, grad in enumerate(grads)}
    _require_apart({f"w{i}.grad": grad for i, grad in enumerate(grads) if isinstance(grad, torch.Tensor)})
    return answers


def _require_apart(tensors: dict[str, torch.Tensor]) -> None:
    """Raise InputError where one of the tensors changes when a later one is written into."""
    kept = [one.clone() for one in tensors.values()]
    for place, (name, one) in enumerate(tensors.items()):
        try:
            one.detach().fill_(place)
        except RuntimeError:
            raise InputError(f"elements of {name} lie in the same memory", help="clone() it") from None
    for place, (name, one) in enumerate(tensors.items()):
        if not bool((one == place).all()):
            raise InputError(f"{name} lies in the memory of another gradient", help="clone() one of them")
    for one, numbers in zip(tensors.values(), kept, strict=True):
        one.detach().copy_(numbers)


def hold(name: str, now: object, given: object) -> None:
    """Raise InputError where a function has changed what it was given."""
    if now != given:
        raise InputError(f"your code changes its input `{name}`", got=now, expected=given)


def copy_from_first(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `copy_from_first` on parameters of the learner's engine, and on as many of torch's; some may be frozen."""
    torchs = leaves(arrays)
    wants = [one.requires_grad for one in torchs]
    ours = [artifact.Tensor(weight, requires_grad=one) for weight, one in zip(named(arrays, "w"), wants, strict=True)]
    artifact.copy_from_first(rank, ours)
    artifact.copy_from_first(rank, torchs)
    return told("w", ours) | told("torch's w", (weight.detach() for weight in torchs))


def loss_weights(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `loss_weights` for the counts of each step: a number for each micro-batch."""
    answers: Arrays = {}
    for step, given in enumerate(arrays["tokens"].tolist()):
        tokens = list(given)
        got = artifact.loss_weights(rank, tokens)
        hold("tokens", tokens, given)
        if isinstance(got, torch.Tensor | np.ndarray) and got.ndim == 1:
            got = list(got)
        if not isinstance(got, list | tuple):
            raise InputError("loss_weights gives no list", got=type(got).__name__, expected="a list of numbers")
        answers[f"count of step {step}"] = np.array(len(got))
        names = [f"weights[{i}] of step {step}" for i in range(len(got))]
        answers |= {name: number(name, one) for name, one in zip(names, got, strict=True)}
    return answers


def backward_together(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `backward_together` for a mean loss on the learner's engine: every gradient."""
    weights = [artifact.Tensor(weight, requires_grad=True) for weight in named(arrays, "w")]
    loss: Any = artifact.Tensor(torch.zeros((), dtype=weights[0].data.dtype), requires_grad=True)
    for weight, x, used in zip(weights, named(arrays, "x"), arrays["used"].tolist(), strict=True):
        if used:
            loss = loss + (weight * weight * artifact.Tensor(x)).sum()
    artifact.backward_together(rank, weights, loss, int(arrays["tokens"]))
    return gradients("", weights)
