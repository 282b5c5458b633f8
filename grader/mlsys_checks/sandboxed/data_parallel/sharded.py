"""How the checks of lab 08's divided states and weights call the learner's code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from mlsys_checks.sandboxed.data_parallel.steps import leaves, told
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import array, count, number, pair, parts
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank


DTYPES = {"step": torch.int64, "rate": torch.float64, "on": torch.bool}
"""Dtypes of the states of `Momentum` that have no axes, by name."""


def name_momenta(count: int) -> list[str]:
    """Names of so many momenta."""
    return ["momentum", *(f"momentum {i}" for i in range(2, count + 1))]


class Momentum:
    """An optimiser whose steps shrink, with three states without axes, and momenta: one, or more that decay faster.

    It makes them in the first step or, where `eager`, when it is made. Raises InputError where the memory of what it is
    to move has room for more than `most` elements, and where that is no leaf, which torch's refuse, too.
    """

    def __init__(
        self, params: Iterable[torch.Tensor], lr: float, most: int, *, eager: bool = False, momenta: int = 1
    ) -> None:
        self.params, self.lr, self.momenta = list(params), lr, name_momenta(momenta)
        self.state: defaultdict[torch.Tensor, dict[str, torch.Tensor]] = defaultdict(dict)  # as torch's
        if (held := sum(one.untyped_storage().nbytes() // one.element_size() for one in self.params)) > most:
            raise InputError("a rank's optimiser keeps more than its share", got=f"{held} elements", expected=most)
        if not all(one.is_leaf for one in self.params):
            raise InputError("the optimiser is given a tensor with a history", help="detach() the parameters")
        for one in self.params if eager else ():
            self.state[one] |= self._begin(one)

    def _begin(self, one: torch.Tensor) -> dict[str, torch.Tensor]:
        begin = {"step": 0, "rate": self.lr, "on": True}
        states = {name: torch.tensor(value, dtype=DTYPES[name]) for name, value in begin.items()}
        return states | {name: torch.zeros_like(one.data) for name in self.momenta}

    def step(self) -> None:
        """Move the parameters by their momentum."""
        for one in self.params:
            if one.grad is None:
                raise InputError("the optimiser steps before its parameters have gradients")
            if not (state := self.state[one]):
                state |= self._begin(one)
            for name, dtype in DTYPES.items():
                if (found := state[name].dtype if name in state else None) != dtype:
                    raise InputError(f"the state {name!r} is no more what it was", got=found, expected=dtype)
            state["step"] += 1
            state["rate"] *= 0.9
            for i, name in enumerate(self.momenta, start=1):
                state[name].div_(2**i).add_(one.grad)
            one.data -= float(state["rate"]) / int(state["step"]) * sum(state[name] for name in self.momenta)


def make_optimizer(artifact: Any, rank: Rank, arrays: Arrays, weights: list[torch.Tensor]) -> Any:
    """Make the learner's `ShardedOptimizer` of a momentum that has room for this rank's share."""
    most = -(-sum(weight.numel() for weight in weights) // rank.size)
    given = {name: arrays[name].item() for name in ("lr", "eager", "momenta") if name in arrays}
    return artifact.ShardedOptimizer(rank, weights, Momentum, most=most, **given)


def sharded_optimizer(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Step after step of `ShardedOptimizer` on gradients that the case gives: all weights, at first and after each."""
    weights = leaves(arrays)
    optimizer = make_optimizer(artifact, rank, arrays, weights)
    answers = told("at the start: w", (weight.detach() for weight in weights))
    for step in range(int(arrays["steps"])):
        for place, weight in enumerate(weights):
            given = torch.from_numpy(arrays[f"g{place}"])[step]
            weight.grad = torch.empty_like(weight).copy_(given).detach() if arrays["used"][step, place] else None
        optimizer.reduce_gradients()
        optimizer.step()
        answers |= told(f"step {step}: w", (weight.detach() for weight in weights))
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
    width, layers, shapes = arrays["x"].shape[-1], list[Any](), list[list[torch.Size]]()
    for name in (name for name in arrays if name[0] == "w"):
        one = torch.from_numpy(arrays[name]).clone()  # what a layer keeps of it counts against this rank's memory
        both = one.view(width + 1, -1)
        function, weights = cut_layer(both, int(arrays["form"]), len(layers))
        layers.append(artifact.ShardedLayer(rank, function, weights))
        shapes.append([weight.shape for weight in weights])
        width = both.shape[1]
        if (held := layers[-1].shard.numel()) > -(-one.numel() // rank.size):
            raise InputError("a rank keeps more than its share of a layer", got=f"{held} elements of {one.numel()}")
        if held and layers[-1].shard.untyped_storage().data_ptr() == one.untyped_storage().data_ptr():
            raise InputError("the shard lies in the memory of the weights that were given", help="clone() it")
    answers: Arrays = {}
    x = torch.from_numpy(arrays["x"][0]).clone().requires_grad_(bool(arrays["x_wants"]))
    for step in range(len(arrays["x"])):
        x.data.copy_(torch.from_numpy(arrays["x"][step]))  # nobody knows it by its identity
        x.grad = None
        h: torch.Tensor = x
        for layer in layers * int(arrays["passes"]):
            h = (h + layer(h) if arrays["residual"] else layer(h)).tanh()
        answers[f"step {step}: result"] = array("result", h.detach())
        for layer in layers:
            layer.shard.data *= float(arrays["growth"])
            layer.shard.grad = None
        for times_left in reversed(range(int(arrays["backward"]))):
            h.backward(torch.from_numpy(arrays["g"][step]), retain_graph=times_left > 0)  # type: ignore[no-untyped-call]
        if x.requires_grad != bool(arrays["x_wants"]):
            raise InputError("your code changes its input x", got="it wants a gradient after the backward pass")
        if arrays["x_wants"]:
            answers[f"step {step}: x.grad"] = array("x.grad", x.grad)
        for layer in layers:
            if layer.shard.grad is None:
                raise InputError("a layer's shard has no gradient after the backward pass")
            layer.shard.data -= 0.1 * layer.shard.grad
    for number_of, (layer, expected) in enumerate(zip(layers, shapes, strict=True)):
        names = (f"weight {i}" for i in range(len(expected)))
        whole = [one.detach() for one in parts("gather", layer.gather(), *names)]
        if (found := [one.shape for one in whole]) != expected:
            got, wanted = (", ".join(str(tuple(one)) for one in shape) for shape in (found, expected))
            raise InputError("gather gives weights of other shapes", got=got, expected=wanted)
        answers |= {f"layer {number_of}: w{i}": array(f"weight {i}", one) for i, one in enumerate(whole)}
    return answers


def cut_layer(both: torch.Tensor, form: int, number: int) -> tuple[Callable[..., torch.Tensor], list[torch.Tensor]]:
    """A layer's function and its weights: views of a matrix that has the bias as its last row.

    Form 0 has a matrix and a bias, which has no axes where it is one number; form 1 has the matrix transposed and an
    empty weight between the two, and only every other weight wants a gradient, the first in layers of an odd number;
    form 2 has one weight, the whole; form 3 has each number of the bias alone, before the matrix. But for form 1 all
    weights want gradients.
    """
    if form == 2:
        return _whole, [both.requires_grad_()]
    weight, bias = both[:-1], both[-1]
    if form == 3:
        return _stacked, [one.requires_grad_() for one in (*bias, weight)]
    bias = bias[0] if len(bias) == 1 else bias
    if form == 0:
        return _affine, [weight.requires_grad_(), bias.requires_grad_()]
    return _turned, [weight.T.requires_grad_(number % 2 == 1), weight[:0], bias.requires_grad_(number % 2 == 0)]


def _affine(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return x @ weight + bias


def _turned(x: torch.Tensor, weight: torch.Tensor, empty: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.einsum("ri,oi->ro", x, weight) + empty.sum() + bias


def _whole(x: torch.Tensor, both: torch.Tensor) -> torch.Tensor:
    return x @ both[:-1] + both[-1]


def _stacked(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    *bias, weight = weights
    return x @ weight + torch.stack(bias)


def step_cost(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `step_cost` for every stage: bytes kept, elements sent."""
    answers: Arrays = {}
    for stage in range(4):
        kept, sent = pair("step_cost", artifact.step_cost(int(arrays["n"]), int(arrays["p"]), stage), "kept", "sent")
        answers |= {f"stage {stage}: bytes kept": count("bytes kept", kept)}
        answers |= {f"stage {stage}: elements sent": count("elements sent", sent)}
    return answers
