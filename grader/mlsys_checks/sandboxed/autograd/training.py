"""Calls of task 7: a network that learns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import torch

from mlsys_checks.sandboxed.autograd.engine import SCALE, scale_gradient
from mlsys_checks.sandboxed.inputs import unchanged
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.storage import storage_only
from mlsys_checks.sandboxed.values import array, describe_value, number, pair, whole
from mlsys_lab.errors import InputError

BLIND = "labels without gradients"
"""Named so: what the classifier says where `backward` does nothing."""
FIRST = "first losses"
"""The name under which the first loss of each of two trainings is told."""
IMAGES_WANT = "the images want a gradient"
RUNS = "runs of the model"
ALONE = "the label of an image alone"
WITHOUT = "labels without training images of class 0"


def _mlp(artifact: Any, arrays: Arrays) -> Any:
    """The learner's network with copies of the given weights, which a step may change in place.

    Where it is `tied`, its first layer is the last one too.
    """
    model = artifact.MLP(*arrays["widths"].tolist())
    for i, layer in enumerate(model.layers):
        layer.weight.data = torch.from_numpy(arrays[f"weight {i}"].copy())
        layer.bias.data = torch.from_numpy(arrays[f"bias {i}"].copy())
    if arrays.get("tied"):
        model.layers[-1] = model.layers[0]
    return model


@storage_only
def forward_and_back(artifact: Any, arrays: Arrays) -> Arrays:
    """Logits, and the gradients of all weights and biases, after a call with too wide a batch, which has to fail."""
    model = _mlp(artifact, arrays)
    with suppress(Exception):
        model(artifact.Tensor(torch.zeros(1, int(arrays["widths"][0]) + 1)))
    if len(model.layers) != len(arrays["widths"]) - 1:
        left, asked = f"{len(model.layers)} layers are left", "all of them, also where one has raised"
        raise InputError("a call changes the layers of the model", got=left, expected=asked)
    logits = model(artifact.Tensor(torch.from_numpy(arrays["x"])))
    artifact.backward(scale_gradient(logits), torch.from_numpy(arrays["g"]))
    got = {"logits": array("logits", logits)}
    for i, layer in enumerate(model.layers):
        got[f"gradient of weight {i}"] = array(f"gradient of weight {i}", layer.weight.grad) / np.float32(SCALE)
        got[f"gradient of bias {i}"] = array(f"gradient of bias {i}", layer.bias.grad) / np.float32(SCALE)
    return got


@storage_only
def sgd(artifact: Any, arrays: Arrays) -> Arrays:
    """Parameters after steps with given gradients, rates and momenta: one now and then without a gradient, one always.

    A gradient of p may stay for another step.
    """
    p, q, idle = (artifact.Tensor(torch.from_numpy(arrays[n].copy()), requires_grad=True) for n in ("p", "q", "q"))
    rates, momenta = arrays["rates"].tolist(), arrays["momenta"].tolist()
    optimiser = artifact.SGD(iter([idle, q, p]), lr=rates[0], momentum=momenta[0])
    columns = ("gradients of p", "kept", "gradients of q", "q rests")
    for i, (grad_p, kept, grad_q, rests) in enumerate(zip(*(arrays[name] for name in columns), strict=True)):
        p.grad = p.grad if kept else torch.from_numpy(grad_p.copy())
        q.grad = None if rests else torch.from_numpy(grad_q.copy())
        if i > 0:  # the first step goes by what the optimiser was made with
            optimiser.lr, optimiser.momentum = rates[i], momenta[i]
        optimiser.step()
    return {
        "p": array("p", p),
        "q": array("q", q),
        "the last gradient of q": array("q.grad", q.grad),
        "a parameter without gradient": array("a parameter without gradient", idle),
    }


@storage_only
def train_step(artifact: Any, arrays: Arrays) -> Arrays:
    """The loss of each step, and the parameters after the last; the rate makes up for gradients that are scaled.

    The model is a plain function, which adds an offset to the logits, in the first step or in all. Before the first
    there are gradients of an earlier pass.
    """
    mlp, dtype, wanted, runs = _mlp(artifact, arrays), arrays["x"].dtype, [False], [0]
    offset = artifact.Tensor(torch.from_numpy(np.zeros(arrays["widths"][-1], dtype)), requires_grad=True)
    parameters = [*mlp.parameters(), offset]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter.data)
    optimiser = artifact.SGD(parameters, lr=0.1 / SCALE, momentum=float(arrays["momentum"]))
    losses = []

    def model(x: Any, moved: bool) -> Any:
        wanted[0] |= x.requires_grad
        runs[0] += 1
        return scale_gradient(mlp(x) + offset if moved else mlp(x))

    for images, classes_of, moved in zip(arrays["x"], arrays["y"], arrays["offset is used"], strict=True):
        x, y = torch.from_numpy(images.copy()), torch.from_numpy(classes_of.copy())
        with unchanged(x=x, y=y):
            loss = artifact.train_step(partial(model, moved=bool(moved)), optimiser, x, y)
        losses.append(number("the loss", loss))
    got = {"loss of each step": np.array(losses, dtype), IMAGES_WANT: np.array(wanted[0]), RUNS: np.array(runs[0])}
    after = {f"weight {i} after": array(f"weight {i}", layer.weight) for i, layer in enumerate(mlp.layers)}
    return got | after | {"offset after": array("the offset", offset)}


@storage_only
def step_flops(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `predict_step_flops`: FLOPs of a training step."""
    flops = artifact.predict_step_flops(int(arrays["batch"]), tuple(arrays["widths"].tolist()))
    return {"FLOPs": whole("FLOPs", flops)}


