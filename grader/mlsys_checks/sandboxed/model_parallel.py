"""Call the learner's code for lab 09's checks: layers, losses, pipelines, rings, experts and layouts.

Later functions get right earlier ones (`lend`). A stand-in is right for its use but fails the check of its own name:
the lent shard is a view, and lent communication sends a second message with each.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.fx.experimental.symbolic_shapes  # torch does this in the first backward pass, where a limit runs

from mlsys_checks.sandboxed.lending import lend
from mlsys_checks.sandboxed.repeated_calls import call_twice
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import array, describe_value, integer, number, parts, whole
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank

KINDS = ("forward", "backward")
"""Kinds of a pipeline's actions, by the number in which they cross."""
PARTS = ("compute", "bubble", "link", "network")
DEGREES = ("data", "tensor", "pipeline")
INDICES = ("token_indices", "topk_index", "tokens_per_expert")


def _tensors(arrays: Arrays, *names: str) -> list[torch.Tensor]:
    return [torch.from_numpy(arrays[name]).clone() for name in names]


def _linear(artifact: Any, arrays: Arrays, name: str = "") -> Any:
    """A full linear layer, made of the arrays `weight` and `bias`."""
    weight, bias = _tensors(arrays, f"{name}weight", f"{name}bias")
    linear = artifact.nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
    linear.weight, linear.bias = artifact.nn.Parameter(weight), artifact.nn.Parameter(bias)
    return linear


