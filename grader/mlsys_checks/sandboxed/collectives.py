"""How lab 07's checks call the learner's code: on each rank with that rank's arrays, and costs as numbers."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import array, describe_value, number, whole, word
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank

FORMS = ("tree", "ring", "halving_doubling", "hierarchical")
"""Names of the forms of all-reduce whose times are predicted."""


def _tensor(arrays: Arrays, name: str = "x") -> torch.Tensor:
    """A rank's array as a tensor on the array's own memory, so that changes show; transposed where the case says so."""
    x = torch.from_numpy(arrays[name])
    return x.T if "transposed" in arrays else x


_given_back: deque[tuple[torch.Tensor, torch.Tensor]] = deque(maxlen=64)
"""Results of the last calls, with copies: one that changes lies in a buffer that calls share."""


_lists_given_back: deque[list[Any]] = deque(maxlen=64)


def _own(name: str, got: Any, x: torch.Tensor) -> np.ndarray:
    """The numbers of a result, which must have memory of its own, also from earlier results."""
    found = _lasting(name, got)
    if isinstance(got, torch.Tensor) and found.size and _memory(got) == _memory(x):
        raise InputError(f"{name} shares its memory with x", got="x or a view of it", expected="memory of its own")
    return found


def _lasting(name: str, got: Any) -> np.ndarray:
    """The numbers of a result, which must leave the results of earlier calls as they are."""
    found = array(name, got)
    if any(not torch.allclose(earlier, copy, rtol=0, atol=0, equal_nan=True) for earlier, copy in _given_back):
        _given_back.clear()
        raise InputError("what an earlier call gave back has changed since", expected="an array of its own each time")
    if isinstance(got, torch.Tensor):
        _given_back.append((got, got.clone()))
    return found


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _listed(name: str, got: Any) -> list[tuple[str, Any]]:
    """The entries of a list or tuple with their names, name[0] and so on."""
    if not isinstance(got, list | tuple):
        raise InputError(f"{name} is no list", got=describe_value(got), expected="a list")
    return [(f"{name}[{i}]", one) for i, one in enumerate(got)]


# --- programs of several ranks ----------------------------------------------------------------------------------------


def exchange(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `exchange` with the partner that the case names."""
    x, partner = _tensor(arrays), int(arrays["partner"])
    return {"received": array("received", artifact.exchange(rank, x, partner))}


