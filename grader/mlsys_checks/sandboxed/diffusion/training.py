"""How lab 12's checks call predictions, losses and a step of training: a linear network in, numbers out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

from mlsys_checks.sandboxed.diffusion.denoisers import label_of, tensor, tensors
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import number
from mlsys_lab.errors import InputError

PREDICTIONS = ("epsilon", "x0", "v")
"""What a network may predict; the names cross as their places here."""
WEIGHTS = ("matrix", "by_level", "by_label")
"""The weights that every linear network has, in their order."""
OFFSET = "offset"
"""How the names begin of weights that a network may have beside these: pixels that its answers are moved by."""


def weights_of(arrays: Arrays) -> tuple[str, ...]:
    """Names of all weights of a linear network, in their order."""
    return (*WEIGHTS, *(name for name in arrays if name.startswith(OFFSET)))


class LinearNetwork:
    """A matrix times the pixels, and what it says of level and label; asked as a torch.nn.Module is."""

    def __init__(self, arrays: Arrays) -> None:
        self.weights = {name: torch.tensor(arrays[name], requires_grad=True) for name in weights_of(arrays)}
        self.calls = 0

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Weights of the network, each with its name."""
        return iter(self.weights.items())

    def parameters(self) -> Iterator[torch.Tensor]:
        """Weights of the network, once."""
        return iter(self.weights.values())

    def train(self, mode: bool = True) -> LinearNetwork:
        """Return the network, which is the same in training."""
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        for weight in self.parameters():
            weight.grad = None if set_to_none or weight.grad is None else torch.zeros_like(weight)

    def __call__(self, x: torch.Tensor, noise: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
        """Answer to x (B, ...), whose levels noise (B,) tells; the calls before this one show in it."""
        matrix, by_level, by_label, *offsets = self.weights.values()
        told = by_label[-1] if label is None else by_label[label]
        flat = x.reshape(len(x), -1) @ matrix.T + noise[:, None] * by_level + told + 0.1 * self.calls
        flat = sum(offsets, flat)
        self.calls += 1
        return flat.view_as(x)


class Descent:
    """Gradient descent at a rate, asked as torch.optim.SGD is, whose first use imports a compiler for seconds.

    The first weight is a group of its own, as matrices are where only they decay.
    """

    def __init__(self, weights: Iterable[torch.Tensor], rate: float) -> None:
        self.rate, self.weights = rate, list(weights)
        self.param_groups = [{"params": self.weights[:1]}, {"params": self.weights[1:]}]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        for weight in self.weights:
            weight.grad = None if set_to_none or weight.grad is None else torch.zeros_like(weight)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every weight against its gradient; what the closure gave, if there is one."""
        loss = closure() if closure else None
        for weight in self.weights:
            if weight.grad is None:
                raise InputError("the optimizer steps without gradients", help="loss.backward() comes before it")
            weight.data -= self.rate * weight.grad
        return loss


def predictions(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `target` and `denoised_from`."""
    named = PREDICTIONS[int(arrays["prediction"])]
    x0, sigma, noise, answer, x = tensors(arrays, "x0", "sigma", "noise", "answer", "x")
    return {
        "target": tensor("target", artifact.target(named, x0, sigma, noise)),
        "denoised": tensor("denoised", artifact.denoised_from(named, answer, x, sigma)),
    }


def loss_weight(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `loss_weight`: a weight for each image."""
    named = PREDICTIONS[int(arrays["prediction"])]
    return {"weight": tensor("weight", artifact.loss_weight(named, *tensors(arrays, "sigma")))}


def p_losses(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `p_losses` on a linear network: a loss for each image."""
    named, given = PREDICTIONS[int(arrays["prediction"])], tensors(arrays, "x0", "sigma", "noise")
    got = artifact.p_losses(LinearNetwork(arrays), named, *given, label_of(arrays))
    return {"losses": tensor("losses", got.detach() if isinstance(got, torch.Tensor) else got)}


def drop_labels(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `drop_labels`: labels, some of which are null."""
    given = tensors(arrays, "label", "uniforms")
    return {"label": tensor("label", artifact.drop_labels(*given, float(arrays["share"]), int(arrays["null"])))}


def update_average(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `update_average` for a matrix that lies turned in memory and a vector, before the weights go on.

    One of the weights has gradients, the other is frozen. A list of the two is made for each call: only they last.
    """
    average = torch.from_numpy(arrays["first"].T.copy()).T, torch.from_numpy(arrays["second"].copy())
    weights = [torch.tensor(arrays[f"{name}_weight"], requires_grad=name == "first") for name in ("first", "second")]
    for _ in range(int(arrays["times"])):
        artifact.update_average(list(average), weights, float(arrays["decay"]))
    if any(mean.requires_grad for mean in average):
        raise InputError("the average tracks gradients", expected="an update under torch.no_grad()")
    weight = weights[0].detach().numpy().copy()
    for one in weights:
        one.data.fill_(0)
    return {"first": average[0].numpy(), "second": average[1].numpy(), "weight": weight}


def train_step(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `train_step` for each batch of a case: the losses, and weights and average in the end.

    The network has gradients from before the first step, which are to be cleared; the optimizer has the weights that
    are `trained`, in this order.
    """
    network = LinearNetwork(arrays)
    average = [weight.detach().clone() for weight in network.parameters()]
    for weight in network.parameters():
        weight.grad = torch.ones_like(weight)
    weights = list(network.parameters())
    optimizer = Descent([weights[place] for place in arrays["trained"]], float(arrays["rate"]))
    named = PREDICTIONS[int(arrays["prediction"])]
    losses = []
    for x0, sigma, noise, label in zip(*tensors(arrays, "x0", "sigma", "noise", "label"), strict=True):
        given = (network, optimizer, list(average), named, x0, sigma, noise, label, float(arrays["decay"]))
        loss = artifact.train_step(*given)
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            raise InputError("the loss keeps the graph of its step", got="a tensor", expected="a float: .item()")
        losses.append(number("the loss", loss))
    if any(mean.requires_grad for mean in average):
        raise InputError("the average tracks gradients", expected="an update under torch.no_grad()")
    answers = {"losses": np.stack(losses)}
    for (name, weight), mean in zip(network.named_parameters(), average, strict=True):
        answers |= {name: weight.detach().numpy().copy(), f"average of {name}": mean.detach().numpy().copy()}
    return answers
