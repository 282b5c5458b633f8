"""Call the learner's code for lab 08's checks, on each rank with the arrays of that rank.

Later functions get right earlier ones (`lend`), so that a mistake costs points once. `_DDP` and `_ShardedOptimizer` are
right for what follows them, and fail the checks of their own names: one needs parameters of equal shapes, the other
sends twice as much as it may.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

# torch imports it in the first backward pass from a given gradient: before a limit on the learner's code begins.
import torch.fx.experimental.symbolic_shapes

from mlsys_checks.sandboxed.lending import lend
from mlsys_checks.sandboxed.spec import Arrays, Reveal
from mlsys_checks.sandboxed.values import array, count, describe_value, number, numbers, pair, parts, whole
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank


# --- right predecessors -----------------------------------------------------------------------------------------------


def _all_reduce(group: Rank, x: torch.Tensor) -> torch.Tensor:
    """Sum over all ranks, computed by rank 0."""
    if group.rank:
        group.send(x, 0)
        return group.recv(0)
    total = sum((group.recv(other) for other in range(1, group.size)), x)
    for other in range(1, group.size):
        group.send(total, other)
    return total


def _flatten_grads(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """All gradients, flattened and concatenated, with zeros for None."""
    return torch.cat([(torch.zeros_like(one) if one.grad is None else one.grad).reshape(-1) for one in parameters])


def _broadcast_tensors(tensors: Iterable[Any], group: Rank) -> None:
    for one in tensors:
        for other in range(1, group.size) if group.rank == 0 else ():
            group.send(one.data, other)
        if group.rank:
            one.data.copy_(group.recv(0))


def _loss_weights(tokens: Sequence[int], group: Rank) -> list[float]:
    total = int(_all_reduce(group, torch.tensor([sum(tokens)])))
    return [count * group.size / total for count in tokens]


def _assign_buckets(parameters: Sequence[torch.Tensor], bucket_bytes: int) -> list[list[torch.Tensor]]:
    buckets: list[list[torch.Tensor]] = []
    for one in reversed(parameters):
        if buckets and sum(other.nbytes for other in (*buckets[-1], one)) <= bucket_bytes:
            buckets[-1].append(one)
        else:
            buckets.append([one])
    return buckets


class _DDP:
    """DDP for parameters of equal shapes."""

    def __init__(self, parameters: Sequence[torch.Tensor], group: Rank, bucket_bytes: int = 25 << 20) -> None:
        self.group, self.require_backward_grad_sync = group, True
        self.buckets = _assign_buckets(parameters, bucket_bytes)
        self.waiting, self.ready = list(self.buckets), set[torch.Tensor]()
        _broadcast_tensors(parameters, group)
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self.mark_ready)  # type: ignore[no-untyped-call]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = True

    def mark_ready(self, parameter: torch.Tensor) -> None:
        if self.require_backward_grad_sync:
            self.ready.add(parameter)
            while self.waiting and self.ready.issuperset(self.waiting[0]):
                self.average_bucket(self.waiting.pop(0))

    def average_bucket(self, bucket: Sequence[torch.Tensor]) -> None:
        mean = _all_reduce(self.group, _flatten_grads(bucket)) / self.group.size
        for parameter, row in zip(bucket, mean.reshape(len(bucket), *bucket[0].shape), strict=True):
            parameter.grad = row.clone()

    def finish_gradient_synchronization(self) -> None:
        for bucket in self.waiting:
            self.average_bucket(bucket)
        self.waiting, self.ready = list(self.buckets), set()


class _ShardedOptimizer:
    """ZeRO-1 by all-reduces: one of all gradients, and one of zero-padded shards that gathers the weights."""

    def __init__(self, params: Sequence[torch.Tensor], optimizer_class: Any, group: Rank, **options: Any) -> None:
        self.params, self.group = list(params), group
        _broadcast_tensors(params, group)
        flat = torch.cat([one.detach().reshape(-1) for one in params])
        self._own = torch.arange(len(flat)).tensor_split(group.size)[group.rank]
        self.shard = flat[self._own]  # indexed by a tensor: a copy
        self.optimizer = optimizer_class([self.shard], **options)

    def reduce_gradients(self) -> None:
        self.shard.grad = _all_reduce(self.group, _flatten_grads(self.params))[self._own] / self.group.size

    def step(self) -> None:
        self.optimizer.step()
        self.gather_weights()

    def gather_weights(self) -> None:
        sizes = [one.numel() for one in self.params]
        flat = torch.zeros(sum(sizes), dtype=self.shard.dtype)
        flat[self._own] = self.shard.detach()
        for one, chunk in zip(self.params, torch.split(_all_reduce(self.group, flat), sizes), strict=True):
            one.data.copy_(chunk.view(one.shape))


FUNCTIONS = {"broadcast_tensors": _broadcast_tensors, "loss_weights": _loss_weights, "assign_buckets": _assign_buckets}
"""Right functions of Tasks 1 and 2, lent to the functions and classes that call them."""
CLASSES = {"DDP": _DDP, "ShardedOptimizer": _ShardedOptimizer}
"""Right classes of Tasks 2 and 4, lent to Tasks 3 and 6."""


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
    tensors = [one.detach() if isinstance(one, torch.Tensor) else one for one in tensors]
    return {f"{name}{i}": array(f"{name}{i}", one) for i, one in enumerate(tensors)}


def take_gradients(where: str, weights: Sequence[Any]) -> Arrays:
    """Read the gradients of weights, and overwrite them. Raises InputError if two of them share memory."""
    named = {f"w{i}.grad{where}": weight.grad for i, weight in enumerate(weights)}
    if missing := [name for name, grad in named.items() if grad is None]:
        expected = "the mean over ranks: unused parameters count as zeros, ranks without tokens take part too"
        raise InputError(f"{missing[0]} is None", got="None", expected=expected)
    answers = {name: array(name, grad) for name, grad in named.items()}
    grads = {name: grad for name, grad in named.items() if isinstance(grad, torch.Tensor)}
    for i, grad in enumerate(grads.values()):
        grad.detach().fill_(i)
    for i, (name, grad) in enumerate(grads.items()):
        if not bool((grad == i).all()):
            what = f"{name} shares memory with another gradient: writing to one changes both"
            raise InputError(what, got="two views of the same elements", expected="elements of its own: clone() them")
    return answers


def require_unchanged(function: str, argument: str, now: object, given: object) -> None:
    """Raise InputError if a function has changed its argument."""
    if now != given:
        raise InputError(f"{function} changes its argument `{argument}`", got=now, expected=f"{given}: work on a copy")


def broadcast_tensors(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `broadcast_tensors` on parameters of the learner's engine, and on as many of torch's; some may be frozen."""
    tensors = leaves(arrays)
    ours = [
        artifact.Tensor(weight, requires_grad=tensor.requires_grad)
        for weight, tensor in zip(named(arrays, "w"), tensors, strict=True)
    ]
    artifact.broadcast_tensors(ours, rank)
    artifact.broadcast_tensors(tensors, rank)
    return named_arrays("w", ours) | named_arrays("torch's w", tensors)


