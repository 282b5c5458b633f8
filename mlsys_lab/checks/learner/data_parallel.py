"""How lab 08's checks call the learner's code: each rank goes through its own steps, and its weights tell the rest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.checks.learner.values import array, number, pair, whole
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank, Request


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


class Momentum:
    """An optimiser with two states, of which `step` has no axes: the step shrinks with every step.

    Raises InputError where the memory of what it is to move has room for more than `most` elements.
    """

    def __init__(self, params: Iterable[torch.Tensor], lr: float, most: int) -> None:
        self.params, self.lr = list(params), lr
        self.state: defaultdict[torch.Tensor, dict[str, torch.Tensor]] = defaultdict(dict)  # as torch's
        if (held := sum(one.untyped_storage().nbytes() // one.element_size() for one in self.params)) > most:
            raise InputError("a rank's optimiser keeps more than its share", got=f"{held} elements", expected=most)

    def step(self) -> None:
        """Move the parameters by their momentum."""
        for one in self.params:
            if one.grad is None:
                raise InputError("the optimiser steps before its parameters have gradients")
            if not (state := self.state[one]):
                state |= {"momentum": torch.zeros_like(one.data), "step": torch.zeros((), dtype=torch.int64)}
            state["step"] += 1
            state["momentum"].mul_(0.5).add_(one.grad)
            one.data -= self.lr / int(state["step"]) * state["momentum"]


def _named(arrays: Arrays, letter: str) -> list[torch.Tensor]:
    """Copies of the arrays w0, w1, … as tensors."""
    names = [name for name in arrays if name[0] == letter and name[1:].isdecimal()]
    return [torch.from_numpy(arrays[name]).clone() for name in names]


def _leaves(arrays: Arrays) -> list[torch.Tensor]:
    return [weight.requires_grad_() for weight in _named(arrays, "w")]


def _hold(name: str, now: object, given: object) -> None:
    """Raise InputError where a function has changed what it was given."""
    if now != given:
        raise InputError(f"your code changes its input `{name}`", got=now, expected=given)


def _told(name: str, tensors: Iterable[Any]) -> Arrays:
    return {f"{name}{i}": array(f"{name}{i}", one) for i, one in enumerate(tensors)}


def _gradients(where: str, weights: Iterable[Any]) -> Arrays:
    return {f"w{i}.grad{where}": array(f"w{i}.grad", weight.grad) for i, weight in enumerate(weights)}


def _descend(weights: Iterable[torch.Tensor]) -> None:
    for weight in weights:
        assert weight.grad is not None  # it has been told
        weight.data -= 0.1 * weight.grad


# --- on the learner's engine ------------------------------------------------------------------------------------------


def copy_from_first(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `copy_from_first` on parameters of the learner's engine, and on as many of torch's."""
    ours = [artifact.Tensor(weight, requires_grad=True) for weight in _named(arrays, "w")]
    torchs = _leaves(arrays)
    artifact.copy_from_first(rank, ours)
    artifact.copy_from_first(rank, torchs)
    return _told("w", ours) | _told("torch's w", (weight.detach() for weight in torchs))


