"""Run the learner's code for lab 08's checks: on each rank with that rank's parameters, which then say the rest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import cycle, repeat
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

# torch imports it in the first backward pass from a given gradient: before a limit on the learner's code begins.
import torch.fx.experimental.symbolic_shapes

from mlsys_checks.sandboxed.spec import Arrays, Reveal
from mlsys_checks.sandboxed.values import array, count, describe_value, number, pair, parts, whole
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank


# --- functions of earlier tasks, right ones ---------------------------------------------------------------------------


def _broadcast_tensors(tensors: Iterable[Any], group: Rank) -> None:
    for one in tensors:
        for other in range(1, group.size) if group.rank == 0 else ():
            group.send(one.data, other)
        if group.rank:
            one.data.copy_(group.recv(0))


def _loss_weights(tokens: Sequence[int], group: Rank) -> list[float]:
    total = torch.tensor([sum(tokens)])
    if group.rank:
        group.send(total, 0)
        total = group.recv(0)
    else:
        total = sum((group.recv(other) for other in range(1, group.size)), total)
        for other in range(1, group.size):
            group.send(total, other)
    return [count * group.size / int(total) for count in tokens]


def _assign_buckets(parameters: Sequence[torch.Tensor], bucket_bytes: int) -> list[list[torch.Tensor]]:
    buckets, end = [], len(parameters)
    while end:
        first = end - 1
        while first and sum(one.nbytes for one in parameters[first - 1 : end]) <= bucket_bytes:
            first -= 1
        buckets.append(list(parameters[first:end]))
        end = first
    return buckets


RIGHT = {"broadcast_tensors": _broadcast_tensors, "loss_weights": _loss_weights, "assign_buckets": _assign_buckets}


def _on_right_functions(own: Any) -> Any:
    """Return a copy of a learner's function that calls right functions of earlier tasks, so that a mistake counts once.

    The learner's own definitions stay as they are: the ranks of a notebook share them.
    """
    if type(own) is not FunctionType:
        return own
    copy = FunctionType(own.__code__, own.__globals__ | RIGHT, own.__name__, own.__defaults__, own.__closure__)
    copy.__kwdefaults__ = own.__kwdefaults__
    return copy


def _on_right_class(kind: Any) -> Any:
    """Return a learner's class, whose `__init__` calls right functions of earlier tasks."""
    return type(kind.__name__, (kind,), {"__init__": _on_right_functions(kind.__init__)})


# --- parameters and gradients -----------------------------------------------------------------------------------------


def named(arrays: Arrays, letter: str) -> list[torch.Tensor]:
    """Copy the arrays that a letter and a number name, such as w0, w1, …, as tensors.

    Matrices lie transposed in memory where the case says so.
    """
    names = [name for name in arrays if name[0] == letter and name[1:].isdecimal()]
    tensors = [torch.from_numpy(arrays[name]).clone() for name in names]
    return [one.T.contiguous().T if "transposed" in arrays and one.ndim == 2 else one for one in tensors]


def leaves(arrays: Arrays) -> list[torch.Tensor]:
    """Copy the arrays w0, w1, … as weights of torch that require gradients, except one that the case may freeze."""
    frozen = int(arrays.get("frozen", -1))
    return [weight.requires_grad_(i != frozen) for i, weight in enumerate(named(arrays, "w"))]


def named_arrays(name: str, tensors: Iterable[Any]) -> Arrays:
    """Turn tensors, of torch or of the learner's engine, into arrays named by index."""
    return {f"{name}{i}": array(f"{name}{i}", one) for i, one in enumerate(tensors)}


def gradients(where: str, weights: Iterable[Any]) -> Arrays:
    """Turn the gradients of weights into named arrays. Raises InputError if two of them overlap in memory."""
    grads = [weight.grad for weight in weights]
    answers = {f"w{i}.grad{where}": array(f"w{i}.grad", grad) for i, grad in enumerate(grads)}
    _require_apart({f"w{i}.grad": grad for i, grad in enumerate(grads) if isinstance(grad, torch.Tensor)})
    return answers