def send_recv(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `send_recv` towards the ranks that the case names."""
    x, destination, source = _tensor(arrays), int(arrays["destination"]), int(arrays["source"])
    return {"received": array("received", artifact.send_recv(rank, x, destination, source))}


def broadcast(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `broadcast` from the case's root."""
    x, root = _tensor(arrays), int(arrays["root"])
    return {"received": _own("received", artifact.broadcast(rank, x, root), x)}


def reduce(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `reduce` to the case's root; elsewhere nothing may come back."""
    x, root = _tensor(arrays), int(arrays["root"])
    got = artifact.reduce(rank, x, root)
    if rank.rank == root:
        return {"sum": _own("sum", got, x)}
    if got is not None:
        raise InputError(
            "reduce gives something back on a rank that is not the root", got=describe_value(got), expected="None"
        )
    return {"nothing": np.array(True)}


def reduce_scatter(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `reduce_scatter`: this rank's chunk."""
    x = _tensor(arrays)
    return {"chunk": _own("chunk", artifact.reduce_scatter(rank, x), x)}


def all_gather(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `all_gather`: the arrays of all ranks."""
    x = _tensor(arrays)
    got = artifact.all_gather(rank, x)
    if any(got is earlier for earlier in _lists_given_back):
        raise InputError("all_gather gives back the list of an earlier call", expected="a list of its own each time")
    if isinstance(got, list):
        _lists_given_back.append(got)
    gathered = _listed("gathered", got)
    return {"count": np.array(len(gathered))} | {name: _own(name, part, x) for name, part in gathered}


def all_reduce(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `all_reduce`: the sum."""
    x = _tensor(arrays)
    return {"sum": _own("sum", artifact.all_reduce(rank, x), x)}


def halving_doubling(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `halving_doubling`: the sum."""
    x = _tensor(arrays)
    return {"sum": _own("sum", artifact.halving_doubling(rank, x), x)}


def hierarchical(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `hierarchical` with the case's size of an island: the sum."""
    x, island = _tensor(arrays), int(arrays["island"])
    return {"sum": _own("sum", artifact.hierarchical(rank, x, island), x)}


def average_gradients(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Go back through a sum of products on the learner's engine, then call `average_gradients`: every gradient."""
    names = [name for name in arrays if name.startswith("w")]
    weights = [artifact.Tensor(torch.from_numpy(arrays[name]), requires_grad=True) for name in names]
    used = [(w, name) for w, name in zip(weights, names, strict=True) if f"x of {name}" in arrays]
    for weight, name in used:
        (weight * weight * artifact.Tensor(torch.from_numpy(arrays[f"x of {name}"]))).sum().backward()
    for weight, _ in used:
        if weight.grad.ndim == 2:
            weight.grad = weight.grad.T.contiguous().T  # as it comes back through a transpose
    before = [(name, weight.grad, weight.grad.clone()) for weight, name in used]
    parameters, bucket_bytes = list(weights), int(arrays["bucket_bytes"])
    artifact.average_gradients(rank, parameters, bucket_bytes)
    if written := [name for name, grad, copy in before if not torch.equal(grad, copy)]:
        raise InputError(
            f"the mean is written into the array that {written[0]}.grad was, which other parameters may share",
            expected="a new array as grad",
        )
    if list(map(id, parameters)) != list(map(id, weights)):
        raise InputError("the list of parameters is another after the call", expected="the same, in the same order")
    if changed := [
        name for name, w in zip(names, weights, strict=True) if w.data.numpy().tolist() != arrays[name].tolist()
    ]:
        raise InputError(f"{changed[0]}.data is another after the call", expected="another grad, and nothing else")
    return {f"{name}.grad": _lasting(f"{name}.grad", w.grad) for name, w in zip(names, weights, strict=True)}


# --- what needs no ranks ----------------------------------------------------------------------------------------------


def split_chunks(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `split_chunks` for an array whose first axis is turned to the end: the chunks."""
    x = torch.from_numpy(arrays["x"]).movedim(0, -1)
    chunks = _listed("chunks", artifact.split_chunks(x, int(arrays["parts"])))
    return {"count": np.array(len(chunks))} | {name: array(name, got) for name, got in chunks}


def ring_elements(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `ring_elements`: a whole number for each rank."""
    elements = _listed("elements", artifact.ring_elements(int(arrays["n"]), int(arrays["p"])))
    return {"elements": np.array([whole(name, got) for name, got in elements], dtype=np.int64)}


def split_calls(arrays: Arrays) -> list[tuple[str, Arrays]]:
    """The numbers of each call that a case asks for, one or many, and what follows the names of its answers."""
    if not arrays["p"].ndim:
        return [("", arrays)]
    return [(f" in call {i}", {name: array[i] for name, array in arrays.items()}) for i in range(len(arrays["p"]))]


def _wire(artifact: Any, arrays: Arrays, where: str = "") -> Any:
    return artifact.Wire(float(arrays[f"{where}alpha"]), float(arrays[f"{where}beta"]))


def crossover(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `crossover_bytes`: one number a call."""
    return {
        f"bytes{which}": number("bytes", artifact.crossover_bytes(int(given["p"]), _wire(artifact, given)))
        for which, given in split_calls(arrays)
    }


def choose(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `predict` for the seconds of each form, and `choose` for the name of the fastest."""
    answers: Arrays = {}
    for which, given in split_calls(arrays):
        wires = (_wire(artifact, given, name) for name in ("inside_", "across_"))
        call = (int(given["p"]), float(given["size_bytes"]), int(given["island"]), *wires)
        times_s = artifact.predict(*call)
        if not isinstance(times_s, dict) or set(times_s) != set(FORMS):
            found = ", ".join(map(str, times_s)) if isinstance(times_s, dict) else type(times_s).__name__
            raise InputError("predict gives no dictionary of the four forms", got=found, expected=", ".join(FORMS))
        answers |= {f"{name}{which}": number(f"predict[{name!r}]", times_s[name]) for name in FORMS}
        answers[f"choose{which}"] = word("choose", artifact.choose(*call), FORMS)
    return answers