def loss_weights(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `loss_weights` for the counts of each step: a number for each micro-batch."""
    answers: Arrays = {}
    for step, given in enumerate(arrays["tokens"].tolist()):
        tokens = list(given)
        got = artifact.loss_weights(tokens, rank)
        require_unchanged("loss_weights", "tokens", tokens, given)
        names = [f"weights[{i}] of step {step}" for i in range(len(given))]
        answers |= numbers("loss_weights", list(got) if isinstance(got, torch.Tensor) and got.ndim else got, *names)
    return answers | {"count": np.array(len(answers))}


def backward_and_average(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `backward_and_average` for a mean loss on the learner's engine: every gradient."""
    weights = [artifact.Tensor(weight, requires_grad=True) for weight in named(arrays, "w")]
    loss: Any = artifact.Tensor(torch.zeros((), dtype=weights[0].data.dtype), requires_grad=True)
    for weight, x, used in zip(weights, named(arrays, "x"), arrays["used"].tolist(), strict=True):
        if used:
            loss = loss + (weight * weight * artifact.Tensor(x)).sum()
    with lend(artifact, **FUNCTIONS):
        artifact.backward_and_average(loss, int(arrays["tokens"]), weights, rank)
    return take_gradients("", weights)


# --- buckets ----------------------------------------------------------------------------------------------------------


def assign_buckets(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `assign_buckets` on parameters without storage: the bucket of each parameter, -1 if it is in none."""
    parameters = [torch.empty(size // 4, dtype=torch.float32, device="meta") for size in arrays["sizes"].tolist()]
    given = list(parameters)
    buckets = artifact.assign_buckets(given, int(arrays["bucket_bytes"]))
    require_unchanged("assign_buckets", "parameters", len(given), len(parameters))
    if not isinstance(buckets, list | tuple) or not all(isinstance(bucket, list | tuple) for bucket in buckets):
        got, expected = describe_value(buckets), "a list of lists of parameters"
        raise InputError("assign_buckets returned no list of lists", got=got, expected=expected)
    left, found = {id(one): i for i, one in enumerate(parameters)}, np.full(len(parameters), -1)
    for i, bucket in enumerate(buckets):
        for one in bucket:
            if id(one) not in left:
                what = f"bucket {i} holds something that is no parameter, or one that was in the buckets before"
                raise InputError(what, got=describe_value(one), expected="the parameters themselves, each once")
            found[left.pop(id(one))] = i
    return {"number of buckets": np.array(len(buckets)), "bucket of each parameter": found}


Loss = Callable[[], torch.Tensor]


def _descend(
    weights: list[torch.Tensor], reveal: Reveal, arrays: Arrays, run_step: Callable[[list[Loss], list[int]], object]
) -> Arrays:
    """Run steps of plain descent, each on a loss and a count of tokens for each micro-batch: all gradients.

    All losses copy their x to the same buffers, so torch refuses the backward pass of a loss once the next has been
    computed. `turns` are the backward passes whose signs a loss asks for, call after call.
    """
    buffers = [torch.empty(weight.shape, dtype=torch.float64) for weight in weights]

    def compute_loss(count: int, batch: int, turns: Iterator[int]) -> torch.Tensor:
        """Multiply h by 1 + w·x, layer after layer in this rank's order.

        The backward pass multiplies the gradient by a sign after each layer, which it asks for then; the sign of the
        result comes first. With a `value`, the loss has this value and its gradient stays the same.
        """
        if not count:
            what = "the loss of a micro-batch without tokens was called, which has no mean"
            raise InputError(what, got="a call", expected="no call: skip micro-batches whose count of tokens is 0")
        first = next(turns) * (len(weights) + 1)
        h = torch.ones((), dtype=weights[0].dtype, requires_grad=True) * 1
        for i in arrays["order"].tolist():
            h.register_hook(lambda gradient, i=i: gradient * reveal(first + i))  # type: ignore[no-untyped-call]
            if arrays["used"][batch, i]:
                x = buffers[i].copy_(torch.from_numpy(arrays[f"x{i}"])[batch])
                h = h * (1 + (weights[i] * x).sum())
            else:
                h = h * 1
        h = h * reveal(first + len(weights))
        return h - h.detach() + float(arrays["value"]) if "value" in arrays else h

    answers: Arrays = {}
    for step, tokens in enumerate(arrays["tokens"].tolist()):
        batches = range(step * len(tokens), (step + 1) * len(tokens))
        turns = [cycle(batches)] * len(tokens) if arrays["is_repeated"] else map(repeat, batches)
        losses: list[Loss] = [partial(compute_loss, *given) for given in zip(tokens, batches, turns, strict=True)]
        for weight in weights:
            weight.grad = None
        run_step(losses[:1] * len(losses) if arrays["is_repeated"] else losses, tokens)
        gradients = take_gradients(f" of step {step}", weights)
        for weight, gradient in zip(weights, gradients.values(), strict=True):
            weight.data = weight.data - 0.1 * torch.from_numpy(gradient)  # in new memory: no address identifies it
        answers |= gradients
    return answers


def ddp(artifact: Any, rank: Rank, reveal: Reveal, arrays: Arrays) -> Arrays:
    """Run steps of `DDP`, all backward passes but the last of each step under `no_sync()`: all gradients."""
    weights = leaves(arrays)
    with lend(artifact, **FUNCTIONS):
        ddp: Any = artifact.DDP(weights, rank, int(arrays["bucket_bytes"]))

        def run_step(losses: list[Loss], tokens: list[int]) -> None:
            with ddp.no_sync():
                for loss in losses[:-1]:
                    loss().backward()  # type: ignore[no-untyped-call]
            losses[-1]().backward()  # type: ignore[no-untyped-call]
            ddp.finish_gradient_synchronization()

        return _descend(weights, reveal, arrays, run_step)


def accumulate_gradients(artifact: Any, rank: Rank, reveal: Reveal, arrays: Arrays) -> Arrays:
    """Call `accumulate_gradients` step after step on a right `DDP`: all gradients."""
    weights = leaves(arrays)
    with lend(artifact, **FUNCTIONS, **CLASSES):
        ddp: Any = artifact.DDP(weights, rank, int(arrays["bucket_bytes"]))

        def run_step(losses: list[Loss], tokens: list[int]) -> None:
            given, counts = list(losses), list(tokens)
            artifact.accumulate_gradients(ddp, given, counts, rank)
            require_unchanged("accumulate_gradients", "tokens", counts, tokens)
            require_unchanged("accumulate_gradients", "losses", len(given), len(losses))
            if not ddp.require_backward_grad_sync:
                what = "accumulate_gradients(ddp, …) leaves ddp.require_backward_grad_sync False"
                raise InputError(what, got=False, expected="True, as before: `with ddp.no_sync():` sets it back")

        return _descend(weights, reveal, arrays, run_step)


# --- sharded optimizers and layers ------------------------------------------------------------------------------------


DTYPES = {"step": torch.int64, "rate": torch.float64, "on": torch.bool}
"""Dtypes of the states of `Momentum` that have no axes, by name."""
MOMENTA = {"momentum": 2, "slow momentum": 4}
"""What each momentum of `Momentum` is divided by in a step, by name."""


class Momentum:
    """An optimizer whose steps shrink, with three states without axes and two momenta, created in the first step.

    Raises InputError if the parameters' storage has more than `limit` elements, and for one that is no leaf, as torch.
    """

    def __init__(self, params: Iterable[torch.Tensor], lr: float, limit: int) -> None:
        self.params, self.lr = list(params), lr
        self.state: defaultdict[torch.Tensor, dict[str, torch.Tensor]] = defaultdict(dict)  # as torch's
        if (held := sum(one.untyped_storage().nbytes() // one.element_size() for one in self.params)) > limit:
            what, expected = "the optimizer holds more than this rank's shard", f"at most {limit}: clone() the chunk"
            raise InputError(what, got=f"{held} elements", expected=expected)
        if not all(one.is_leaf for one in self.params):
            what = "the optimizer got a tensor that is no leaf of the graph"
            raise InputError(what, got="the result of an operation", expected="a leaf: detach() the parameters")

    def step(self) -> None:
        """Move the parameters by their momenta."""
        for one in self.params:
            if one.grad is None:
                what = "optimizer.step() was called while shard.grad is None"
                raise InputError(what, got="None", expected="the chunk that reduce_gradients() sets")
            if not (state := self.state[one]):
                begin = {"step": 0, "rate": self.lr, "on": True}
                state |= {name: torch.tensor(value, dtype=DTYPES[name]) for name, value in begin.items()}
                state |= {name: torch.zeros_like(one.data) for name in MOMENTA}
            for name, dtype in DTYPES.items():
                if (found := state[name].dtype if name in state else None) != dtype:
                    what = f"after load_state(optimizer, state) the optimizer's state {name!r} has another dtype"
                    raise InputError(what, got=found, expected=f"{dtype}, as when it was saved: load a clone() of it")
            state["step"] += 1
            state["rate"] *= 0.9
            for name, divisor in MOMENTA.items():
                state[name].div_(divisor).add_(one.grad)
            one.data -= float(state["rate"]) / int(state["step"]) * sum(state[name] for name in MOMENTA)


def _max_shard_elements(weights: Iterable[torch.Tensor], rank: Rank) -> int:
    """Elements of the longest shard."""
    return -(-sum(weight.numel() for weight in weights) // rank.size)


def _create_optimizer(artifact: Any, weights: list[torch.Tensor], group: Rank, arrays: Arrays) -> Any:
    """Create a `ShardedOptimizer` of a momentum that has room for this rank's shard."""
    lr, limit = float(arrays["lr"]), _max_shard_elements(weights, group)
    return artifact.ShardedOptimizer(weights, Momentum, group, lr=lr, limit=limit)


def _train(optimizer: Any, weights: list[torch.Tensor], arrays: Arrays, steps: range, name: str) -> Arrays:
    """Make steps on the case's gradients, with random noise if there is a `seed`: all weights after each."""
    answers: Arrays = {}
    for step in steps:
        for i, weight in enumerate(weights):
            gradient = torch.from_numpy(arrays[f"g{i}"])[step]
            if "seed" in arrays:
                gradient = gradient + torch.randn(weight.shape, dtype=weight.dtype)
            is_used = bool(arrays["used"][step, i])
            weight.grad = torch.empty_like(weight).copy_(gradient).detach() if is_used else None
        optimizer.reduce_gradients()
        optimizer.step()
        answers |= named_arrays(f"{name} {step}: w", weights)
    return answers


def sharded_optimizer(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Step after step of `ShardedOptimizer` on gradients that the case gives: all weights, at first and after each."""
    weights = leaves(arrays)
    with lend(artifact, **FUNCTIONS):
        optimizer = _create_optimizer(artifact, weights, rank, arrays)
        answers = named_arrays("at the start: w", weights)
        return answers | _train(optimizer, weights, arrays, range(len(arrays["g0"])), "step")


def clip_grad_norm(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `clip_grad_norm` on shards with this rank's part of a gradient: the norm, and the gradients then."""
    gradients = np.array_split(arrays["part"], 1 + len(arrays["part"]) // 3)
    shards = [torch.zeros(len(gradient), dtype=torch.float64) for gradient in gradients]
    for shard, gradient in zip(shards, gradients, strict=True):
        shard.grad = torch.from_numpy(gradient).clone()
    norm = artifact.clip_grad_norm(list(shards), float(arrays["max_norm"]), rank)
    return {"norm": number("norm", norm), "gradients": np.concatenate([array("shard.grad", s.grad) for s in shards])}


def _affine(x: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
    """A layer whose bias, if any, consists of several parameters."""
    return x @ weight + torch.cat([one.reshape(-1) for one in bias]) if bias else x @ weight


def cut_bias(bias: Any, form: int) -> list[Any]:
    """The parameters that a bias consists of.

    Form 0: one, without axes if it is one number; form 1: an empty one and the bias; form 2: none; form 3: each number.
    """
    return [[bias[0] if len(bias) == 1 else bias], [bias[:0], bias], [], list(bias)][form]


def _create_unit(artifact: Any, rank: Rank, arrays: Arrays, i: int) -> Any:
    """Create the `FSDPUnit` of layer i; every other parameter requires a gradient."""
    weight, bias = (torch.from_numpy(arrays[f"{name}{i}"]).clone() for name in "wb")
    weight = weight.T.contiguous().T if arrays["transposed"] else weight
    given = [weight, *cut_bias(bias, int(arrays["form"]))]
    parameters = [one.detach().requires_grad_((i + place) % 2 == 0) for place, one in enumerate(given)]
    unit = artifact.FSDPUnit(_affine, parameters, rank)
    limit = _max_shard_elements(parameters, rank)
    if (held := unit.shard.numel()) > limit:
        what = "FSDPUnit(layer, parameters, group) keeps more in unit.shard than this rank's chunk"
        raise InputError(what, got=f"{held} elements", expected=f"at most {limit}: split the parameters over the ranks")
    if held and unit.shard.untyped_storage().data_ptr() in [one.untyped_storage().data_ptr() for one in parameters]:
        what = "FSDPUnit(layer, parameters, group) leaves in unit.shard a view of the parameters"
        raise InputError(what, got="memory that is theirs too", expected="memory of its own: clone() the chunk")
    return unit


def fsdp_unit(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Train layers of `FSDPUnit`, whose shards are scaled between forward and backward pass.

    Returns results, the gradient of x, and all parameters after the last step of plain descent.
    """
    units = [_create_unit(artifact, rank, arrays, i) for i in range(int(arrays["depth"]))]
    needs_grad, answers = bool(arrays["needs_grad"]), dict[str, np.ndarray]()
    x = torch.from_numpy(arrays["x"][0]).clone().requires_grad_(needs_grad)
    for step in range(len(arrays["x"])):
        x.data.copy_(torch.from_numpy(arrays["x"][step]))  # the same tensor in each step
        x.grad, h = None, x
        for unit in units * int(arrays["passes"]):
            h = (h + unit(h) if arrays["residual"] else unit(h)).tanh()
        answers[f"result of step {step}"] = array("the result", h.detach())
        for unit in units:
            unit.shard.data *= float(arrays["growth"])
            unit.shard.grad = None
        for times_left in reversed(range(int(arrays["backward"]))):
            h.backward(torch.from_numpy(arrays["g"][step]), retain_graph=times_left > 0)  # type: ignore[no-untyped-call]
        if x.requires_grad != needs_grad:
            what = "after backward() the x that unit(x) was called with has another requires_grad"
            raise InputError(what, got=x.requires_grad, expected=f"{needs_grad}, as before: detach() x first")
        answers |= {f"x.grad of step {step}": array("x.grad", x.grad)} if needs_grad else {}
        for unit in units:
            if unit.shard.grad is None:
                what = "after unit(x) and backward(), unit.shard.grad is None"
                expected = "this rank's chunk of the mean gradient: is shard an argument of FSDPFunction.apply?"
                raise InputError(what, got="None", expected=expected)
            unit.shard.data -= 0.1 * unit.shard.grad
    for i, unit in enumerate(units):
        names = [f"parameter {k}" for k in range(1 + len(cut_bias(arrays[f"b{i}"], int(arrays["form"]))))]
        answers |= named_arrays(f"unshard() of layer {i}: parameter ", parts("unit.unshard()", unit.unshard(), *names))
    return answers


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


def _read_states(arrays: Arrays) -> list[dict[str, torch.Tensor]]:
    """Read the states of all ranks, whose entries are arrays named "weights of 0" and so on."""
    names = [name.removesuffix(" of 0") for name in arrays if name.endswith(" of 0")]
    count = sum(name.startswith("weights of ") for name in arrays)
    return [{name: torch.from_numpy(arrays[f"{name} of {rank}"]).clone() for name in names} for rank in range(count)]


def reshard(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `reshard`: every entry of every new state, each a tensor with memory of its own."""
    given = _read_states(arrays)
    names = [list(state) for state in given]
    got = artifact.reshard(given, int(arrays["size"]))
    require_unchanged("reshard", "states", [list(state) for state in given], names)
    if not isinstance(got, list | tuple) or not all(isinstance(state, dict) for state in got):
        expected = "a dictionary for each rank"
        raise InputError("reshard returned no list of dictionaries", got=describe_value(got), expected=expected)
    answers = {"count": np.array(len(got))}
    for rank, state in enumerate(got):
        for name, one in state.items():
            _require_tensor(f"{name} of state {rank}", one)
            answers[f"{name} of {rank}"] = array(f"{name} of state {rank}", one)
    _require_own_memory(given, got)
    return answers


def _require_own_memory(given: Sequence[dict[str, torch.Tensor]], new: Sequence[dict[str, torch.Tensor]]) -> None:
    """Raise InputError if an entry of a new state is a view."""
    owners: dict[int, str] = {}
    for kind, states in (("old state", given), ("state", new)):
        entries = ((f"{name} of {kind} {i}", one) for i, state in enumerate(states) for name, one in state.items())
        for name, one in entries:
            if (held := one.untyped_storage().nbytes()) > one.nbytes:
                what = f"{name} is a view: torch.save would write all the memory that it is a view of"
                raise InputError(what, got=f"{held} bytes", expected=f"{one.nbytes} bytes: clone() it")
            if held and (owner := owners.setdefault(one.untyped_storage().data_ptr(), name)) != name:
                raise InputError(f"{name} shares memory with {owner}", got="a view", expected="a copy: clone() it")


def _require_tensor(name: str, one: Any) -> None:
    if not isinstance(one, torch.Tensor):
        raise InputError(f"{name} is no tensor", got=describe_value(one), expected="a dictionary of tensors")


def resume(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Train a right `ShardedOptimizer`, save, double the saved weights, and twice load and resume: all weights.

    Doubled weights can come from the state alone.
    """
    torch.manual_seed(int(arrays["seed"]))
    weights, stop, steps = leaves(arrays), int(arrays["stop"]), len(arrays["g0"])
    with lend(artifact, **FUNCTIONS, **CLASSES):
        optimizer = _create_optimizer(artifact, weights, rank, arrays)
        answers = _train(optimizer, weights, arrays, range(stop), "step")
        state = artifact.save_state(optimizer, int(arrays["position"]))
        answers |= _count_axes(state, _max_shard_elements(weights, rank))
        _train(optimizer, weights, arrays, range(1), "not saved")  # must not change what was saved
        state = {name: 2 * one if name == "weights" else one for name, one in state.items()}
        for load in ("first load", "second load"):
            torch.manual_seed(0)
            weights = [torch.full_like(weight, 7.0).requires_grad_(weight.requires_grad) for weight in weights]
            optimizer = _create_optimizer(artifact, weights, rank, arrays)
            position = _load(artifact, optimizer, state)
            answers[f"{load}: position"] = whole("the position that load_state(optimizer, state) returned", position)
            position += 1  # as training counts, which leaves the state as it is
            answers |= named_arrays(f"{load}: w", weights)
            answers |= _train(optimizer, weights, arrays, range(stop, steps), f"{load}, step")
    return answers


def _load(artifact: Any, optimizer: Any, state: dict[str, torch.Tensor]) -> Any:
    """Load a state into an optimizer that has another one, which must be replaced."""
    states, mark = optimizer.optimizer.state, "of the new optimizer"
    if "step" in state:
        states[optimizer.shard][mark] = torch.tensor(1)
    position = artifact.load_state(optimizer, state)
    if mark in states[optimizer.shard]:
        what = "load_state(optimizer, state) keeps an entry of the new optimizer's state that is not in the checkpoint"
        raise InputError(what, got=f"entry {mark!r}", expected="the saved entries alone: replace the whole dictionary")
    return position


def _count_axes(state: Any, limit: int) -> Arrays:
    """Number of axes of each saved entry. Raises InputError if an entry is no tensor or too long."""
    if not isinstance(state, dict):
        what, got = "save_state(optimizer, position) returned no dictionary", describe_value(state)
        raise InputError(what, got=got, expected="a dictionary of tensors: is `return` missing?")
    for name, one in state.items():
        _require_tensor(f"save_state's {name!r}", one)
        if name != "random" and one.numel() > limit:
            what = f"save_state's {name!r} is more than this rank's shard"
            raise InputError(what, got=f"{one.numel()} elements", expected=f"at most {limit}: save optimizer.shard")
    return {f"axes of save_state's {name!r}": np.array(one.ndim) for name, one in state.items()}
