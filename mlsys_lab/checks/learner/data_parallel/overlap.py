"""How the checks of lab 08's buckets call the learner's code: marks show where each rank's backward pass stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mlsys_lab.checks.learner.data_parallel.steps import gradients, hold, leaves
from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.checks.learner.values import whole
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank, Request


NAMED = 100
"""Buckets that an answer names one by one."""


class Marks:
    """Empty messages round the ring, on a channel of their own: they stand in the log between all others."""

    def __init__(self, rank: Rank) -> None:
        self._group, self._open = rank.group(range(rank.size)), list[Any]()
        self.post()

    def post(self, *_: object) -> None:
        """Say that this place has been reached, and wait for nobody."""
        here, p = self._group.rank, self._group.size
        if p > 1:
            sent: Request = self._group.isend(torch.empty(0), (here + 1) % p)
            self._open += [sent, self._group.irecv((here - 1) % p)]

    def wait(self) -> None:
        """Wait for all of them."""
        for request in self._open:
            request.wait()


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


def _chain(weights: list[torch.Tensor], arrays: Arrays, step: int, leave: Callable[..., None]) -> torch.Tensor:
    """Layer after layer in this rank's order, h becomes h·(1 + w·x); the backward pass leaves each with a call."""
    h = torch.ones((), dtype=weights[0].dtype, requires_grad=True) * 1
    for place in arrays["order"].tolist():
        h.register_hook(leave)  # type: ignore[no-untyped-call]
        if arrays["used"][step, place]:
            h = h * (1 + (weights[place] * torch.from_numpy(arrays[f"x{place}"])[step]).sum())
        else:
            h = h * 1
    return h


def ddp(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Step after step of `DDP` on a chain of layers: all gradients; marks show where the backward pass stands."""
    marks, weights = Marks(rank), leaves(arrays)
    ddp = artifact.DDP(rank, weights, int(arrays["bucket_bytes"]))
    answers: Arrays = {}
    for step in range(len(arrays["x0"])):
        for weight in weights:
            weight.grad = None
        marks.post()
        _chain(weights, arrays, step, marks.post).backward()  # type: ignore[no-untyped-call]
        ddp.finish()
        answers |= gradients(f" of step {step}", weights)
        _descend(weights)
    marks.wait()
    return answers


def accumulate(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `accumulate` on a `DDP`, step after step: all gradients.

    Marks stand at the beginning of the last loss and at the end of its backward pass.
    """
    marks, weights = Marks(rank), leaves(arrays)
    ddp = artifact.DDP(rank, weights, int(arrays["bucket_bytes"]))
    counts = arrays["tokens"] // arrays["tokens a row"]
    memory = torch.empty(int(counts.max(initial=0)), len(weights[0]), dtype=weights[0].dtype)
    rows = iter(torch.split(torch.from_numpy(arrays["rows"]), counts.ravel().tolist()))
    answers: Arrays = {}
    for step, given in enumerate(arrays["tokens"].tolist()):
        last = _Last(marks, sum(map(bool, given)))
        uses = arrays["uses"].tolist()
        losses = [partial(_loss, weights, memory, next(rows), used, last, arrays.get("value")) for used in uses]
        if arrays["alike"]:
            losses = losses[:1] * len(losses)
        for weight in weights:
            weight.grad = None
        tokens, functions = list(given), list(losses)
        artifact.accumulate(ddp, rank, functions, tokens)
        hold("tokens", tokens, given)
        hold("losses", len(functions), len(losses))
        last.end()
        answers |= gradients(f" of step {step}", weights) | {f"sync after step {step}": np.array(bool(ddp.sync))}
        _descend(weights)
    marks.wait()
    return answers


class _Last:
    """Two marks a step, round the last of so many losses; a rank that has none makes them when all is over."""

    def __init__(self, marks: Marks, losses: int) -> None:
        self._marks, self._losses, self._left = marks, losses, 2

    def begin(self) -> torch.Tensor:
        """Say that a loss begins: a one by which to multiply it, which the backward pass leaves last."""
        self._losses -= 1
        one = torch.ones((), requires_grad=True) * 1
        if self._losses == 0:
            self._post()
            one.register_hook(lambda _: self._post())  # type: ignore[no-untyped-call]
        return one

    def end(self) -> None:
        """Make the marks that are missing."""
        while self._left:
            self._post()

    def _post(self) -> None:
        self._left -= 1
        self._marks.post()


def _loss(
    weights: list[torch.Tensor],
    memory: torch.Tensor,
    rows: torch.Tensor,
    used: list[bool],
    last: _Last,
    value: np.ndarray | None,
) -> torch.Tensor:
    """Mean over rows of a square of what the used weights, each of a row's length, make of it.

    The rows come into the memory of those before, so torch refuses to go back from a loss once the next has begun. If
    a value is given, the loss has it, and the gradient that it would have without.
    """
    if not len(rows):
        raise InputError("a micro-batch without tokens has no mean loss", help="leave it out")
    one, batch = last.begin(), memory[: len(rows)].copy_(rows)
    total = sum((batch @ weight for weight, uses in zip(weights, used, strict=True) if uses), torch.zeros(len(rows)))
    loss = (total * total).mean() * one
    return loss if value is None else loss - loss.detach() + float(value)


def _descend(weights: Iterable[torch.Tensor]) -> None:
    for weight in weights:
        assert weight.grad is not None  # it has been told
        weight.data = weight.data - 0.1 * weight.grad  # in new memory: by its address nobody knows a parameter
