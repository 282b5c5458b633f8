"""Run the learner's code for lab 01's checks: operations, graphs, training steps, checkpoints.

A function runs on right predecessors, so that a mistake costs points once. The vjps of an operation are applied one by
one, without the learner's `backward`, and with torch's `sum_to_size` in place of their `unbroadcast`. Tasks 7 and 8 run
on operations of the checks' own and on a `backward` that recurses, which Task 2 does not accept.
"""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch

from mlsys_checks.sandboxed.inputs import unchanged
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.storage import storage_only
from mlsys_checks.sandboxed.values import array, decode_value, describe_value, number, pair, whole
from mlsys_lab.errors import InputError

ACCUMULATED = "calls of accumulate for each node"
AGAIN = "by a second call of the vjp, for 2 g"
BLIND = "classes without gradients"
FIRST = "first losses"
IMAGES = "images require a gradient"
REQUIRES = "x.requires_grad after checkpoint(function, x)"
RUNS = "runs of the model"
REACHED = "parameters that edges of the logits lead to"
RECORDED = "runs of `function` that were recorded before any backward pass"
RECORDING = "whether operations are recorded inside no_grad() and after it, once a backward pass has run there"


@contextmanager
def replace(artifact: Any, **right: Any) -> Iterator[None]:
    """Give the learner's code right functions in place of those of its own that have these names."""
    own = {name: getattr(artifact, name) for name in right if hasattr(artifact, name)}
    try:
        for name in own:
            setattr(artifact, name, right[name])
        yield
    finally:
        for name, function in own.items():
            setattr(artifact, name, function)