def loss_weights(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `loss_weights`: a number for each micro-batch."""
    got = artifact.loss_weights(rank, arrays["tokens"].tolist())
    if isinstance(got, torch.Tensor | np.ndarray) and got.ndim == 1:
        got = list(got)
    if not isinstance(got, list | tuple):
        raise InputError("loss_weights gives no list", got=type(got).__name__, expected="a list of numbers")
    return {"count": np.array(len(got))} | {f"weights[{i}]": number(f"weights[{i}]", one) for i, one in enumerate(got)}


def backward_together(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `backward_together` for a mean loss on the learner's engine: every gradient."""
    weights = [artifact.Tensor(weight, requires_grad=True) for weight in _named(arrays, "w")]
    loss: Any = artifact.Tensor(torch.zeros((), dtype=torch.float64), requires_grad=True)
    for weight, x, used in zip(weights, _named(arrays, "x"), arrays["used"].tolist(), strict=True):
        if used:
            loss = loss + (weight * weight * artifact.Tensor(x)).sum()
    artifact.backward_together(rank, weights, loss, int(arrays["tokens"]))
    return _gradients("", weights)


# --- buckets ----------------------------------------------------------------------------------------------------------


def assign_buckets(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `assign_buckets`: the bucket of each parameter, whatever the order within one."""
    sizes: list[int] = arrays["sizes"].tolist()
    buckets = artifact.assign_buckets(sizes, int(arrays["bucket_bytes"]))
    _hold("sizes", sizes, arrays["sizes"].tolist())
    if not isinstance(buckets, list | tuple) or not all(isinstance(bucket, list | tuple) for bucket in buckets):
        raise InputError("assign_buckets gives no list of lists", got=type(buckets).__name__, expected="[[2, 1], [0]]")
    return {"count": np.array(len(buckets))} | {
        f"buckets[{i}]": np.sort(np.array([whole("a parameter's number", one) for one in bucket], dtype=np.int64))
        for i, bucket in enumerate(buckets)
    }


def _chain(weights: list[torch.Tensor], arrays: Arrays, step: int, leave: Callable[..., None]) -> torch.Tensor:
    """Layer after layer in this rank's order, h becomes h·(1 + w·x); the backward pass leaves each with a call."""
    h = torch.ones((), dtype=weights[0].dtype, requires_grad=True) * 1
    for place in arrays["order"].tolist():
        h.register_hook(leave)  # type: ignore[no-untyped-call]
        h = h * (
            1 + (weights[place] * torch.from_numpy(arrays[f"x{place}"][step])).sum() if arrays["used"][place] else 1
        )
    return h


def ddp(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Step after step of `DDP` on a chain of layers: all gradients; marks show where the backward pass stands."""
    marks, weights = Marks(rank), _leaves(arrays)
    ddp = artifact.DDP(rank, weights, int(arrays["bucket_bytes"]))
    answers: Arrays = {}
    for step in range(len(arrays["x0"])):
        for weight in weights:
            weight.grad = None
        marks.post()
        _chain(weights, arrays, step, marks.post).backward()  # type: ignore[no-untyped-call]
        ddp.finish()
        answers |= _gradients(f" of step {step}", weights)
        _descend(weights)
    marks.wait()
    return answers


def accumulate(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `accumulate` on a `DDP`, step after step: all gradients.

    Marks stand at the beginning of the last loss and at the end of its backward pass.
    """
    marks, weights = Marks(rank), _leaves(arrays)
    ddp = artifact.DDP(rank, weights, int(arrays["bucket_bytes"]))
    tokens: list[int] = arrays["tokens"].tolist()
    memory = torch.empty(max(tokens, default=0), len(weights[0]), dtype=weights[0].dtype)
    answers: Arrays = {}
    for step in range(int(arrays["steps"])):
        last = _Last(marks, sum(map(bool, tokens)))
        rows = torch.split(torch.from_numpy(arrays["rows"][step]), tokens)
        uses = arrays["uses"].tolist()
        losses = [partial(_loss, weights, memory, *one, last) for one in zip(rows, uses, strict=True)]
        for weight in weights:
            weight.grad = None
        artifact.accumulate(ddp, rank, losses, list(tokens))
        last.end()
        answers |= _gradients(f" of step {step}", weights) | {f"sync after step {step}": np.array(bool(ddp.sync))}
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
    weights: list[torch.Tensor], memory: torch.Tensor, rows: torch.Tensor, used: list[bool], last: _Last
) -> torch.Tensor:
    """Mean over rows of a square of what the used weights, each of a row's length, make of it.

    The rows come into the memory of those before, so torch refuses to go back from a loss once the next has begun.
    """
    if not len(rows):
        raise InputError("a micro-batch without tokens has no mean loss", help="leave it out")
    one, batch = last.begin(), memory[: len(rows)].copy_(rows)
    total = sum((batch @ weight for weight, uses in zip(weights, used, strict=True) if uses), torch.zeros(len(rows)))
    return (total * total).mean() * one


# --- divided states and weights ---------------------------------------------------------------------------------------


def _make_optimizer(artifact: Any, rank: Rank, arrays: Arrays, weights: list[torch.Tensor]) -> Any:
    most = -(-sum(weight.numel() for weight in weights) // rank.size)
    return artifact.ShardedOptimizer(rank, weights, Momentum, lr=float(arrays["lr"]), most=most)


def sharded_optimizer(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Step after step of `ShardedOptimizer` on gradients that the case gives: all weights."""
    weights = _leaves(arrays)
    optimizer = _make_optimizer(artifact, rank, arrays, weights)
    answers: Arrays = {}
    for step in range(int(arrays["steps"])):
        for place, weight in enumerate(weights):
            given = torch.from_numpy(arrays[f"g{place}"][step])
            weight.grad = given.to(weight.dtype, copy=True) if arrays["used"][place] else None
        optimizer.reduce_gradients()
        optimizer.step()
        answers |= _told(f"step {step}: w", (weight.detach() for weight in weights))
    return answers


def clip_gradient(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `clip_gradient` on this rank's part of a gradient: the norm, and what the part has become."""
    part = torch.from_numpy(arrays["part"]).clone()
    norm = artifact.clip_gradient(rank, part, float(arrays["max_norm"]))
    return {"norm": number("norm", norm), "part": array("part", part)}


def sharded_layer(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Steps through layers of `ShardedLayer`, whose shards grow between forward and backward pass.

    Told are results, the gradient of what goes in, and all weights after each step of plain descent.
    """
    width, layers = arrays["x"].shape[-1], list[Any]()
    for name in (name for name in arrays if name[0] == "w"):
        one = torch.from_numpy(arrays[name]).clone()  # what a layer keeps of it counts against this rank's memory
        both = one.view(width + 1, -1)
        layers.append(artifact.ShardedLayer(rank, _affine, [both[:-1], both[-1]]))
        width = both.shape[1]
        if (held := layers[-1].shard.numel()) > -(-one.numel() // rank.size):
            raise InputError("a rank keeps more than its share of a layer", got=f"{held} elements of {one.numel()}")
    answers: Arrays = {}
    for step in range(len(arrays["x"])):
        x = torch.from_numpy(arrays["x"][step]).clone().requires_grad_(bool(arrays["x_wants"]))
        h: torch.Tensor = x
        for layer in layers * int(arrays["passes"]):
            h = layer(h).tanh()
        answers[f"step {step}: result"] = array("result", h.detach())
        for layer in layers:
            layer.shard.data *= float(arrays["growth"])
            layer.shard.grad = None
        h.backward(torch.from_numpy(arrays["g"][step]))  # type: ignore[no-untyped-call]
        if arrays["x_wants"]:
            answers[f"step {step}: x.grad"] = array("x.grad", x.grad)
        for layer in layers:
            if layer.shard.grad is None:
                raise InputError("a layer's shard has no gradient after the backward pass")
            layer.shard.data -= 0.1 * layer.shard.grad
    for number_of, layer in enumerate(layers):
        whole_ones = pair("gather", layer.gather(), "weight", "bias")
        answers |= {f"layer {number_of}: w{i}": array("a weight", one.detach()) for i, one in enumerate(whole_ones)}
    return answers


def _affine(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return x @ weight + bias


def step_cost(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `step_cost` for every stage: bytes kept, elements sent."""
    answers: Arrays = {}
    for stage in range(4):
        kept, sent = pair("step_cost", artifact.step_cost(int(arrays["n"]), int(arrays["p"]), stage), "kept", "sent")
        answers |= {f"stage {stage}: bytes kept": whole("bytes kept", kept)}
        answers |= {f"stage {stage}: elements sent": whole("elements sent", sent)}
    return answers


# --- checkpoints ------------------------------------------------------------------------------------------------------


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
    _hold("names of each part", [list(part) for part in given], names)
    if not isinstance(got, list | tuple) or not all(isinstance(part, dict) for part in got):
        raise InputError(
            "reshard gives no list of dictionaries", got=type(got).__name__, expected="a part for each rank"
        )
    answers = {"count": np.array(len(got))}
    for rank, part in enumerate(got):
        answers |= {f"{name} of {rank}": array(f"{name} of part {rank}", one) for name, one in part.items()}
    for part in got:
        part["position"] += 1
    later = {f"position of {rank}, a step later": array("position", part["position"]) for rank, part in enumerate(got)}
    return answers | later


def resume(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Train, save, lose everything, and twice load and train on, with random noise: all weights after each step."""
    torch.manual_seed(int(arrays["seed"]))
    weights, data, stop = _leaves(arrays), torch.from_numpy(arrays["data"]), int(arrays["stop"])
    optimizer = _make_optimizer(artifact, rank, arrays, weights)
    answers = _train(optimizer, weights, data[:stop], "step")
    part = artifact.save_state(optimizer, int(arrays["position"]))
    if not isinstance(part, dict):
        raise InputError("save_state gives no dictionary", got=type(part).__name__, expected="a dictionary of tensors")
    answers |= {f"axes of {name!r}": np.array(array(f"the part's {name!r}", one).ndim) for name, one in part.items()}
    _go_astray(optimizer, weights)
    for again in ("", "again, "):
        torch.manual_seed(0)
        weights = [torch.full_like(weight, 7.0).requires_grad_() for weight in weights]
        optimizer = _make_optimizer(artifact, rank, arrays, weights)
        answers |= {f"{again}position": whole("position", artifact.load_state(optimizer, part))}
        answers |= _told(f"{again}loaded: w", (weight.detach() for weight in weights))
        answers |= _train(optimizer, weights, data[stop:], f"{again}later step")
    return answers


def _train(optimizer: Any, weights: list[torch.Tensor], data: torch.Tensor, name: str) -> Arrays:
    """A step for each number in data, with random noise: all weights after each."""
    answers: Arrays = {}
    for step, factor in enumerate(data):
        for weight in weights:
            weight.grad = weight.detach() * factor + torch.randn(weight.shape, dtype=weight.dtype)
        optimizer.reduce_gradients()
        optimizer.step()
        answers |= _told(f"{name} {step}: w", (weight.detach() for weight in weights))
    return answers


def _go_astray(optimizer: Any, weights: list[torch.Tensor]) -> None:
    """One step more, which a checkpoint must not follow."""
    for weight in weights:
        weight.grad = torch.randn(weight.shape, dtype=weight.dtype)
    optimizer.reduce_gradients()
    optimizer.step()
