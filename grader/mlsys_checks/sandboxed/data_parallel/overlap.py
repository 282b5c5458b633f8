"""How the checks of lab 08's buckets call the learner's code.

The backward pass multiplies gradients by signs that are revealed one after the other: what lies behind a sign cannot
be sent before the rank has asked for it, and the log says what the rank had posted by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import cycle, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mlsys_checks.sandboxed.data_parallel.steps import gradients, hold, leaves
from mlsys_checks.sandboxed.spec import Arrays, Reveal
from mlsys_checks.sandboxed.values import whole
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank


NAMED = 100
"""Buckets that an answer names one by one."""


def _reveal_sign(value: torch.Tensor, reveal: Reveal, i: int) -> None:
    """Let the backward pass multiply the gradient of `value` by sign i, which it asks for on its way."""
    value.register_hook(lambda gradient: gradient * reveal(i))  # type: ignore[no-untyped-call]


def name_buckets(buckets: Sequence[np.ndarray]) -> Arrays:
    """How many buckets there are, and the numbers in each; those of many after each other, beyond the first ones."""
    named = {f"buckets[{i}]": bucket for i, bucket in enumerate(buckets[:NAMED])}
    others = {"all further buckets": np.concatenate(buckets[NAMED:])} if len(buckets) > NAMED else {}
    return {"count": np.array(len(buckets))} | named | others


def assign_buckets(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `assign_buckets`: the bucket of each parameter, whatever the order within one."""
    sizes: list[int] = arrays["sizes"].tolist()
    buckets = artifact.assign_buckets(sizes, int(arrays["bucket_bytes"]))
    hold("sizes", sizes, arrays["sizes"].tolist())
    if not isinstance(buckets, list | tuple) or not all(isinstance(bucket, list | tuple) for bucket in buckets):
        raise InputError("assign_buckets gives no list of lists", got=type(buckets).__name__, expected="[[2, 1], [0]]")
    numbers = ([whole("a parameter's number", one) for one in bucket] for bucket in buckets)
    return name_buckets([np.sort(np.array(bucket, dtype=np.int64)) for bucket in numbers])


def _chain(weights: list[torch.Tensor], arrays: Arrays, step: int, reveal: Reveal) -> torch.Tensor:
    """Layer after layer in this rank's order, h becomes h·(1 + w·x); the backward pass asks for a sign after each.

    The first of its signs, that of the result, comes behind those of the layers.
    """
    first = step * (len(weights) + 1)
    h = torch.ones((), dtype=weights[0].dtype, requires_grad=True) * 1
    for place in arrays["order"].tolist():
        _reveal_sign(h, reveal, first + place)
        if arrays["used"][step, place]:
            h = h * (1 + (weights[place] * torch.from_numpy(arrays[f"x{place}"])[step]).sum())
        else:
            h = h * 1
    return h * reveal(first + len(weights))


def ddp(artifact: Any, rank: Rank, reveal: Reveal, arrays: Arrays) -> Arrays:
    """Step after step of `DDP` on a chain of layers: all gradients."""
    weights = leaves(arrays)
    ddp = artifact.DDP(rank, weights, int(arrays["bucket_bytes"]))
    answers: Arrays = {}
    for step in range(len(arrays["x0"])):
        for weight in weights:
            weight.grad = None
        _chain(weights, arrays, step, reveal).backward()  # type: ignore[no-untyped-call]
        ddp.finish()
        answers |= gradients(f" of step {step}", weights)
        _descend(weights)
    return answers


def accumulate(artifact: Any, rank: Rank, reveal: Reveal, arrays: Arrays) -> Arrays:
    """Call `accumulate` on a `DDP`, step after step: all gradients."""
    weights = leaves(arrays)
    ddp = artifact.DDP(rank, weights, int(arrays["bucket_bytes"]))
    counts = arrays["tokens"] // arrays["tokens a row"]
    memory = torch.empty(int(counts.max(initial=0)), len(weights[0]), dtype=weights[0].dtype)
    rows = iter(torch.split(torch.from_numpy(arrays["rows"]), counts.ravel().tolist()))
    answers: Arrays = {}
    for step, given in enumerate(arrays["tokens"].tolist()):
        turns = range(step * len(given), (step + 1) * len(given))
        called = [cycle(turns)] * len(given) if arrays["alike"] else [repeat(turn) for turn in turns]
        losses = [
            partial(_loss, weights, memory, next(rows), used, reveal, turns_of, arrays.get("value"))
            for used, turns_of in zip(arrays["uses"].tolist(), called, strict=True)
        ]
        if arrays["alike"]:
            losses = losses[:1] * len(losses)
        for weight in weights:
            weight.grad = None
        tokens, functions = list(given), list(losses)
        artifact.accumulate(ddp, rank, functions, tokens)
        hold("tokens", tokens, given)
        hold("losses", len(functions), len(losses))
        answers |= gradients(f" of step {step}", weights) | {f"sync after step {step}": np.array(bool(ddp.sync))}
        _descend(weights)
    return answers


def _loss(
    weights: list[torch.Tensor],
    memory: torch.Tensor,
    rows: torch.Tensor,
    used: list[bool],
    reveal: Reveal,
    turns: Iterator[int],
    value: np.ndarray | None,
) -> torch.Tensor:
    """Mean over rows of a square of what the used weights, each of a row's length, make of it.

    The backward pass asks for a sign before it computes the gradient of each weight, and for one in the end. `turns`
    are the micro-batches whose loss it is, call after call.

    The rows come into the memory of those before, so torch refuses to go back from a loss once the next has begun. If
    a value is given, the loss has it, and the gradient that it would have without.
    """
    if not len(rows):
        raise InputError("a micro-batch without tokens has no mean loss", help="leave it out")
    first = next(turns) * (len(weights) + 1)
    one, batch = torch.ones((), requires_grad=True) * 1, memory[: len(rows)].copy_(rows)
    _reveal_sign(one, reveal, first + len(weights))
    total = torch.zeros(len(rows), dtype=memory.dtype)
    for i, weight in enumerate(weights):
        if used[i]:
            part = batch @ weight
            _reveal_sign(part, reveal, first + i)
            total = total + part
    loss = (total * total).mean() * one
    return loss if value is None else loss - loss.detach() + float(value)


def _descend(weights: Iterable[torch.Tensor]) -> None:
    for weight in weights:
        assert weight.grad is not None  # it has been told
        weight.data = weight.data - 0.1 * weight.grad  # in new memory: by its address nobody knows a parameter
