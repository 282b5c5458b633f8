"""Call the learner's code for lab 07's checks: on each rank with that rank's arrays; costs as numbers and names."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import takewhile
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import (
    array,
    decode_value,
    describe_value,
    encode_text,
    number,
    whole,
    word,
    write_number,
)
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank

ALGORITHMS = ("tree", "ring", "halving_doubling", "hierarchical")


# --- functions of earlier tasks, right ones ---------------------------------------------------------------------------


def _send_recv(rank: Rank, x: torch.Tensor, destination: int, source: int, *_: Any) -> torch.Tensor:
    sending = rank.isend(x, destination)
    received = rank.recv(source)
    sending.wait()
    return received


def _split_chunks(x: torch.Tensor, parts: int, *_: Any) -> list[torch.Tensor]:
    return list(x.reshape(-1).tensor_split(parts))


def _reduce_scatter(rank: Rank, x: torch.Tensor, *_: Any) -> torch.Tensor:
    chunks, p = _split_chunks(x.clone(memory_format=torch.contiguous_format), rank.size), rank.size
    for step in range(1, p):
        chunks[rank.rank - step - 1] += _send_recv(
            rank, chunks[rank.rank - step], (rank.rank + 1) % p, (rank.rank - 1) % p
        )
    return chunks[rank.rank].clone()


def _all_gather(rank: Rank, x: torch.Tensor, *_: Any) -> list[torch.Tensor]:
    parts, p = [x.clone()], rank.size
    for _step in range(1, p):
        parts.append(_send_recv(rank, parts[-1], (rank.rank + 1) % p, (rank.rank - 1) % p))
    return [parts[(rank.rank - i) % p] for i in range(p)]


def _all_reduce(rank: Rank, x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.cat(_all_gather(rank, _reduce_scatter(rank, x))).reshape(x.shape)


RIGHT: dict[str, Callable[..., Any]] = {
    "send_recv": _send_recv,
    "split_chunks": _split_chunks,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
}
"""In the order of the tasks."""


def with_right_functions(artifact: Any, name: str) -> SimpleNamespace:
    """Return a namespace with a copy of one function, which calls right functions of earlier tasks.

    The learner's own definitions stay as they are: the ranks of a notebook share them.
    """
    own = getattr(artifact, name)
    if type(own) is not FunctionType:
        return SimpleNamespace(**{name: own})
    names = dict(vars(artifact))
    names |= {one: RIGHT[one] for one in takewhile(lambda one: one != name, RIGHT) if one in names}
    copy = FunctionType(own.__code__, names, own.__name__, own.__defaults__, own.__closure__)
    copy.__kwdefaults__, copy.__dict__ = own.__kwdefaults__, own.__dict__
    names[name] = copy
    return SimpleNamespace(**{name: copy})


# --- results ----------------------------------------------------------------------------------------------------------

_earlier_results: deque[tuple[torch.Tensor, torch.Tensor]] = deque(maxlen=64)
"""Results of the last calls, with copies: a result that changes lies in memory that calls share."""
_earlier_lists: deque[list[Any]] = deque(maxlen=64)


def _tensor(arrays: Arrays) -> torch.Tensor:
    """Return a rank's array as a tensor on the same memory, so that changes show; transposed if the case says so."""
    x = torch.from_numpy(arrays["x"])
    return x.T if "transposed" in arrays else x


def _own(name: str, got: Any, x: torch.Tensor) -> np.ndarray:
    """Return the numbers of a result, which must have memory of its own."""
    found = _lasting(name, got)
    if isinstance(got, torch.Tensor) and found.size and _memory(got) == _memory(x):
        what = f"{name} shares its memory with x: who changes one changes both"
        raise InputError(what, got="x or a view of it", expected="a copy, as clone() makes one")
    return found


