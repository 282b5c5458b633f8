"""Calls of task 7: a network that learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mlsys_lab.checks.learner.autograd.engine import storage_only
from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.checks.learner.values import array, number, pair, whole


def _mlp(artifact: Any, arrays: Arrays) -> Any:
    """The learner's network with copies of the given weights, which a step may change in place."""
    model = artifact.MLP(*arrays["widths"].tolist())
    for i, layer in enumerate(model.layers):
        layer.weight.data = torch.from_numpy(arrays[f"weight {i}"].copy())
        layer.bias.data = torch.from_numpy(arrays[f"bias {i}"].copy())
    return model


@storage_only
def forward_and_back(artifact: Any, arrays: Arrays) -> Arrays:
    """Logits, and the gradients of all weights and biases."""
    model = _mlp(artifact, arrays)
    logits = model(artifact.Tensor(torch.from_numpy(arrays["x"])))
    artifact.backward(logits, torch.from_numpy(arrays["g"]))
    got = {"logits": array("logits", logits)}
    for i, layer in enumerate(model.layers):
        got[f"gradient of weight {i}"] = array(f"gradient of weight {i}", layer.weight.grad)
        got[f"gradient of bias {i}"] = array(f"gradient of bias {i}", layer.bias.grad)
    return got


@storage_only
def sgd(artifact: Any, arrays: Arrays) -> Arrays:
    """Parameters after some steps with given gradients and rates: one now and then without a gradient, one always."""
    p, q, idle = (artifact.Tensor(torch.from_numpy(arrays[n].copy()), requires_grad=True) for n in ("p", "q", "q"))
    optimiser = artifact.SGD([p, q, idle], lr=float(arrays["rates"][0]), momentum=float(arrays["momentum"]))
    columns = ("gradients of p", "gradients of q", "q rests", "rates")
    for grad_p, grad_q, rests, rate in zip(*(arrays[name] for name in columns), strict=True):
        p.grad, q.grad = torch.from_numpy(grad_p.copy()), None if rests else torch.from_numpy(grad_q.copy())
        optimiser.lr = float(rate)
        optimiser.step()
    return {
        "p": array("p", p),
        "q": array("q", q),
        "the last gradient of q": array("q.grad", q.grad),
        "a parameter without gradient": array("a parameter without gradient", idle),
    }


@storage_only
def train_step(artifact: Any, arrays: Arrays) -> Arrays:
    """The loss of each step, and the weights after the last."""
    model = _mlp(artifact, arrays)
    optimiser = artifact.SGD(model.parameters(), lr=0.1, momentum=float(arrays["momentum"]))
    losses = [
        number("the loss", artifact.train_step(model, optimiser, torch.from_numpy(x), torch.from_numpy(y)))
        for x, y in zip(arrays["x"], arrays["y"], strict=True)
    ]
    got = {"loss of each step": np.array(losses, dtype=np.float32)}
    return got | {f"weight {i} after": array(f"weight {i}", layer.weight) for i, layer in enumerate(model.layers)}


@storage_only
def step_flops(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `predict_step_flops`: FLOPs of a training step."""
    flops = artifact.predict_step_flops(int(arrays["batch"]), tuple(arrays["widths"].tolist()))
    return {"FLOPs": whole("FLOPs", flops)}


@storage_only
def digits(artifact: Any, arrays: Arrays) -> Arrays:
    """The labels that the learner's classifier gives to unseen images."""
    x_train, y_train, x_test = (torch.from_numpy(arrays[name]) for name in ("x_train", "y_train", "x_test"))
    got = artifact.train_classifier(x_train, y_train, x_test)
    labels, _ = pair("train_classifier", got, "labels", "losses")
    return {"labels": array("the predicted labels", labels)}