def _values(name: str, got: Any, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """The numbers of a result; InputError unless it is a tensor, of this shape if one is given."""
    if got is not None and not isinstance(got, torch.Tensor):
        raise InputError(f"{name} is no tensor", got=describe_value(got), expected="a torch.Tensor")
    found = array(name, got.detach() if got is not None else None)
    if shape is not None and found.shape != shape:
        raise InputError(f"{name} has the wrong shape", got=str(found.shape), expected=str(shape))
    return found


def _listed(name: str, got: Any, count: int) -> list[Any]:
    """The entries of a list or tuple of this length."""
    if not isinstance(got, list | tuple) or len(got) != count:
        raise InputError(
            f"{name} did not return a list of {count}", got=describe_value(got), expected=f"list of {count}"
        )
    return list(got)


def _unchanged(name: str, given: torch.Tensor, before: np.ndarray, *, wants: bool = False) -> None:
    """Raise InputError if a tensor has other values than before the call, or another `requires_grad`."""
    if not np.array_equal(given.detach().numpy(), before, equal_nan=True):
        what = f"{name}, which your code was given, has other values after the call"
        raise InputError(what, got=_first_change(given, before), expected="no change: compute in a new tensor")
    if given.requires_grad != wants:
        what = f"{name}, which your code was given, has another requires_grad after the call"
        raise InputError(what, got=str(given.requires_grad), expected=f"{wants}: detach() or clone() it first")


def _first_change(given: torch.Tensor, before: np.ndarray) -> str:
    after = given.detach().numpy()
    at = tuple(np.argwhere(after != before)[0].tolist())
    return f"{after[at]:.6g} at {list(at)}, which was {before[at]:.6g}"


def _overwrite(name: str, source: str, results: dict[str, torch.Tensor], given: Sequence[torch.Tensor]) -> None:
    """Overwrite what was given; InputError if a result changes with it."""
    before = {key: one.detach().clone() for key, one in results.items()}
    for one in given:
        one.data.fill_(7.0)
    for key, one in results.items():
        if not torch.equal(one.detach(), before[key]):
            what = f"{key} shares its memory with {source}: the check set {source} to 7 after {name}, and {key} changed"
            raise InputError(what, got="a view", expected="a copy: clone() it")


def _backward(name: str, result: Any, gradient: np.ndarray, *, retain: bool = False) -> None:
    """Run the backward pass from a result; InputError if autograd knows no way back."""
    if not isinstance(result, torch.Tensor) or not result.requires_grad:
        got = "requires_grad is False" if isinstance(result, torch.Tensor) else describe_value(result)
        expected = "a tensor that autograd has recorded: was it detached, or computed under no_grad()?"
        raise InputError(f"the result of {name} has no backward pass", got=got, expected=expected)
    given = torch.from_numpy(gradient).clone()
    result.backward(given, retain_graph=retain)  # type: ignore[no-untyped-call]
    _unchanged(f"the gradient that backward() of {name} got", given, gradient)


def _gradients(name: str, owner: Any, *attributes: str) -> Arrays:
    """Gradients of a layer's parameters."""
    found: Arrays = {}
    for attribute in attributes:
        parameter = owner
        for one in attribute.split("."):
            parameter = getattr(parameter, one, None)
        if not isinstance(parameter, torch.Tensor):
            got = describe_value(parameter)
            raise InputError(f"{name} has no parameter `{attribute}`", got=got, expected="an nn.Parameter")
        found[f"{attribute}.grad"] = _values(f"{attribute}.grad", parameter.grad)
    return found


def _exchange(rank: Rank, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """All-to-all in which a message of 8 bytes goes ahead of each part."""
    received = [part.clone() for part in parts]
    for step in range(1, rank.size):
        to, source = (rank.rank + step) % rank.size, (rank.rank - step) % rank.size
        requests = [rank.isend(torch.zeros(1, dtype=torch.int64), to), rank.isend(parts[to], to)]
        rank.recv(source)
        received[source] = rank.recv(source)
        for request in requests:
            request.wait()
    return received


def _sum(rank: Rank, x: torch.Tensor) -> torch.Tensor:
    return torch.stack(_exchange(rank, [x.detach()] * rank.size)).sum(0)


class _Copy:
    @staticmethod
    def apply(x: torch.Tensor, group: Rank) -> torch.Tensor:
        copied = x.view_as(x)
        if copied.requires_grad:
            copied.register_hook(lambda gradient: _sum(group, gradient))  # type: ignore[no-untyped-call]
        return copied


class _Reduce:
    @staticmethod
    def apply(x: torch.Tensor, group: Rank) -> torch.Tensor:
        return x + (_sum(group, x) - x.detach())


def _shard(parameter: Any, dim: int, group: Rank) -> Any:
    return type(parameter)(parameter.detach().chunk(group.size, dim)[group.rank])


class _Column:
    def __init__(self, linear: Any, group: Rank) -> None:
        self.weight, self.bias = _shard(linear.weight, 0, group), _shard(linear.bias, 0, group)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = x @ self.weight.T + self.bias
        return product


class _Row:
    def __init__(self, linear: Any, group: Rank) -> None:
        self.weight, self.bias, self._group = _shard(linear.weight, 1, group), linear.bias, group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = _Reduce.apply(x @ self.weight.T, self._group) + self.bias
        return total


LENT = {
    "shard_parameter": _shard,
    "CopyToTensorParallelRegion": _Copy,
    "ReduceFromTensorParallelRegion": _Reduce,
    "ColumnParallelLinear": _Column,
    "RowParallelLinear": _Row,
}


def take_part(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `shard_parameter`, then overwrite the full parameter."""
    parameter = artifact.nn.Parameter(_tensors(arrays, "parameter")[0])
    shard = artifact.shard_parameter(parameter, int(arrays["dim"]), rank)
    if not isinstance(shard, artifact.nn.Parameter):
        got = describe_value(shard)
        raise InputError("shard_parameter did not return an nn.Parameter", got=got, expected="an nn.Parameter")
    _unchanged("parameter", parameter, arrays["parameter"], wants=True)
    answer = _values("shard", shard)
    _overwrite("shard_parameter", "parameter", {"the shard": shard}, [parameter])
    return {"shard": answer}


def _run_layer(
    name: str, artifact: Any, rank: Rank, arrays: Arrays, apply: Callable[[Any, torch.Tensor], Any]
) -> Arrays:
    """Run a layer forward and backward; where x requires a gradient, one comes from elsewhere too."""
    wants = bool(arrays["x_wants"])
    x = _tensors(arrays, "x")[0].requires_grad_(wants)
    with lend(artifact, shard_parameter=_shard):
        layer = getattr(artifact, name)(_linear(artifact, arrays), rank)
        y = apply(layer, x)
    answers = {f"result of {name}": _values(f"the result of {name}", y, arrays["gradient"].shape)}
    _backward(name, y, arrays["gradient"])
    if wants:
        x.sum().backward()  # type: ignore[no-untyped-call]
        answers["x.grad, of which 1 comes from elsewhere"] = _values("x.grad", x.grad)
    _unchanged("x", x, arrays["x"], wants=wants)
    answers |= _gradients(name, layer, "weight", "bias")
    return answers | {f"bias of {name}": _values("bias", layer.bias)}


def _run_region(name: str, artifact: Any, rank: Rank, given: np.ndarray) -> Arrays:
    """Apply an autograd function to r + 1 times a column-major array on rank r; run backward with the same."""
    own = np.asfortranarray(given * (rank.rank + 1))
    x = torch.from_numpy(own).clone().requires_grad_()
    y = getattr(artifact, name).apply(x, rank)
    answers = {f"result of {name}": _values(f"the result of {name}", y, own.shape)}
    _backward(name, y, own)
    _unchanged("x", x, own, wants=True)
    return answers | {f"x.grad through {name}": _values("x.grad", x.grad)}


def column_linear(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Run `CopyToTensorParallelRegion` by itself, then before a `ColumnParallelLinear`."""
    answers = _run_region("CopyToTensorParallelRegion", artifact, rank, arrays["x"])

    def apply(layer: Any, x: torch.Tensor) -> Any:
        return layer(artifact.CopyToTensorParallelRegion.apply(x, rank))

    return answers | _run_layer("ColumnParallelLinear", artifact, rank, arrays, apply)


def row_linear(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Run `ReduceFromTensorParallelRegion` by itself, then in a `RowParallelLinear`."""
    answers = _run_region("ReduceFromTensorParallelRegion", artifact, rank, arrays["gradient"])
    return answers | _run_layer("RowParallelLinear", artifact, rank, arrays, lambda layer, x: layer(x))


def parallel_mlp(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Run a `ParallelMLP` forward and backward several times, so that gradients add up; the last x is data.

    The other x get a gradient from elsewhere too.
    """
    answers: Arrays = {}
    with lend(artifact, **LENT):
        mlp = artifact.ParallelMLP(_linear(artifact, arrays, "up."), _linear(artifact, arrays, "down."), rank)
        for step, data in enumerate(arrays["x"]):
            wants = step < len(arrays["x"]) - 1
            x = torch.from_numpy(data).clone().requires_grad_(wants)
            y, gradient = mlp(x), arrays["gradient"][step]
            answers[f"result of the MLP, call {step}"] = _values("the result of ParallelMLP", y, gradient.shape)
            _backward("ParallelMLP", y, gradient)
            if wants:
                x.sum().backward()  # type: ignore[no-untyped-call]
                answers[f"x.grad in call {step}, of which 1 comes from elsewhere"] = _values("x.grad", x.grad)
            _unchanged("x", x, data, wants=wants)
    return answers | _gradients("ParallelMLP", mlp, "up.weight", "up.bias", "down.weight", "down.bias")


def cross_entropy(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `vocab_parallel_cross_entropy`, then its backward pass twice, with two gradients."""
    logits, targets = _tensors(arrays, "logits", "targets")
    loss = artifact.vocab_parallel_cross_entropy(logits.requires_grad_(), targets, rank)
    answers = {"loss": _values("the loss", loss, ())}
    _backward("vocab_parallel_cross_entropy", loss, arrays["gradient"], retain=True)
    _backward("vocab_parallel_cross_entropy", loss, arrays["again"])
    _unchanged("logits", logits, arrays["logits"], wants=True)
    _unchanged("targets", targets, arrays["targets"])
    return answers | {"logits.grad after two backward passes": _values("logits.grad", logits.grad)}


def schedule(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `one_forward_one_backward`: kind and micro-batch of each rank's actions."""
    ranks, name = int(arrays["ranks"]), "one_forward_one_backward"
    call = partial(artifact.one_forward_one_backward, ranks, int(arrays["micro_batches"]))
    listed = _listed(name, call_twice(name, call), ranks)
    return {f"rank {r}": _encode_actions(f"rank {r}", actions) for r, actions in enumerate(listed)}


def _encode_actions(where: str, actions: Any) -> np.ndarray:
    if not isinstance(actions, list | tuple):
        expected = '[Action("forward", 0), …]'
        raise InputError(f"{where} has no list of actions", got=describe_value(actions), expected=expected)
    rows = []
    for action in actions:
        kind, i = parts(f"an action of {where}", action[:2] if isinstance(action, tuple) else action, "kind", "i")
        if kind not in KINDS:
            raise InputError(f"{where} has an action of another kind", got=repr(kind)[:80], expected=" or ".join(KINDS))
        rows.append((KINDS.index(kind), integer(f"a micro-batch of {where}", i)))
    return np.array(rows, dtype=np.int64).reshape(-1, 2)


class _Chunk:
    """Two linear maps of a rank, which `module` calls. `back` and `held` are what was seen of its calls.

    `held` counts earlier calls whose output or graph was still held at the next call.
    `back` are the micro-batches, by their number among `inputs`, in the order of their backward passes.
    """

    def __init__(self, artifact: Any, arrays: Arrays, inputs: Sequence[np.ndarray], room: int) -> None:
        self.first, self.second = map(artifact.nn.Parameter, _tensors(arrays, "first", "second"))
        self.module = type("Chunk", (artifact.nn.Module,), {"forward": lambda _, x: self(x)})()
        self.module.first, self.module.second = self.first, self.second
        self._inputs, self._room = inputs, room
        self._outputs: list[weakref.ref[torch.Tensor]] = []
        self._hiddens: list[weakref.ref[torch.Tensor]] = []  # alive as long as the graph that saves them
        self.held, self.back = 0, list[int]()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        width = len(self.first)
        if not isinstance(x, torch.Tensor) or x.ndim != 2 or x.shape[1] != width:
            got = str(tuple(x.shape)) if isinstance(x, torch.Tensor) else describe_value(x)
            what = "the chunk is called with something else than an activation"
            raise InputError(what, got=got, expected=f"(T, {width})")
        held = self._count_held()
        if held > self._room >= self.held:  # what only waits to be collected is not held
            gc.collect()
            held = self._count_held()
        self.held = max(self.held, held)
        hidden = (x @ self.first).tanh()
        output: torch.Tensor = hidden @ self.second
        self._hiddens.append(weakref.ref(hidden))
        self._outputs.append(weakref.ref(output))
        came = [i for i, one in enumerate(self._inputs) if np.array_equal(one, x.detach().numpy())]
        if came and output.requires_grad:
            output.register_hook(lambda _: self.back.extend(came))  # type: ignore[no-untyped-call]
        return output

    def _count_held(self) -> int:
        return max(sum(one() is not None for one in refs) for refs in (self._outputs, self._hiddens))


def run_stage(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Run `Pipeline.step`: the chunk's gradients, on the last rank the mean loss, on the first the order of work."""
    actions = [[(KINDS[kind], i, 0) for kind, i in arrays[f"actions{r}"].tolist()] for r in range(rank.size)]
    own, m = actions[rank.rank], len(actions[0]) // 2
    is_first, is_last = rank.rank == 0, rank.rank == rank.size - 1
    given = [arrays[f"x{i}"] for i in range(m)] if is_first else []
    inputs: list[Any] = [torch.from_numpy(x).clone() for x in given] if is_first else [None] * m
    targets: list[Any] = _tensors(arrays, *(f"target{i}" for i in range(m))) if is_last else [None] * m
    room = 1 + max(accumulate(1 if kind == "forward" else -1 for kind, *_ in own))
    chunk = _Chunk(artifact, arrays, given, room)

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if not is_last:
            raise InputError("a rank that is not the last computes a loss", expected="only the last rank calls loss()")
        return (output * target).sum(1).square().mean()

    schedule = [[artifact.Action(*one) for one in order] for order in actions]
    pipeline = artifact.Pipeline([chunk.module], rank)
    mean = pipeline.step(schedule, inputs, targets, loss)
    for i, x in enumerate(given):
        _unchanged(f"inputs[{i}]", inputs[i], x)
    if not is_last and mean is not None:
        what = "step returned a value on a rank that is not the last"
        raise InputError(what, got=describe_value(mean), expected="None")
    if isinstance(mean, torch.Tensor) and mean.requires_grad:
        what = "the mean loss that step returned still holds its graph"
        raise InputError(what, got="requires_grad is True", expected="detach(), or add up item()")
    if chunk.held > room:
        what = "a rank holds activations of more micro-batches than its schedule has in flight"
        expected = f"at most {room - 1} in flight, and one more: keep to the schedule, and release what has gone back"
        raise InputError(what, got=f"{chunk.held} micro-batches", expected=expected)
    answers: Arrays = {}
    if is_last:
        answers["mean loss"] = number("the mean loss", mean.detach() if isinstance(mean, torch.Tensor) else mean)
    answers |= {"micro-batches in the order of their backward passes": np.array(chunk.back)} if is_first else {}
    return answers | _gradients("the chunk", chunk, "first", "second")


def zigzag(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `zigzag_positions`."""
    ranks = int(arrays["ranks"])
    call = partial(artifact.zigzag_positions, int(arrays["tokens"]), ranks)
    listed = _listed("zigzag_positions", call_twice("zigzag_positions", call), ranks)
    return {f"positions[{r}]": _values(f"positions[{r}]", one) for r, one in enumerate(listed)}


def ring_attention(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `ring_attention` on this rank's queries, keys and values."""
    q, k, v = _tensors(arrays, *"qkv")
    positions = _tensors(arrays, *(f"positions{r}" for r in range(rank.size)))
    result = artifact.ring_attention(q, k, v, rank, positions)
    for name, one in zip("qkv", (q, k, v), strict=True):
        _unchanged(name, one, arrays[name])
    return {"result": _values("the result of ring_attention", result)}


def all_to_all(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `all_to_all`, then overwrite the parts that were sent."""
    sent = _tensors(arrays, *(f"part{r}" for r in range(rank.size)))
    received = _listed("all_to_all", artifact.all_to_all(rank, sent), rank.size)
    for r, one in enumerate(sent):
        _unchanged(f"parts[{r}]", one, arrays[f"part{r}"])
    named = {f"received[{r}]": one for r, one in enumerate(received)}
    answers = {name: _values(name, one) for name, one in named.items()}
    _overwrite("all_to_all", "parts", named, sent)
    return answers


def route(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `route`: rows in order, and the number of dropped choices."""
    (expert_ids,) = _tensors(arrays, "expert_ids")
    factor = [float(one) for one in arrays["capacity_factor"]]  # none: no limit
    routing = artifact.route(expert_ids, int(arrays["num_experts"]), *factor)
    _unchanged("expert_ids", expert_ids, arrays["expert_ids"])
    if missing := [name for name in (*INDICES, "num_dropped") if not hasattr(routing, name)]:
        got = f"{describe_value(routing)}, without {missing[0]}"
        raise InputError("route returned no Routing", got=got, expected="a Routing")
    answers = {name: _values(name, getattr(routing, name)) for name in INDICES}
    return answers | {"num_dropped": whole("num_dropped", routing.num_dropped)}


def dispatch(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `dispatch_and_combine` with experts of one matrix each; count the rows that they get."""
    tokens, weights, *indices = _tensors(arrays, "tokens", "weights", *INDICES)
    counted: list[int] = []

    def expert(matrix: torch.Tensor, rows: Any) -> torch.Tensor:
        if not isinstance(rows, torch.Tensor) or rows.ndim != 2 or rows.shape[1] != len(matrix):
            got = str(tuple(rows.shape)) if isinstance(rows, torch.Tensor) else describe_value(rows)
            what = "an expert is called with something else than rows"
            raise InputError(what, got=got, expected=f"(any, {len(matrix)})")
        counted.append(len(rows))
        return (rows @ matrix).tanh()

    experts = [partial(expert, torch.from_numpy(matrix)) for matrix in arrays["matrices"]]
    routing = artifact.Routing(*indices, int(arrays["num_dropped"]))
    with lend(artifact, all_to_all=_exchange):
        result = artifact.dispatch_and_combine(tokens, weights, routing, experts, rank)
    names = "tokens", "weights", *(f"routing.{name}" for name in INDICES)
    for name, one in zip(names, (tokens, weights, *indices), strict=True):
        _unchanged(name, one, arrays[name.removeprefix("routing.")])
    answers = {"result": _values("the result of dispatch_and_combine", result)}
    return answers | {"rows that this rank's experts got": np.array(sum(counted))}


def _config_and_machine(artifact: Any, arrays: Arrays) -> tuple[Any, Any]:
    machine = artifact.Machine(*arrays["rates"].tolist(), int(arrays["node"]))
    return artifact.TransformerConfig(*arrays["sizes"].tolist()), machine


def step_parts(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `step_seconds`."""
    batch, tokens, layout = int(arrays["batch"]), int(arrays["tokens"]), artifact.Layout(*arrays["layout"].tolist())
    call = partial(artifact.step_seconds, *_config_and_machine(artifact, arrays), layout, batch, tokens)
    got = call_twice("step_seconds", call)
    if not isinstance(got, dict) or set(got) != set(PARTS):
        found = f"keys {', '.join(map(str, got))}" if isinstance(got, dict) else describe_value(got)
        expected = f"a dictionary with keys {', '.join(PARTS)}"
        raise InputError("step_seconds did not return the four parts", got=found, expected=expected)
    return {name: number(name, got[name]) for name in PARTS}


def choose_layout(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `choose_layout`, with a `step_seconds` that knows the seconds of all possible layouts: degrees, or zeros."""
    table = {tuple(row[:3]): dict(zip(PARTS, row[3:], strict=True)) for row in arrays["table"].tolist()}
    own = artifact.step_seconds

    def step_seconds(config: Any, machine: Any, layout: Any, *args: Any, **kwargs: Any) -> Any:
        known = table.get(tuple(getattr(layout, name, None) for name in DEGREES))
        return own(config, machine, layout, *args, **kwargs) if known is None else dict(known)

    with lend(artifact, step_seconds=step_seconds):
        config, machine = _config_and_machine(artifact, arrays)
        got = artifact.choose_layout(
            config, machine, int(arrays["devices"]), int(arrays["batch"]), int(arrays["tokens"])
        )
    if got is None:
        return {name: np.array(0) for name in DEGREES}
    if not isinstance(got, artifact.Layout):
        raise InputError("choose_layout returned no Layout", got=describe_value(got), expected="a Layout, or None")
    return {name: whole(name, getattr(got, name)) for name in DEGREES}