@storage_only
def digits(artifact: Any, arrays: Arrays) -> Arrays:
    """The labels that the learner's classifier gives to unseen images, and those without its engine's gradients.

    With them how many steps it told losses of, how often it went back, and its first loss in both trainings; the labels
    where half of the training images are left, and none of class 0; and, with a few of them, that of one image.
    """
    first: list[float] = []
    again: list[float] = []
    labels, losses, walks = _classify(artifact, arrays, artifact.backward, first)
    told = {"losses": np.array(losses), "backward passes": np.array(walks)}
    blind = np.full_like(labels, -1)
    with suppress(_StopTrainingError):
        blind, _, _ = _classify(artifact, arrays, lambda root, seed: None, again, walks)
    x, y, x_test = (arrays[name] for name in ("x_train", "y_train", "x_test"))
    half = np.arange(len(y)) % 2 == 0
    some = {"x_train": x[half & (y > 0)], "y_train": y[half & (y > 0)], "x_test": x_test}
    without, _, _ = _classify(artifact, some, artifact.backward, [])
    few = {"x_train": x[::8], "y_train": y[::8], "x_test": x_test[:1]}
    alone, _, _ = _classify(artifact, few, artifact.backward, [])
    answers = {"labels": labels, BLIND: blind, WITHOUT: without, ALONE: alone}
    return answers | told | {FIRST: np.array([*first[:1], *again[:1]])}


def _classify(
    artifact: Any, arrays: Arrays, backward: Callable[[Any, Any], None], seen: list[float], most: float = math.inf
) -> tuple[np.ndarray, int, int]:
    """Labels with this function for the learner's `backward`, how many losses, and how often it was called.

    `most` times, not more. What it started from goes into `seen`.
    """
    x_train, y_train, x_test = (torch.from_numpy(arrays[name].copy()) for name in ("x_train", "y_train", "x_test"))
    calls, own, shown = 0, artifact.backward, [0]

    def count(root: Any, seed: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > most:
            raise _StopTrainingError
        seen.append(float(root.data.sum()))
        backward(root, seed)

    def progress(steps: Iterable[Any]) -> Iterable[Any]:
        shown[0] += 1
        return iter(steps)

    artifact.backward = count
    try:
        with unchanged(x_train=x_train, y_train=y_train, x_test=x_test), _refuse_common_numbers():
            got = artifact.train_classifier(x_train, y_train, x_test, progress)
    finally:
        artifact.backward = own
    labels, losses = pair("train_classifier", got, "labels", "losses")
    found = array("the losses", losses)
    if found.size == 0:
        raise InputError("train_classifier gives no losses", got="none", expected="the loss of every step")
    if found.ndim == 0:
        got = describe_value(losses)
        raise InputError("train_classifier gives one number for losses", got=got, expected="the loss of every step")
    if not shown[0]:
        raise InputError("train_classifier shows no progress", got="`progress` is not called", expected="as in `fit`")
    return array("the predicted labels", labels), found.size, calls


@contextmanager
def _refuse_common_numbers() -> Iterator[None]:
    """Raise `InputError` where torch's own generator has another state afterwards; either way it gets its old one."""
    with torch.random.fork_rng(devices=()):
        torch.default_generator.seed()  # no two trainings alike: one that seeds it would end where the last one did
        state = torch.get_rng_state()
        yield
        changed = not torch.equal(torch.get_rng_state(), state)
    if changed:
        drawn, asked = "its state is another", "a torch.Generator of your own for the weights and the order of images"
        raise InputError("train_classifier draws from torch's own generator or seeds it", got=drawn, expected=asked)


class _StopTrainingError(BaseException):
    """Training goes on for longer than it did with gradients: it waits for what it cannot learn."""
