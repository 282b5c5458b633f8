"""How lab 09's checks call the learner's code: layers, stages, rings and experts, each rank with its own arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

# torch imports it in the first backward pass from a given gradient: before a limit on the learner's code begins.
import torch.fx.experimental.symbolic_shapes

from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.checks.learner.values import array, describe_value, number, parts, whole
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank

KINDS = ("forward", "backward")
"""The kinds of a pipeline's actions, by the number in which they cross."""
SIZES = ("data", "tensor", "pipeline")


def _tensors(arrays: Arrays, *names: str) -> list[torch.Tensor]:
    """Copies of arrays as tensors."""
    return [torch.from_numpy(arrays[name]).clone() for name in names]


def _tensor(name: str, got: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """A result on which more is to be computed; InputError for anything but a tensor of this shape."""
    if not isinstance(got, torch.Tensor):
        raise InputError(f"{name} gives no tensor", got=describe_value(got), expected="a torch.Tensor")
    if got.shape != shape:
        raise InputError(f"{name} gives a tensor of the wrong shape", got=str(tuple(got.shape)), expected=str(shape))
    return got


def _values(name: str, got: Any) -> np.ndarray:
    """The numbers of a result that is a tensor; InputError for anything else, on which later tasks could not work."""
    if got is not None and not isinstance(got, torch.Tensor):
        raise InputError(f"{name} is not a tensor", got=describe_value(got), expected="a torch.Tensor")
    return array(name, got)


def _refuse_change(name: str, tensor: torch.Tensor, given: np.ndarray) -> None:
    """Raise InputError where the learner's code has worked in a tensor that it was given."""
    if not np.array_equal(tensor.detach().numpy(), given, equal_nan=True):
        raise InputError(f"your code changes its input {name}", got="other values after the call")


def _go_back(name: str, result: torch.Tensor, gradient: np.ndarray, *, again: bool = False) -> None:
    """Go back from a result, `again` if this is not the last time; InputError where autograd has lost the way."""
    if not result.requires_grad:
        raise InputError(f"{name} leads back to nothing", got="no gradient wanted", help="was it detached?")
    given = torch.from_numpy(gradient).clone()
    result.backward(given, retain_graph=again)  # type: ignore[no-untyped-call]
    _refuse_change(f"the gradient of what {name} gives", given, gradient)


# --- columns and rows -------------------------------------------------------------------------------------------------


def take_part(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `take_part` on what wants a gradient, then overwrite what the part was taken from."""
    (x,) = _tensors(arrays, "x")
    part = artifact.take_part(rank, x.requires_grad_(), int(arrays["dim"]))
    _refuse_change("x", x, arrays["x"])
    x.data.fill_(7.0)
    if isinstance(part, torch.Tensor) and part.requires_grad:
        raise InputError("the part leads back to x", got="a gradient is wanted", expected="none: detach() it")
    return {"part": _values("part", part)}


def _linear(name: str, artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call a layer and go back from it: the result, and the gradients of what went in.

    Where x wants a gradient, one comes from elsewhere too, as beside a residual connection.
    """
    x, weight, bias = given = [one.requires_grad_() for one in _tensors(arrays, "x", "weight", "bias")]
    x.requires_grad_(bool(arrays["x_wants"]))
    y = _tensor(name, getattr(artifact, name)(rank, x, weight, bias), (len(x), len(bias)))
    answers = {"result": array("result", y.detach())}
    _go_back(name, y, arrays["gradient"])
    if x.requires_grad:
        x.sum().backward()  # type: ignore[no-untyped-call]
    for one, called in zip(given, ("x", "weight", "bias"), strict=True):
        _refuse_change(called, one, arrays[called])
        if one.requires_grad:
            answers[f"{called}.grad"] = array(f"{called}.grad", one.grad)
    return answers


def _apply(name: str, artifact: Any, rank: Rank, given: np.ndarray) -> Arrays:
    """Apply `Enter` or `Leave` to r + 1 times an array on rank r, and go back from there with as much."""
    own = given * (rank.rank + 1)
    x = torch.from_numpy(own).clone().requires_grad_()
    y = _tensor(name, getattr(artifact, name).apply(x, rank), tuple(x.shape))
    answers = {name: array(name, y.detach())}
    _go_back(name, y, own)
    _refuse_change("x", x, own)
    return answers | {f"{name}: x.grad": array("x.grad", x.grad)}


def column_linear(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `column_linear` and `Enter`, forward and backward."""
    return _linear("column_linear", artifact, rank, arrays) | _apply("Enter", artifact, rank, arrays["x"])


def row_linear(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `row_linear` and `Leave`, forward and backward."""
    return _linear("row_linear", artifact, rank, arrays) | _apply("Leave", artifact, rank, arrays["gradient"])


def parallel_mlp(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Two steps of plain descent of a `ParallelMLP`: result, gradient of x and this rank's parts after each.

    The whole parameters that it is made of want gradients, as parameters do.
    """
    names = ("up", "up_bias", "down", "down_bias")
    given = [one.requires_grad_() for one in _tensors(arrays, *names)]
    mlp = artifact.ParallelMLP(rank, *given)
    answers: Arrays = {}
    for step, data in enumerate(arrays["x"]):
        x = torch.from_numpy(data).clone().requires_grad_()
        y = _tensor("ParallelMLP", mlp(x), (len(x), len(arrays["down_bias"])))
        answers[f"step {step}: result"] = array("result", y.detach())
        _go_back("ParallelMLP", y, arrays["gradient"][step])
        answers[f"step {step}: x.grad"] = array("x.grad", x.grad)
        for name in names:
            part = getattr(mlp, name)
            answers[f"step {step}: {name}.grad"] = array(f"{name}.grad", part.grad)
            part.data -= 0.1 * part.grad
            part.grad = None
        _refuse_change("x", x, data)
    for name, whole_one in zip(names, given, strict=True):
        _refuse_change(name, whole_one, arrays[name])
    return answers


def cross_entropy(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `cross_entropy`, and go back twice from a multiple of it."""
    logits, targets = _tensors(arrays, "logits", "targets")
    logits.requires_grad_()
    loss = _tensor("cross_entropy", artifact.cross_entropy(rank, logits, int(arrays["start"]), targets), ())
    answers = {"loss": number("loss", loss.detach())}
    for again in (True, False):
        _go_back("cross_entropy", loss, arrays["gradient"], again=again)
    _refuse_change("logits", logits, arrays["logits"])
    _refuse_change("targets", targets, arrays["targets"])
    return answers | {"logits.grad": array("logits.grad", logits.grad)}


# --- pipelines --------------------------------------------------------------------------------------------------------


def schedule(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `one_forward_one_backward`: for each stage its actions, kind and micro-batch."""
    stages = artifact.one_forward_one_backward(int(arrays["p"]), int(arrays["m"]))
    if not isinstance(stages, list | tuple) or len(stages) != int(arrays["p"]):
        got = f"{type(stages).__name__} of {len(stages)}" if isinstance(stages, list | tuple) else type(stages).__name__
        raise InputError("one_forward_one_backward gives no list for each stage", got=got, expected=int(arrays["p"]))
    return {f"stage {r}": _write_actions(f"stage {r}", actions) for r, actions in enumerate(stages)}


def _write_actions(where: str, actions: Any) -> np.ndarray:
    if not isinstance(actions, list | tuple):
        raise InputError(f"{where} has no list of actions", got=describe_value(actions), expected='[("forward", 0), …]')
    rows = []
    for action in actions:
        kind, micro_batch = parts(f"an action of {where}", action, "kind", "micro-batch")
        if kind not in KINDS:
            raise InputError(f"{where} has an action of another kind", got=repr(kind), expected=" or ".join(KINDS))
        rows.append((KINDS.index(kind), int(whole(f"a micro-batch of {where}", micro_batch))))
    return np.array(rows, dtype=np.int64).reshape(-1, 2)


def run_stage(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `run_stage` with a stage of two matrices: its gradients after all, and on the last rank the mean loss."""
    first, second = weights = [one.requires_grad_() for one in _tensors(arrays, "first", "second")]
    actions = [(KINDS[kind], micro_batch) for kind, micro_batch in arrays["actions"].tolist()]
    is_first, is_last = rank.rank == 0, rank.rank == rank.size - 1
    inputs = _tensors(arrays, *(f"x{i}" for i in range(len(actions) // 2))) if is_first else []

    def stage(x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, torch.Tensor) or x.ndim != 2 or x.shape[1] != len(first):
            raise InputError(
                "a stage is given something else", got=getattr(x, "shape", x), expected=f"(T, {len(first)})"
            )
        return (x @ first).tanh() @ second

    def loss(y: torch.Tensor, micro_batch: int) -> torch.Tensor:
        if not is_last:
            raise InputError("a rank that is not the last asks for a loss")
        return (y * torch.from_numpy(arrays[f"target{micro_batch}"])).sum(1).square().mean()

    mean = artifact.run_stage(rank, list(actions), stage, inputs, loss)
    for i, one in enumerate(inputs):
        _refuse_change(f"inputs[{i}]", one, arrays[f"x{i}"])
        if one.requires_grad:
            raise InputError(f"your code changes its input inputs[{i}]", got="it wants a gradient after the call")
    if not is_last and mean is not None:
        raise InputError("run_stage gives a loss where there is none", got=repr(mean)[:40], expected="None")
    told = {"loss": number("loss", mean)} if is_last else {}
    return told | {
        f"{name}.grad": array(f"{name}.grad", one.grad) for name, one in zip(("first", "second"), weights, strict=True)
    }


# --- context ----------------------------------------------------------------------------------------------------------


def zigzag(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `zigzag`: the positions of each rank."""
    got = artifact.zigzag(int(arrays["tokens"]), int(arrays["p"]))
    if not isinstance(got, list | tuple):
        raise InputError("zigzag gives no list", got=describe_value(got), expected="a tensor for each rank")
    return {"count": np.array(len(got))} | {
        f"rank {r}": _values(f"positions of rank {r}", one) for r, one in enumerate(got)
    }


def ring_attention(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `ring_attention` on this rank's queries, keys and values."""
    q, k, v = _tensors(arrays, "q", "k", "v")
    positions = _tensors(arrays, *(f"positions{r}" for r in range(rank.size)))
    out = artifact.ring_attention(rank, q, k, v, positions)
    for name, one in zip("qkv", (q, k, v), strict=True):
        _refuse_change(name, one, arrays[name])
    return {"result": _values("result", out)}


# --- experts ----------------------------------------------------------------------------------------------------------


def all_to_all(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `all_to_all`, then overwrite what was sent."""
    sent = _tensors(arrays, *(f"part{r}" for r in range(rank.size)))
    got = artifact.all_to_all(rank, sent)
    if not isinstance(got, list | tuple):
        raise InputError("all_to_all gives no list", got=describe_value(got), expected="a tensor from each rank")
    for r, one in enumerate(sent):
        _refuse_change(f"parts[{r}]", one, arrays[f"part{r}"])
        one.fill_(7)
    return {"count": np.array(len(got))} | {f"from {r}": _values(f"received[{r}]", one) for r, one in enumerate(got)}


def route(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `route`: experts, weights and which were kept."""
    (logits,) = _tensors(arrays, "logits")
    got = artifact.route(logits, int(arrays["k"]), int(arrays["capacity"]))
    names = ("experts", "weights", "kept")
    answers = {name: _values(name, one) for name, one in zip(names, parts("route", got, *names), strict=True)}
    _refuse_change("logits", logits, arrays["logits"])
    return answers


def dispatch(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `dispatch` with experts of one matrix each, of which a rank has its own alone; count the rows they got."""
    names = ("x", "experts", "weights", "kept", "owners")
    given, worked = _tensors(arrays, *names), []

    def work(e: int, rows: torch.Tensor) -> torch.Tensor:
        if f"expert{e}" not in arrays:
            raise InputError("a rank asks for an expert that lives elsewhere", got=f"expert {e} on rank {rank.rank}")
        worked.append(len(rows))
        return (rows @ torch.from_numpy(arrays[f"expert{e}"])).tanh()

    out = artifact.dispatch(rank, *given, work)
    for name, one in zip(names, given, strict=True):
        _refuse_change(name, one, arrays[name])
    return {"result": _values("result", out), "rows that experts worked on": np.array(sum(worked))}


# --- layouts ----------------------------------------------------------------------------------------------------------


def _model_and_machine(artifact: Any, arrays: Arrays) -> tuple[Any, Any]:
    return artifact.Model(*arrays["model"].tolist()), artifact.Machine(*arrays["rates"].tolist(), int(arrays["node"]))


def step_parts(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `step_parts`: seconds by what they are spent on."""
    model, machine = _model_and_machine(artifact, arrays)
    got = artifact.step_parts(model, machine, artifact.Layout(*arrays["layout"].tolist()), int(arrays["batch"]))
    names = ("compute", "bubble", "link", "network")
    if not isinstance(got, dict) or set(got) != set(names):
        found = ", ".join(map(str, got)) if isinstance(got, dict) else type(got).__name__
        raise InputError("step_parts gives something else", got=found, expected=f"a dictionary of {', '.join(names)}")
    return {name: number(name, got[name]) for name in names}


def choose_layout(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `choose_layout`: data, tensor and pipeline, or zeros for None."""
    model, machine = _model_and_machine(artifact, arrays)
    got = artifact.choose_layout(model, machine, int(arrays["devices"]), int(arrays["batch"]))
    if got is None:
        return {name: np.array(0) for name in SIZES}
    if not isinstance(got, artifact.Layout):
        raise InputError("choose_layout gives no layout", got=describe_value(got), expected="a Layout, or None")
    return {name: whole(name, getattr(got, name)) for name in SIZES}