def _require_apart(tensors: dict[str, torch.Tensor]) -> None:
    """Raise InputError if writing to one of the tensors changes another."""
    kept = [one.clone() for one in tensors.values()]
    for place, (name, one) in enumerate(tensors.items()):
        try:
            one.detach().fill_(place)
        except RuntimeError:
            what = f"elements of {name} share memory, as expand() leaves them"
            raise InputError(what, help="clone() it") from None
    for place, (name, one) in enumerate(tensors.items()):
        if not bool((one == place).all()):
            what = f"{name} shares memory with another gradient: writing to one changes both"
            raise InputError(what, help="clone() one of them")
    for one, numbers in zip(tensors.values(), kept, strict=True):
        one.detach().copy_(numbers)


def hold(name: str, now: object, given: object) -> None:
    """Raise InputError if a function has changed its argument."""
    if now != given:
        raise InputError(f"your code changes its argument `{name}`", got=now, expected=given)


def broadcast_tensors(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `broadcast_tensors` on parameters of the learner's engine, and on as many of torch's; some may be frozen."""
    tensors = leaves(arrays)
    ours = [
        artifact.Tensor(weight, requires_grad=tensor.requires_grad)
        for weight, tensor in zip(named(arrays, "w"), tensors, strict=True)
    ]
    artifact.broadcast_tensors(ours, rank)
    artifact.broadcast_tensors(tensors, rank)
    return named_arrays("w", ours) | named_arrays("torch's w", (one.detach() for one in tensors))


def loss_weights(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `loss_weights` for the counts of each step: a number for each micro-batch."""
    answers: Arrays = {}
    for step, given in enumerate(arrays["tokens"].tolist()):
        tokens = list(given)
        got = artifact.loss_weights(tokens, rank)
        hold("tokens", tokens, given)
        if isinstance(got, torch.Tensor | np.ndarray) and got.ndim == 1:
            got = list(got)
        if not isinstance(got, list | tuple):
            raise InputError("loss_weights returned no list", got=describe_value(got), expected="a list of numbers")
        answers[f"count of step {step}"] = np.array(len(got))
        names = [f"weights[{i}] of step {step}" for i in range(len(got))]
        answers |= {name: number(name, one) for name, one in zip(names, got, strict=True)}
    return answers


def backward_and_average(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `backward_and_average` for a mean loss on the learner's engine: every gradient."""
    weights = [artifact.Tensor(weight, requires_grad=True) for weight in named(arrays, "w")]
    loss: Any = artifact.Tensor(torch.zeros((), dtype=weights[0].data.dtype), requires_grad=True)
    for weight, x, used in zip(weights, named(arrays, "x"), arrays["used"].tolist(), strict=True):
        if used:
            loss = loss + (weight * weight * artifact.Tensor(x)).sum()
    backward_and_average = _on_right_functions(artifact.backward_and_average)
    backward_and_average(loss, int(arrays["tokens"]), weights, rank)
    return gradients("", weights)


# --- buckets ----------------------------------------------------------------------------------------------------------


SYNC = "require_backward_grad_sync"


def _reveal_sign(value: torch.Tensor, reveal: Reveal, i: int) -> None:
    """Let the backward pass multiply the gradient of `value` by sign i, which it asks for on its way."""
    value.register_hook(lambda gradient: gradient * reveal(i))  # type: ignore[no-untyped-call]


def assign_buckets(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `assign_buckets` on parameters without storage: the bucket of each parameter, -1 if it is in none."""
    parameters = [torch.empty(size // 4, dtype=torch.float32, device="meta") for size in arrays["sizes"].tolist()]
    given = list(parameters)
    buckets = artifact.assign_buckets(given, int(arrays["bucket_bytes"]))
    if len(given) != len(parameters):
        raise InputError("your code changes its argument `parameters`")
    if not isinstance(buckets, list | tuple) or not all(isinstance(bucket, list | tuple) for bucket in buckets):
        got, expected = describe_value(buckets), "a list of lists of parameters"
        raise InputError("assign_buckets returned no list of lists", got=got, expected=expected)
    indices = {id(parameter): i for i, parameter in enumerate(parameters)}
    found = np.full(len(parameters), -1)
    for number_of, bucket in enumerate(buckets):
        if not bucket:
            raise InputError(f"bucket {number_of} is empty", expected="a parameter or more in each bucket")
        for one in bucket:
            if id(one) not in indices:
                what = f"bucket {number_of} holds something that is none of the parameters"
                raise InputError(what, got=describe_value(one), expected="the parameters themselves")
            if found[indices[id(one)]] >= 0:
                raise InputError(f"parameter {indices[id(one)]} is twice in the buckets")
            found[indices[id(one)]] = number_of
    return {"bucket of each parameter": found}


def _chain(weights: list[torch.Tensor], arrays: Arrays, step: int, reveal: Reveal) -> torch.Tensor:
    """Multiply h by 1 + w·x, layer after layer in this rank's order; the backward pass reveals a sign after each.

    The sign of the result is revealed first, and comes last in the arrays.
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
    DDP = _on_right_class(artifact.DDP)
    ddp = DDP(weights, rank, int(arrays["bucket_bytes"]))
    answers: Arrays = {}
    for step in range(len(arrays["x0"])):
        for weight in weights:
            weight.grad = None
        _chain(weights, arrays, step, reveal).backward()  # type: ignore[no-untyped-call]
        ddp.finish_gradient_synchronization()
        answers |= gradients(f" of step {step}", weights)
        _descend(weights)
    return answers


def accumulate_gradients(artifact: Any, rank: Rank, reveal: Reveal, arrays: Arrays) -> Arrays:
    """Call `accumulate_gradients` on a `DDP`, step after step: all gradients."""
    weights = leaves(arrays)
    DDP = _on_right_class(artifact.DDP)
    ddp = DDP(weights, rank, int(arrays["bucket_bytes"]))
    accumulate_gradients = _on_right_functions(artifact.accumulate_gradients)
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
        accumulate_gradients(ddp, functions, tokens, rank)
        hold("tokens", tokens, given)
        hold("losses", len(functions), len(losses))
        answers |= gradients(f" of step {step}", weights) | {
            f"{SYNC} after step {step}": np.array(bool(ddp.require_backward_grad_sync))
        }
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
    """Mean over rows of the squared sum of products with the used weights.

    The backward pass reveals a sign before it computes the gradient of each weight, and one at the end. `turns` are the
    micro-batches whose loss it is, call after call. All rows use the same memory, so torch refuses the backward pass of
    a loss once the next has been computed. With a `value`, the loss has this value and its gradient stays the same.
    """
    if not len(rows):
        raise InputError("the loss of a micro-batch without tokens was computed: it has no mean", help="skip it")
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
        assert weight.grad is not None  # `gradients` has read it
        weight.data = weight.data - 0.1 * weight.grad  # in new memory: an address identifies no parameter


# --- sharded optimizers and layers ------------------------------------------------------------------------------------


DTYPES = {"step": torch.int64, "rate": torch.float64, "on": torch.bool}
"""Dtypes of the states of `Momentum` that have no axes, by name."""


def name_momenta(count: int) -> list[str]:
    """Names of that number of momenta."""
    return ["momentum", *(f"momentum {i}" for i in range(2, count + 1))]


class Momentum:
    """An optimizer whose steps shrink, with three states without axes, and momenta: one, or more that decay faster.

    It creates them in the first step or, if `eager`, at once. Raises InputError if the parameters' storage has room for
    more than `most` elements, and for a parameter that is no leaf, as torch's optimizers do.
    """

    def __init__(
        self, params: Iterable[torch.Tensor], lr: float, most: int, *, eager: bool = False, momenta: int = 1
    ) -> None:
        self.params, self.lr, self.momenta = list(params), lr, name_momenta(momenta)
        self.state: defaultdict[torch.Tensor, dict[str, torch.Tensor]] = defaultdict(dict)  # as torch's
        if (held := sum(one.untyped_storage().nbytes() // one.element_size() for one in self.params)) > most:
            what, got = "the optimizer holds more than this rank's shard", f"{held} elements"
            raise InputError(what, got=got, expected=f"at most {most}")
        if not all(one.is_leaf for one in self.params):
            raise InputError("the optimizer got a tensor that is no leaf of the graph", help="detach() the parameters")
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
                raise InputError(
                    "optimizer.step() was called while shard.grad is None", help="does reduce_gradients set it?"
                )
            if not (state := self.state[one]):
                state |= self._begin(one)
            for name, dtype in DTYPES.items():
                if (found := state[name].dtype if name in state else None) != dtype:
                    raise InputError(f"load_state changed the dtype of state {name!r}", got=found, expected=dtype)
            state["step"] += 1
            state["rate"] *= 0.9
            for i, name in enumerate(self.momenta, start=1):
                state[name].div_(2**i).add_(one.grad)
            one.data -= float(state["rate"]) / int(state["step"]) * sum(state[name] for name in self.momenta)


def make_optimizer(artifact: Any, rank: Rank, arrays: Arrays, weights: list[torch.Tensor]) -> Any:
    """Create the learner's `ShardedOptimizer` of a momentum that has room for this rank's shard."""
    most = -(-sum(weight.numel() for weight in weights) // rank.size)
    given = {name: arrays[name].item() for name in ("lr", "eager", "momenta") if name in arrays}
    ShardedOptimizer = _on_right_class(artifact.ShardedOptimizer)
    return ShardedOptimizer(weights, Momentum, rank, most=most, **given)


def sharded_optimizer(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Step after step of `ShardedOptimizer` on gradients that the case gives: all weights, at first and after each."""
    weights = leaves(arrays)
    optimizer = make_optimizer(artifact, rank, arrays, weights)
    answers = named_arrays("at the start: w", (weight.detach() for weight in weights))
    for step in range(int(arrays["steps"])):
        for place, weight in enumerate(weights):
            given = torch.from_numpy(arrays[f"g{place}"])[step]
            weight.grad = torch.empty_like(weight).copy_(given).detach() if arrays["used"][step, place] else None
        optimizer.reduce_gradients()
        optimizer.step()
        answers |= named_arrays(f"step {step}: w", (weight.detach() for weight in weights))
    return answers


def clip_grad_norm(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `clip_grad_norm` on two shards with this rank's part of a gradient: the norm, and the gradients then."""
    shards = [torch.zeros(len(part), dtype=torch.float64) for part in np.array_split(arrays["part"], 2)]
    for shard, part in zip(shards, np.array_split(arrays["part"], 2), strict=True):
        shard.grad = torch.from_numpy(part).clone()
    norm = artifact.clip_grad_norm(list(shards), float(arrays["max_norm"]), rank)
    return {"norm": number("norm", norm), "gradients": np.concatenate([array("shard.grad", s.grad) for s in shards])}


def fsdp_unit(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Train layers of `FSDPUnit`, whose shards are scaled between forward and backward pass.

    Returns results, the gradient of x, and all weights after each step of plain descent.
    """
    width, layers, shapes = arrays["x"].shape[-1], list[Any](), list[list[torch.Size]]()
    for name in (name for name in arrays if name[0] == "w"):
        one = torch.from_numpy(arrays[name]).clone()  # what a layer keeps of it counts against this rank's memory
        both = one.view(width + 1, -1)
        function, weights = cut_layer(both, int(arrays["form"]), len(layers))
        layers.append(artifact.FSDPUnit(function, weights, rank))
        shapes.append([weight.shape for weight in weights])
        width = both.shape[1]
        if (held := layers[-1].shard.numel()) > -(-one.numel() // rank.size):
            raise InputError("unit.shard is more than this rank's chunk", got=f"{held} elements of {one.numel()}")
        if held and layers[-1].shard.untyped_storage().data_ptr() == one.untyped_storage().data_ptr():
            raise InputError("unit.shard is a view of the parameters that were given", help="clone() it")
    answers: Arrays = {}
    x = torch.from_numpy(arrays["x"][0]).clone().requires_grad_(bool(arrays["x_wants"]))
    for step in range(len(arrays["x"])):
        x.data.copy_(torch.from_numpy(arrays["x"][step]))  # the same tensor in each step
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
            raise InputError("your code changes x.requires_grad in the backward pass", help="detach() x first")
        if arrays["x_wants"]:
            answers[f"step {step}: x.grad"] = array("x.grad", x.grad)
        for layer in layers:
            if layer.shard.grad is None:
                raise InputError(
                    "unit.shard.grad is None after the backward pass", help="is shard an argument of apply?"
                )
            layer.shard.data -= 0.1 * layer.shard.grad
    for number_of, (layer, expected) in enumerate(zip(layers, shapes, strict=True)):
        names = (f"weight {i}" for i in range(len(expected)))
        whole = [one.detach() for one in parts("unshard", layer.unshard(), *names)]
        if (found := [one.shape for one in whole]) != expected:
            got, wanted = (", ".join(str(tuple(one)) for one in shape) for shape in (found, expected))
            raise InputError("unshard() returned parameters of the wrong shapes", got=got, expected=wanted)
        answers |= {f"layer {number_of}: w{i}": array(f"weight {i}", one) for i, one in enumerate(whole)}
    return answers


def cut_layer(both: torch.Tensor, form: int, number: int) -> tuple[Callable[..., torch.Tensor], list[torch.Tensor]]:
    """A layer's function and its weights: views of a matrix that has the bias as its last row.

    Form 0: a matrix and a bias, without axes if it is one number. Form 1: the matrix transposed, an empty weight, the
    bias; only every other weight requires a gradient. Form 2: one weight. Form 3: each number of the bias alone, then
    the matrix.
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


def zero_step_cost(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `zero_step_cost` for every stage: bytes kept, elements sent."""
    answers: Arrays = {}
    for stage in range(4):
        got = artifact.zero_step_cost(int(arrays["num_params"]), int(arrays["world_size"]), stage)
        kept, sent = pair("zero_step_cost", got, "kept", "sent")
        answers |= {f"stage {stage}: bytes kept": count("bytes kept", kept)}
        answers |= {f"stage {stage}: elements sent": count("elements sent", sent)}
    return answers


# --- checkpoints ------------------------------------------------------------------------------------------------------


BFLOAT16 = "bfloat16"
"""The name of an entry of this dtype, which crosses as bytes of whole numbers."""
NO_STATES = ("weights", "position", "random")
"""Entries that are no states of the inner optimizer."""
DOUBLED = "from a part whose weights were doubled, "
"""Prefix of what follows from the last load."""


def _read_parts(arrays: Arrays) -> list[dict[str, torch.Tensor]]:
    """Read the states of all ranks, whose entries are arrays named "weights of 0" and so on."""
    names = [name.removesuffix(" of 0") for name in arrays if name.endswith(" of 0")]
    count = sum(name.startswith("weights of ") for name in arrays)
    parts = [{name: torch.from_numpy(arrays[f"{name} of {rank}"]).clone() for name in names} for rank in range(count)]
    return [{name: one.bfloat16() if name == BFLOAT16 else one for name, one in part.items()} for part in parts]


def reshard(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `reshard`: every entry of every new state, each a tensor with memory of its own."""
    given = _read_parts(arrays)
    names = [list(part) for part in given]
    got = artifact.reshard(given, int(arrays["size"]))
    hold("names of each part", [list(part) for part in given], names)
    if not isinstance(got, list | tuple) or not all(isinstance(part, dict) for part in got):
        raise InputError(
            "reshard returned no list of dictionaries", got=describe_value(got), expected="a dictionary for each rank"
        )
    answers = {"count": np.array(len(got))}
    for rank, part in enumerate(got):
        for name, one in part.items():
            half = isinstance(one, torch.Tensor) and one.dtype == torch.bfloat16
            answers[f"{name} of {rank}"] = array(f"{name} of part {rank}", one.to(torch.int8) if half else one)
    _require_own_memory(given, got)
    return answers


def _require_own_memory(given: Sequence[dict[str, torch.Tensor]], new: Sequence[dict[str, torch.Tensor]]) -> None:
    """Raise InputError if an entry of a new state is no tensor, or a view."""
    owners: dict[int, str] = {}
    for kind, states in (("old state", given), ("state", new)):
        entries = ((f"{name} of {kind} {i}", one) for i, state in enumerate(states) for name, one in state.items())
        for name, one in entries:
            _require_tensor(name, one)
            if (held := one.untyped_storage().nbytes()) > one.nbytes:
                what = f"{name} is a view: torch.save would write all the memory that it is a view of"
                raise InputError(what, got=f"{held} bytes", expected=f"{one.nbytes} bytes", help="clone() it")
            if held and (owner := owners.setdefault(one.untyped_storage().data_ptr(), name)) != name:
                raise InputError(f"{name} shares memory with {owner}", help="clone() it")


def _require_tensor(name: str, one: Any) -> None:
    if not isinstance(one, torch.Tensor):
        raise InputError(f"{name} is no tensor", got=describe_value(one), expected="a dictionary of tensors")


def resume(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Train with random noise, save, lose everything, and twice load and resume: all weights after each step.

    The last state is loaded once more with its weights doubled, which shows that they come from the state.
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
        answers |= named_arrays(f"{again}loaded: w", (weight.detach() for weight in weights))
        if again != DOUBLED:
            answers |= _train(optimizer, weights, data[stop:], f"{again}later step")
        if again == "again, ":
            saved = artifact.save_state(optimizer, int(position))
            answers |= _describe(saved, most, again)
            part = {name: 2 * one if name == "weights" else one for name, one in saved.items()}
    return answers


def _load(artifact: Any, optimizer: Any, part: dict[str, torch.Tensor]) -> Any:
    """Load a state into an optimizer that has another one, which must be replaced."""
    states = optimizer.optimizer.state
    if len(part) > len(NO_STATES):
        states[optimizer.shard]["of the new one"] = torch.tensor(1)
    position = artifact.load_state(optimizer, part)
    if "of the new one" in states[optimizer.shard]:
        raise InputError("load_state keeps states of the new optimizer that are not in the checkpoint")
    return position


def _describe(part: Any, most: int, where: str) -> Arrays:
    """Number of axes of each entry, and states without axes. Raises InputError if an entry is too long."""
    if not isinstance(part, dict):
        raise InputError(
            "save_state returned no dictionary", got=describe_value(part), expected="a dictionary of tensors"
        )
    for name, one in part.items():
        _require_tensor(f"save_state's {name!r}", one)
        if name != "random" and one.numel() > most:
            what = f"save_state's {name!r} is more than this rank's shard"
            raise InputError(what, got=f"{one.numel()} elements", expected=f"at most {most}")
    axes = {f"axes of {name!r}": np.array(one.ndim) for name, one in part.items()}
    return axes | {
        f"{where}saved {name}": array(f"save_state's {name!r}", part[name]) for name in DTYPES if name in part
    }


def _train(optimizer: Any, weights: list[torch.Tensor], data: torch.Tensor, name: str) -> Arrays:
    """Make a step for each number in data, with random noise unless frozen: all weights after each."""
    answers: Arrays = {}
    for step, factor in enumerate(data):
        for weight in weights:
            noise = torch.randn(weight.shape, dtype=weight.dtype)
            weight.grad = weight.detach() * factor + noise if weight.requires_grad else None
        optimizer.reduce_gradients()
        optimizer.step()
        answers |= named_arrays(f"{name} {step}: w", (weight.detach() for weight in weights))
    return answers


def _go_astray(optimizer: Any, weights: list[torch.Tensor]) -> None:
    """Make one more step, which must not change what was saved."""
    for weight in weights:
        weight.grad = torch.randn(weight.shape, dtype=weight.dtype)
    optimizer.reduce_gradients()
    optimizer.step()