def sum_down(grad: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Sum a gradient down to the shape of an operand."""
    if not isinstance(grad, torch.Tensor):
        what = "unbroadcast is called with no torch.Tensor"
        raise InputError(what, got=describe_value(grad), expected="a torch.Tensor: compute with g and .data")
    return grad.sum_to_size(tuple(shape))


def list_nodes(root: Any) -> list[Any]:
    """List the nodes of a small graph, operands first, by recursion."""
    order: dict[int, Any] = {}
    _visit(root, order)
    return list(order.values())


def _visit(node: Any, order: dict[int, Any]) -> None:
    if id(node) not in order:
        for operand, _ in node.edges:
            _visit(operand, order)
        order[id(node)] = node


def pull_back(root: Any, grad: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each node of a small graph with its gradient, the root first."""
    arrived: dict[int, list[Any]] = {id(root): [grad]}
    for node in list_nodes(root)[::-1]:
        grads = arrived.pop(id(node))
        total = sum(grads[1:], grads[0])
        yield node, total
        for operand, vjp in node.edges:
            found = vjp(total)
            if isinstance(total, torch.Tensor) and not isinstance(found, torch.Tensor):
                what = f"a vjp of the operation {node.op!r} returns no torch.Tensor"
                raise InputError(what, got=describe_value(found), expected="a torch.Tensor: compute with g and .data")
            arrived.setdefault(id(operand), []).append(found)


def go_back(root: Any, grad: torch.Tensor) -> None:
    """Run a backward pass through a small graph."""
    for node, total in pull_back(root, grad):
        node.accumulate(total)


def fail(*_: Any) -> NoReturn:
    """Raise an error: the vjp of an operation that no gradient should reach."""
    raise ZeroDivisionError("a vjp of the check's own that raises an error")


def by_column(values: np.ndarray) -> torch.Tensor:
    """An array as it comes from a transpose: not contiguous if it is a matrix or more."""
    tensor = torch.from_numpy(values)
    return tensor.mT.contiguous().mT if tensor.ndim > 1 else tensor


@storage_only
def operation(artifact: Any, arrays: Arrays) -> Arrays:
    """Evaluate an expression of operands, and apply the vjps of its edges to a gradient and to twice that gradient."""
    case = decode_value(arrays["case"])
    kind, code = getattr(artifact, case["kind"]), case["code"]
    lay = by_column if case.get("transposed") else torch.from_numpy
    if case["kind"] == "Value":
        names: dict[str, Any] = {name: kind(float(arrays[name])) for name in case["operands"]}
        grads: list[Any] = [times * float(arrays["g"]) for times in (1, 2)]
    else:
        names = {name: kind(lay(arrays[name]), requires_grad=True) for name in case["operands"]}
        grads = [times * lay(arrays["g"]) for times in (1, 2)]
    operands = dict(names)
    names |= {name: torch.from_numpy(arrays[name]) for name in ("rows", "targets") if name in arrays}
    names |= {"torch": torch, "cross_entropy": getattr(artifact, "cross_entropy", None)}
    compute = partial(eval, code, names)
    with replace(artifact, unbroadcast=sum_down):
        result = compute()
        if not isinstance(result, kind):
            raise InputError(f"`{code}` gives no {case['kind']}", got=describe_value(result), expected=case["kind"])
        if not all(isinstance(edge, tuple | list) and len(edge) == 2 and callable(edge[1]) for edge in result.edges):
            what = f"the edges of `{code}` are no pairs (operand, vjp)"
            raise InputError(what, got=describe_value(result.edges), expected="with one operand ((self, vjp),)")
        convert = number if case["kind"] == "Value" else array
        got = {code: convert(code, result.data)}
        for g, again in zip(grads, ("", f", {AGAIN}"), strict=True):
            with unchanged(g=g):
                arrived = {id(node): grad for node, grad in pull_back(result, g)}
            for name, operand in operands.items():
                label = f"gradient of {name} in {code}{again}"
                if id(operand) not in arrived:
                    expected = f"a pair ({name}, vjp), also where the derivative is 0"
                    got_edges = f"{len(result.edges)} edges to others"
                    raise InputError(f"`{code}` has no edge to {name}", got=got_edges, expected=expected)
                got[label] = convert(label, arrived[id(operand)])
        _refuse_ring(code, compute)
        if case["kind"] == "Tensor":
            _refuse_recorded(artifact, code, compute)
    return got


def _refuse_recorded(artifact: Any, code: str, compute: Callable[[], Any]) -> None:
    """Raise `InputError` if a result that is computed inside no_grad() has edges."""
    with artifact.no_grad():
        edges = compute().edges
    if edges:
        what = f"`{code}` is recorded inside no_grad()"
        raise InputError(what, got=f"{len(edges)} edges", expected="none: return what `record` gives, which drops them")


def _refuse_ring(code: str, compute: Callable[[], Any]) -> None:
    """Raise `InputError` if a result stays in memory after its last reference, because a vjp of its own holds it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        node = compute()
        held = weakref.ref(node) if type(node).__weakrefoffset__ else None  # a class with __slots__ may have none
        del node
        alive = held is not None and held() is not None
    finally:
        if collects:
            gc.enable()
    if alive:
        expected = "a vjp that uses arrays or numbers of the forward pass, such as the result before it becomes a node"
        what = f"a vjp of `{code}` holds the node that it belongs to (Task 1)"
        raise InputError(what, got="a node that is not freed", expected=expected)


@storage_only
def unbroadcast(artifact: Any, arrays: Arrays) -> Arrays:
    """Sum a gradient down to a shape."""
    shape = tuple(arrays["shape"].tolist())
    return {"the result": array("the result", artifact.unbroadcast(torch.from_numpy(arrays["grad"]), shape))}


def _build_graph(artifact: Any, arrays: Arrays) -> list[Any]:
    """Build nodes whose edges, (node, operand) pairs, multiply by slopes; a slope of 1 passes on the same object."""
    nodes = [artifact.Value(math.inf) for _ in range(int(arrays["nodes"]))]  # whose `data` no function needs
    for (i, operand), slope in zip(arrays["edges"].tolist(), arrays["slopes"].tolist(), strict=True):
        vjp = (lambda g: g) if slope == 1 else partial(lambda slope, g: g * slope, slope)
        nodes[i].edges = (*nodes[i].edges, (nodes[operand], vjp))
    return nodes


@storage_only
def order(artifact: Any, arrays: Arrays) -> Arrays:
    """Return the order as numbers of nodes, −1 for anything else in it."""
    nodes = _build_graph(artifact, arrays)
    found = artifact.topological_order(nodes[-1])
    if not isinstance(found, list | tuple):
        raise InputError("topological_order returns no list", got=describe_value(found), expected="a list of nodes")
    if (again := len(artifact.topological_order(nodes[-1]))) != len(found):
        what = "a second call of topological_order on the same graph returns another list"
        raise InputError(what, got=f"{again} nodes", expected=f"{len(found)}, as before: keep nothing between calls")
    numbers = {id(node): i for i, node in enumerate(nodes)}
    return {"order": np.array([numbers.get(id(node), -1) for node in found], dtype=np.int64)}


@storage_only
def reuse(artifact: Any, arrays: Arrays) -> Arrays:
    """Run backward passes from several roots; return all gradients, and how often each node accumulated one."""
    nodes = _build_graph(artifact, arrays)
    grad, calls = arrays["grad"], dict.fromkeys(map(id, nodes), 0)
    plain = artifact.Value.accumulate
    with replace(artifact, topological_order=list_nodes):

        def accumulate(node: Any, grad: Any) -> None:
            calls[id(node)] += 1
            plain(node, grad)

        artifact.Value.accumulate = accumulate
        try:
            for root in arrays["roots"].tolist():
                given = torch.from_numpy(grad.copy()) if grad.ndim else float(grad)
                with unchanged(grad=given):
                    artifact.backward(nodes[root], given)
        finally:
            artifact.Value.accumulate = plain
    grads = [np.broadcast_to(_gradient(node.grad), grad.shape) for node in nodes]
    return {"gradients of the nodes": np.stack(grads), ACCUMULATED: np.array(list(calls.values()))}


def _gradient(got: Any) -> np.ndarray:
    name = "the gradient of a node"
    return array(name, got) if isinstance(got, torch.Tensor) else number(name, got)


class _Gradient(float):
    """A gradient on its way, which a weak reference can follow."""


@storage_only
def deep(artifact: Any, arrays: Arrays) -> Arrays:
    """Run a backward pass through a long chain of nodes, followed by nodes that use the one before them twice."""
    first = last = artifact.Value(0.0)
    held, most = weakref.WeakValueDictionary[int, _Gradient](), [0]

    def multiply(i: int, slope: float, g: float) -> _Gradient:
        held[i] = arrived = _Gradient(g * slope)
        most[0] = max(most[0], len(held))
        return arrived

    for i, slope in enumerate(arrays["slopes"].tolist()):
        last = artifact.Value(0.0, ((last, partial(multiply, i, slope)),))
    for _ in range(int(arrays["doublings"])):
        last = artifact.Value(0.0, ((last, lambda g: g), (last, lambda g: g)))
    artifact.backward(last, 1.0)
    if most[0] > 100:  # more than any order of work needs in a chain
        what = "backward keeps gradients that are passed on, so their memory is not freed"
        raise InputError(what, got=f"{most[0]:,} at once", expected="one or two in a chain: `pop` them")
    return {"gradient of the first node": number("gradient of the first node", first.grad)}


@storage_only
def mlp_forward(artifact: Any, arrays: Arrays) -> Arrays:
    """Call a network twice: its logits, and the parameters that edges lead to. Products and relu are the check's."""
    sizes = arrays["sizes"].tolist()
    model = artifact.MLP(*sizes)
    for i, layer in enumerate(model.layers):
        layer.weight.data = torch.from_numpy(arrays[f"weight {i}"].copy())
        layer.bias.data = torch.from_numpy(arrays[f"bias {i}"].copy())
    parameters = model.parameters()

    def matmul(a: Any, b: Any) -> Any:
        return artifact.record(a.data @ b.data, (a, fail), (b, fail), op="@")

    def relu(a: Any) -> Any:
        return artifact.record(torch.maximum(a.data, torch.zeros_like(a.data)), (a, fail), op="relu")

    with replace(artifact, matmul=matmul, relu=relu, unbroadcast=sum_down):
        for _ in range(2):
            logits = model(artifact.Tensor(torch.from_numpy(arrays["x"])))
    got = {"logits": array("logits", logits)}
    reached = {id(node) for node in list_nodes(logits)}
    return got | {REACHED: np.array([id(parameter) in reached for parameter in parameters])}


@storage_only
def sgd(artifact: Any, arrays: Arrays) -> Arrays:
    """Update parameters with given gradients: p in every step, q in some, and one that never has a gradient.

    With `kept`, the gradient of p is one and the same tensor in every step.
    """
    p, q, idle = (artifact.Tensor(torch.from_numpy(arrays[n].copy()), requires_grad=True) for n in ("p", "q", "q"))
    rates = arrays["rates"].tolist()
    optimizer = artifact.SGD(iter([idle, q, p]), lr=rates[0], momentum=float(arrays["momentum"]))
    columns = (rates, arrays["gradients of p"], arrays["gradients of q"], arrays["q has a gradient"])
    for rate, grad_p, grad_q, has in zip(*columns, strict=True):
        optimizer.lr = rate
        p.grad = p.grad if p.grad is not None and arrays["kept"] else torch.from_numpy(grad_p.copy())
        q.grad = torch.from_numpy(grad_q.copy()) if has else None
        with unchanged(**{"p.grad": p.grad}):
            optimizer.step()
    names = {"p": p, "q": q, "a parameter without gradient": idle}
    return {name: array(name, parameter) for name, parameter in names.items()}


class _Descent:
    """Gradient descent as plain as can be: the optimizer of `train_step`'s check."""

    def __init__(self, parameters: list[Any], lr: float) -> None:
        self.parameters, self.lr, self.momentum = parameters, lr, 0.0

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.data = parameter.data - self.lr * parameter.grad


@storage_only
def train_step(artifact: Any, arrays: Arrays) -> Arrays:
    """Train a model with two parameters, scale and offset; loss, optimizer and backward pass are the check's.

    The model uses the offset in some steps only. Before the first step parameters hold gradients of an earlier pass.
    """
    scale, offset = (
        artifact.Tensor(torch.from_numpy(arrays[n].copy()), requires_grad=True) for n in ("scale", "offset")
    )
    runs, required, losses = [0], [False], []

    def cross_entropy(logits: Any, targets: torch.Tensor) -> Any:
        off = logits.data - torch.eye(logits.shape[1], dtype=logits.dtype)[targets]
        count = len(targets)
        return artifact.record((off * off).sum() / (2 * count), (logits, lambda g: g * off / count), op="loss")

    def model(x: Any, uses_offset: bool) -> Any:
        if not isinstance(x, artifact.Tensor):
            raise InputError("the model is called with no Tensor", got=describe_value(x), expected="Tensor(x)")
        runs[0] += 1
        required[0] |= bool(x.requires_grad)
        edges = [(scale, lambda g: (g * x.data).sum(0)), (offset, lambda g: g.sum(0))][: 1 + uses_offset]
        return artifact.record(x.data * scale.data + uses_offset * offset.data, *edges, op="model")

    for parameter in (scale, offset):
        parameter.grad = torch.ones_like(parameter.data)
    optimizer = _Descent([scale, offset], lr=0.1)
    with replace(artifact, cross_entropy=cross_entropy, backward=go_back):
        for images, classes, uses_offset in zip(arrays["x"], arrays["y"], arrays["uses offset"].tolist(), strict=True):
            x, y = torch.from_numpy(images.copy()), torch.from_numpy(classes.copy())
            with unchanged(x=x, y=y):
                loss = artifact.train_step(partial(model, uses_offset=uses_offset), optimizer, x, y)
            losses.append(number("the loss", loss))
    got = {
        "loss of each step": np.stack(losses).astype(arrays["x"].dtype),
        IMAGES: np.array(required[0]),
        RUNS: np.array(runs[0]),
    }
    return got | {"scale after the steps": array("scale", scale), "offset after the steps": array("offset", offset)}


@storage_only
def step_flops(artifact: Any, arrays: Arrays) -> Arrays:
    """Predict the FLOPs of a training step."""
    flops = artifact.predict_step_flops(int(arrays["batch"]), tuple(arrays["sizes"].tolist()))
    return {"FLOPs": whole("FLOPs", flops)}


class _StopTrainingError(BaseException):
    """Training without gradients takes more steps than training with them."""


@storage_only
def digits(artifact: Any, arrays: Arrays) -> Arrays:
    """Train a classifier twice, the second time without gradients: predictions, and the first loss of each training."""
    first: list[float] = []
    predictions, losses, steps = _classify(artifact, arrays, artifact.backward, first)
    blind = np.full_like(predictions, -1)
    with suppress(_StopTrainingError):
        blind, _, _ = _classify(artifact, arrays, lambda root, grad: None, first, steps)
    got = {"predictions": predictions, BLIND: blind, "losses": np.array(losses), "backward passes": np.array(steps)}
    return got | {FIRST: np.array([*first[:1], *first[steps : steps + 1]])}


def _classify(
    artifact: Any, arrays: Arrays, backward: Callable[[Any, Any], None], seen: list[float], most: float = math.inf
) -> tuple[np.ndarray, int, int]:
    """Return predictions, the number of losses, and how often `backward` was called, which is at most `most`."""
    x_train, y_train, x_test = (torch.from_numpy(arrays[name].copy()) for name in ("x_train", "y_train", "x_test"))
    calls = itertools.count(1)
    begin = len(seen)

    def count(root: Any, grad: Any) -> None:
        if next(calls) > most:
            raise _StopTrainingError
        seen.append(float(root.data.sum()))
        backward(root, grad)

    with (
        replace(artifact, backward=count),
        unchanged(x_train=x_train, y_train=y_train, x_test=x_test),
        torch.random.fork_rng(devices=()),
    ):
        torch.default_generator.seed()  # weights that are drawn without a seed differ between trainings
        got = artifact.train_classifier(x_train, y_train, x_test, iter)
    predictions, losses = pair("train_classifier", got, "predictions", "losses")
    found = array("the losses", losses)
    if found.size == 0 or found.ndim == 0:
        what = f"train_classifier returns {'one number' if found.size else 'no losses'} as its losses"
        raise InputError(what, got=describe_value(losses), expected="the loss of every step")
    return array("the predictions", predictions), found.size, len(seen) - begin


@storage_only
def graph_bytes(artifact: Any, arrays: Arrays) -> Arrays:
    """Predict the bytes of a graph."""
    sizes = (int(arrays[name]) for name in ("batch", "width", "layers"))
    return {"bytes": whole("bytes", artifact.predict_graph_bytes(*sizes))}


@storage_only
def checkpointed_bytes(artifact: Any, arrays: Arrays) -> Arrays:
    """Predict the bytes of a checkpointed graph, and the best number of segments."""
    sizes = (int(arrays[name]) for name in ("batch", "width", "layers", "segments"))
    found = whole("bytes", artifact.predict_checkpointed_bytes(*sizes))
    best = artifact.best_segments(int(arrays["layers"]))
    return {"bytes": found, "best_segments": whole("best_segments", best)}


def _stage(artifact: Any, h: Any, w: Any, turn: float = 1.0) -> Any:
    """turn · tanh(h · w), of h (B, D) and w (D,), as one operation of the learner's engine."""
    a, b = h.data, w.data
    value = (a * b).tanh()
    slope = turn * (1 - value * value)
    edges = ((h, lambda g: g * slope * b), (w, lambda g: (g * slope * a).sum(0)))
    return artifact.record(turn * value, *edges, op="stage")


@storage_only
def checkpoint(artifact: Any, arrays: Arrays) -> Arrays:
    """Checkpoint two stages, one after the other: the result, the gradients, and how often a stage ran.

    Each run of a stage is multiplied by the next of `turns`, so that values show how often and in which order it ran.
    `nested`: both stand in a third checkpoint. `stops`: a checkpoint whose function lets no gradient through is added.
    `quiet`: the backward pass runs inside no_grad().
    """
    turns, calls, recorded = iter(arrays["turns"].tolist()), [0], [0]
    w = artifact.Tensor(torch.from_numpy(arrays["w"]), requires_grad=True)
    x = artifact.Tensor(torch.from_numpy(arrays["x"]), requires_grad=bool(arrays["x requires grad"]))

    def counted(h: Any) -> Any:
        calls[0] += 1
        result = _stage(artifact, h, w, next(turns, 3.0))
        recorded[0] += bool(result.edges)
        return result

    def checked(function: Callable[[Any], Any], h: Any) -> Any:
        result = artifact.checkpoint(function, h)
        if not isinstance(result, artifact.Tensor):
            raise InputError("checkpoint returns no Tensor", got=describe_value(result), expected="a Tensor")
        return result

    def twice(h: Any) -> Any:
        inner = checked(counted, checked(counted, h))
        recorded[0] += bool(arrays["nested"]) and calls[0] == 2 and bool(inner.edges)
        return inner

    with replace(artifact, backward=go_back, unbroadcast=sum_down):
        result = checked(twice, x) if arrays["nested"] else twice(x)
        got = {"calls of `function` forward": np.array(calls[0]), RECORDED: np.array(recorded[0])}
        if arrays["stops"]:
            result = result + checked(lambda h: _stage(artifact, h.detach(), w), x)
        state = [False]
        for _ in range(int(arrays["backwards"])):
            with artifact.no_grad() if arrays["quiet"] else nullcontext():
                artifact.backward(result, torch.from_numpy(arrays["g"]))
                state[0] |= bool(arrays["quiet"]) and bool(artifact.Tensor.recording)
        lost = "" if arrays["x requires grad"] else " (x requires no gradient: has `record` dropped the edge to it?)"
        got |= {"result": array("the result", result), "w.grad": array(f"w.grad{lost}", w.grad)}
        got[REQUIRES] = np.array(bool(x.requires_grad))
        if arrays["x requires grad"]:
            got["x.grad"] = array("x.grad", x.grad)
        _refuse_ring("checkpoint(function, x)", lambda: artifact.checkpoint(lambda h: _stage(artifact, h, w), x))
    got |= {"calls of `function`": np.array(calls[0]), RECORDING: np.array([*state, bool(artifact.Tensor.recording)])}
    return got


@storage_only
def deep_stack(artifact: Any, arrays: Arrays) -> Arrays:
    """Run a stack of layers in checkpointed segments; from its third run on, a layer returns something else.

    Layers that run a second time one after the other were a segment: how many there were, and how long the longest is.
    """
    calls, again, recorded = [0] * len(arrays["weights"]), list[int](), [0]
    weights, biases = (
        [artifact.Tensor(torch.from_numpy(row), requires_grad=True) for row in arrays[n]] for n in ("weights", "biases")
    )

    def layer(i: int, h: Any) -> Any:
        w, b, a = weights[i], biases[i], h.data
        calls[i] += 1
        again.extend([i] * (calls[i] == 2))
        factor = w.data * (1.0 if calls[i] <= 2 else 2.0)
        product = artifact.record(a * factor, (h, lambda g: g * factor), (w, lambda g: (g * a).sum(0)), op="*")
        total = artifact.record(product.data + b.data, (product, lambda g: g), (b, lambda g: g.sum(0)), op="+")
        value = total.data.tanh()
        result = artifact.record(value, (total, lambda g: g * (1 - value * value)), op="tanh")
        recorded[0] += calls[i] == 1 and bool(result.edges)
        return result

    stack = [partial(layer, i) for i in range(len(weights))]
    with replace(artifact, backward=go_back, unbroadcast=sum_down):
        x = artifact.Tensor(torch.from_numpy(arrays["x"]))
        result = artifact.checkpoint_sequential(stack, x, int(arrays["segments"]))
        artifact.backward(result, torch.from_numpy(arrays["g"]))
    starts = [at for at, i in enumerate(again) if at == 0 or i != again[at - 1] + 1]
    return {
        "the result": array("the result", result)[::1000],
        "segments": np.array(len(starts)),
        "layers of the longest segment": np.array(max(np.diff([*starts, len(again)]), default=0)),
        "gradients of the weights": _stack_gradients(weights),
        "gradients of the biases": _stack_gradients(biases),
        "most runs of a layer": np.array(max(calls)),
        "layers recorded at once": np.array(recorded[0]),
        "layers left in the list": np.array(len(stack)),
    }


def _stack_gradients(parameters: Iterable[Any]) -> np.ndarray:
    return np.stack([array("the gradient of a weight or bias", parameter.grad) for parameter in parameters])