def _lasting(name: str, got: Any) -> np.ndarray:
    """Return the numbers of a result; earlier results must not have changed."""
    found = array(name, got)
    if any(not torch.allclose(earlier, copy, rtol=0, atol=0, equal_nan=True) for earlier, copy in _earlier_results):
        _earlier_results.clear()
        raise InputError("this call changed the result of an earlier call", expected="a new array for each call")
    if isinstance(got, torch.Tensor):
        _earlier_results.append((got, got.clone()))
    return found


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _listed(name: str, got: Any) -> list[tuple[str, Any]]:
    """Return the entries of a list or tuple with their names, name[0] and so on."""
    if not isinstance(got, list | tuple):
        raise InputError(f"{name} did not return a list", got=describe_value(got), expected="a list")
    return [(f"{name}[{i}]", one) for i, one in enumerate(got)]


# --- programs of several ranks ----------------------------------------------------------------------------------------


def exchange(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `exchange` with the partner that the case names."""
    x, partner = _tensor(arrays), int(arrays["partner"])
    return {"exchange": array("exchange", artifact.exchange(rank, x, partner))}


def send_recv(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `send_recv` with the ranks that the case names."""
    x, destination, source = _tensor(arrays), int(arrays["destination"]), int(arrays["source"])
    return {"send_recv": array("send_recv", artifact.send_recv(rank, x, destination, source))}


def broadcast(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `broadcast` from the case's root."""
    x, root = _tensor(arrays), int(arrays["root"])
    return {"broadcast": _own("broadcast", artifact.broadcast(rank, x, root), x)}


def reduce(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `reduce` to the case's root; the other ranks must return None."""
    x, root = _tensor(arrays), int(arrays["root"])
    got = artifact.reduce(rank, x, root)
    if rank.rank == root:
        return {"reduce": _own("reduce", got, x)}
    if got is not None:
        what = f"reduce returns something on rank {rank.rank}, which is not the root"
        raise InputError(what, got=describe_value(got), expected="None")
    return {"nothing": np.array(True)}


def reduce_scatter(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `reduce_scatter`: this rank's chunk."""
    x, artifact = _tensor(arrays), with_right_functions(artifact, "reduce_scatter")
    return {"reduce_scatter": _own("reduce_scatter", artifact.reduce_scatter(rank, x), x)}


def all_gather(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `all_gather`: the arrays of all ranks."""
    x, artifact = _tensor(arrays), with_right_functions(artifact, "all_gather")
    got = artifact.all_gather(rank, x)
    if any(got is earlier for earlier in _earlier_lists):
        raise InputError("all_gather returned the list of an earlier call", expected="a new list for each call")
    if isinstance(got, list):
        _earlier_lists.append(got)
    gathered = _listed("all_gather", got)
    return {"length": np.array(len(gathered))} | {name: _own(name, part, x) for name, part in gathered}


def all_reduce(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `all_reduce`: the sum."""
    x, artifact = _tensor(arrays), with_right_functions(artifact, "all_reduce")
    return {"all_reduce": _own("all_reduce", artifact.all_reduce(rank, x), x)}


def halving_doubling(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `halving_doubling`: the sum."""
    x, artifact = _tensor(arrays), with_right_functions(artifact, "halving_doubling")
    return {"halving_doubling": _own("halving_doubling", artifact.halving_doubling(rank, x), x)}


def hierarchical(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `hierarchical` with the case's size of an island: the sum."""
    x, island = _tensor(arrays), int(arrays["island"])
    artifact = with_right_functions(artifact, "hierarchical")
    return {"hierarchical": _own("hierarchical", artifact.hierarchical(rank, x, island), x)}


def average_gradients(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Run the backward pass of a sum of products on the engine, then `average_gradients`: every gradient."""
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
    artifact = with_right_functions(artifact, "average_gradients")
    artifact.average_gradients(parameters, rank, bucket_bytes)
    if written := [name for name, grad, copy in before if not torch.equal(grad, copy)]:
        what = f"average_gradients changed the array that {written[0]}.grad was, which other parameters may share"
        raise InputError(what, expected="a new array as grad")
    if list(map(id, parameters)) != list(map(id, weights)):
        raise InputError("average_gradients changed the list `parameters`", expected="the same list, in the same order")
    for name, w in zip(names, weights, strict=True):
        if not isinstance(w.grad, torch.Tensor):
            what = f"{name}.grad is not a torch.Tensor after average_gradients"
            raise InputError(what, got=type(w.grad).__name__, expected="the mean, also where this rank had no gradient")
    if kept := [name for (w, name), (_, grad, _) in zip(used, before, strict=True) if _memory(w.grad) == _memory(grad)]:
        raise InputError(f"{kept[0]}.grad is still the old array", expected="a new array as grad, on one rank too")
    data = zip(names, weights, strict=True)
    if changed := [name for name, w in data if w.data.numpy().tolist() != arrays[name].tolist()]:
        raise InputError(f"average_gradients changed {changed[0]}.data", expected="a new grad, and nothing else")
    return {f"{name}.grad": _lasting(f"{name}.grad", w.grad) for name, w in zip(names, weights, strict=True)}


# --- functions that need no ranks -------------------------------------------------------------------------------------


def split_chunks(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `split_chunks` for an array whose first axis was moved to the end: the chunks."""
    x = torch.from_numpy(arrays["x"]).movedim(0, -1)
    chunks = _listed("split_chunks", artifact.split_chunks(x, int(arrays["parts"])))
    return {"length": np.array(len(chunks))} | {name: array(name, got) for name, got in chunks}


def ring_elements(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `ring_elements` for each row of n and p: a whole number for each rank."""
    answers: Arrays = {}
    for n, p in arrays["rows"].tolist():
        name = f"ring_elements({n}, {p})"
        counts = [whole(one, got) for one, got in _listed(name, artifact.ring_elements(n, p))]
        answers[name] = np.array(counts, dtype=np.int64)
    return answers


def cost_calls(arrays: Arrays) -> list[tuple[str, str, list[Any], dict[str, Any]]]:
    """Return each call of a case on costs: its code, the function, arguments by position, and arguments by name.

    A list of two numbers is a `LinkCost`, of four entries `Islands`; a dictionary at the end has arguments by name.
    """
    calls = []
    for name, *arguments in decode_value(arrays["case"]):
        named = arguments.pop() if isinstance(arguments[-1], dict) else {}
        calls.append((_write_call(name, arguments, named), name, arguments, named))
    return calls


def _write_call(name: str, arguments: list[Any], named: dict[str, Any] | None = None) -> str:
    written = [f"{key}={_write_argument(value)}" for key, value in (named or {}).items()]
    return f"{name}({', '.join([*map(_write_argument, arguments), *written])})"


def _write_argument(value: Any) -> str:
    if isinstance(value, list):
        return _write_call("LinkCost" if len(value) == 2 else "Islands", value)
    if isinstance(value, str):
        return f'"{value}"'
    return "math.inf" if value == float("inf") else write_number(value)


def _build(artifact: Any, value: Any) -> Any:
    if isinstance(value, list):
        kind = artifact.LinkCost if len(value) == 2 else artifact.Islands
        return kind(*(_build(artifact, part) for part in value))
    return value


def costs(artifact: Any, arrays: Arrays) -> Arrays:
    """Make the case's calls, by their number: seconds and bytes as numbers, None and names of algorithms as text."""
    answers: Arrays = {}
    for i, (code, name, arguments, named) in enumerate(cost_calls(arrays)):
        try:
            got = getattr(artifact, name)(*(_build(artifact, value) for value in arguments), **named)
        except Exception as error:
            error.add_note(f"an answer to `{code}`")
            raise
        if name == "select_algorithm":
            answers[f"call {i}"] = word(name, got, ALGORITHMS)
        elif name == "crossover_bytes" and got is None:
            answers[f"call {i}"] = encode_text("None")
        else:
            answers[f"call {i}"] = number(name, got)
    return answers
