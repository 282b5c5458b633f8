"""Calls of task 8: bytes predicted, and gradients from a second forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import torch

from mlsys_checks.sandboxed.autograd.engine import BrokenError, fail, inputs_of, refuse_ring
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.storage import storage_only
from mlsys_checks.sandboxed.values import array, describe_value, whole
from mlsys_lab.errors import InputError

RECORDED = "an operation inside no_grad() is recorded after a backward pass there"


@contextmanager
def _default_dtype(name: str) -> Iterator[None]:
    """Within it, torch makes arrays of this dtype where none is named."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, name))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@storage_only
def graph_bytes(artifact: Any, arrays: Arrays) -> Arrays:
    """The learner's prediction for a float32 graph that is held whole, whatever torch's default is."""
    sizes = (int(arrays[name]) for name in ("batch", "width", "layers"))
    with _default_dtype("float64" if arrays["double"] else "float32"):
        return {"bytes": whole("bytes", artifact.predict_graph_bytes(*sizes))}


@storage_only
def checkpointed_bytes(artifact: Any, arrays: Arrays) -> Arrays:
    """The learner's prediction for a checkpointed graph, and the best number of segments."""
    sizes = (int(arrays[name]) for name in ("batch", "width", "layers", "segments"))
    with _default_dtype("float64" if arrays["double"] else "float32"):
        return {
            "bytes": whole("bytes", artifact.predict_checkpointed_bytes(*sizes)),
            "choose_segments": whole("choose_segments", artifact.choose_segments(int(arrays["layers"]))),
        }


def stage(h: Any, w: Any, v: Any) -> Any:
    """Two products and a short cut, so that h is used twice inside."""
    return ((h @ w).tanh() @ v) + h * 0.5


@storage_only
def checkpoint(artifact: Any, arrays: Arrays) -> Arrays:
    """Two checkpointed stages: the result, the gradients, and how often a stage ran.

    The second stage follows the first one, or has the same input (`branches`); both may stand within a third checkpoint
    (`nested`), and all of them behind two whose functions have raised, the second in its backward pass (`raises`). Each
    run of a stage is multiplied by the next of `turns`, so that the arrays tell how often and in which order too.
    A third part of the sum may come from a checkpoint without a gradient for its input (`stops`), and the backward pass
    run inside `no_grad()` (`quiet`).
    """
    turns, calls, recorded = arrays["turns"].tolist(), [0], [0]
    nested, branches = bool(arrays["nested"]), bool(arrays["branches"])
    made: list[Any] = []

    def counted(h: Any) -> Any:
        turn = turns[min(calls[0], len(turns) - 1)]
        calls[0] += 1
        result = stage(h, w, v) * turn
        recorded[0] += bool(result.edges)
        return result

    def twice(h: Any) -> Any:
        made.append(artifact.checkpoint(counted, h))
        made.append(artifact.checkpoint(counted, h if branches else made[-1]))
        return made[-2] + made[-1] if branches else made[-1]

    w, v = inputs_of(artifact, arrays, "w", "v")
    x = artifact.Tensor(torch.from_numpy(arrays["x"]), requires_grad=bool(arrays["x_wants"]))
    g = torch.from_numpy(arrays["g"])
    inside = bool(arrays["raises"]) and _records_after_failures(artifact, x, w, g)
    result = artifact.checkpoint(twice, x) if nested else twice(x)
    for one in made:
        if not isinstance(one, artifact.Tensor):
            raise InputError("checkpoint gives no Tensor", got=describe_value(one), expected="your engine's Tensor")
    forward_calls, recorded_calls = calls[0], recorded[0] + sum(bool(one.edges) for one in made if nested)
    if arrays["stops"]:
        result = result + artifact.checkpoint(lambda h: h.detach() @ w, x) @ v
    for _ in range(int(arrays["backwards"])):
        with artifact.no_grad() if arrays["quiet"] else nullcontext():
            artifact.backward(result, g)
            inside |= bool(arrays["quiet"]) and bool((w + w).edges)
    got = {"result": array("the result", result), "w.grad": array("w.grad", w.grad), "v.grad": array("v.grad", v.grad)}
    if arrays["x_wants"]:
        got["x.grad"] = array("x.grad", x.grad)
    got["runs of fn that were recorded before any backward pass"] = np.array(recorded_calls)
    got[RECORDED] = np.array(inside)
    refuse_ring("checkpoint", lambda: artifact.checkpoint(lambda h: stage(h, w, v), x))
    return got | {"calls of fn": np.array((forward_calls, calls[0]))}


def _records_after_failures(artifact: Any, x: Any, w: Any, g: torch.Tensor) -> bool:
    """Whether the engine records inside `no_grad()` once a checkpoint's first run and another's second have raised."""
    with suppress(BrokenError):
        artifact.checkpoint(fail, x)
    runs = iter((lambda h: h * 2.0, fail))
    once = artifact.checkpoint(lambda h: next(runs)(h), x)
    with artifact.no_grad():
        with suppress(BrokenError):
            artifact.backward(once, g)
        return bool((w + w).edges)


@storage_only
def deep_stack(artifact: Any, arrays: Arrays) -> Arrays:
    """A deep stack of layers, checkpointed in segments. From its third run on, a layer gives something else.

    Layers that run again one after the other were a piece: how many there were, and how long the longest was. The list
    of layers, or the tuple, is the caller's, who has no more use for it once the forward pass is done.
    """
    calls, again, recorded = [0] * len(arrays["weights"]), list[int](), [0]
    weights = [artifact.Tensor(torch.from_numpy(w), requires_grad=True) for w in arrays["weights"]]
    biases = [artifact.Tensor(torch.from_numpy(b), requires_grad=True) for b in arrays["biases"]]

    def layer(i: int) -> Any:
        def apply(h: Any) -> Any:
            calls[i] += 1
            again.extend([i] * (calls[i] == 2))
            result = (h @ weights[i] + biases[i]).tanh()
            recorded[0] += calls[i] == 1 and bool(result.edges)
            return result if calls[i] <= 2 else result * 2.0

        return apply

    x = artifact.Tensor(torch.from_numpy(arrays["x"]))
    stack, made, own = [layer(i) for i in range(len(weights))], [0], artifact.checkpoint

    def count(*args: Any, **kwargs: Any) -> Any:
        made[0] += 1
        return own(*args, **kwargs)

    artifact.checkpoint = count
    try:
        given = tuple(stack) if arrays["as_tuple"] else stack
        result = artifact.checkpoint_sequential(given, x, int(arrays["segments"]))
    finally:
        artifact.checkpoint = own
    left = len(stack)
    if arrays["segments"] > 1:  # the only piece may be the list itself
        stack.clear()
    artifact.backward(result, torch.from_numpy(arrays["g"]))
    begins = [at for at, i in enumerate(again) if at == 0 or i != again[at - 1] + 1]
    return {
        "result": array("the result", result)[::1000],
        "pieces": np.array(len(begins)),
        "longest piece": np.array(max(np.diff([*begins, len(again)]), default=0)),
        "gradient of the first weight": array("gradient of the first weight", weights[0].grad),
        "gradients of the biases": np.stack([array("a bias's gradient", b.grad) for b in biases]),
        "most calls of a layer": np.array(max(calls)),
        "layers recorded at once": np.array(recorded[0]),
        "layers left in the list": np.array(left),
        "checkpoints": np.array(made[0]),
    }
