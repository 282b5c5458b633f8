"""How lab 12's checks call the learner's code: denoisers and networks from arrays in, images and numbers out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.checks.learner.values import array, number, pair, whole, word
from mlsys_lab.errors import InputError

PREDICTIONS = ("epsilon", "x0", "v")
SOLVERS = ("ddim", "heun")
"""Names that cross as their places here."""
DIT = ("n_layers", "d_model", "size", "patch", "channels", "out_channels")


def tensors(arrays: Arrays, *names: str) -> list[torch.Tensor]:
    """Inputs as tensors on the arrays' own memory, so that changes show."""
    return [torch.from_numpy(arrays[name]) for name in names]


def label_of(arrays: Arrays) -> torch.Tensor | None:
    """The labels of a case, or None where it has none."""
    return torch.from_numpy(arrays["label"]) if "label" in arrays else None


MOST_CALLS = 200
"""Calls of a denoiser after which a solution counts as endless: no case needs a quarter of them."""


class Watched:
    """The case's aging denoiser, not called yet; refuses levels of a wrong shape, and calls without end."""

    def __init__(self, artifact: Any, arrays: Arrays) -> None:
        self.denoiser = artifact.AgingDenoiser(torch.from_numpy(arrays["centres"]), float(arrays["spread"]))
        self.first, self.calls = arrays["centres"][:1], 0

    def __call__(self, x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
        """Denoise x (B, ...) at levels sigma (B,) of classes label (B,)."""
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise InputError("the calls of the denoiser do not come to an end", got=f"more than {MOST_CALLS}")
        if sigma.shape != x.shape[:1]:
            got, expected = tuple(sigma.shape), tuple(x.shape[:1])
            raise InputError("the denoiser is not given a level for each image", got=got, expected=expected)
        denoised: torch.Tensor = self.denoiser(x, sigma, label)
        return denoised

    def next_answer(self) -> np.ndarray:
        """What it says of its first centre at level 1: another number for each call before."""
        return array("next answer", self(torch.from_numpy(self.first), torch.ones(1, dtype=torch.float64)))


NEXT = "what the denoiser says if called once more"
"""Shows how many calls were made, those whose answer goes nowhere too."""


def tensor(name: str, got: Any) -> np.ndarray:
    """A tensor's numbers; `InputError` for anything else, lists of numbers too."""
    if not isinstance(got, torch.Tensor):
        raise InputError(f"{name} is no tensor", got=type(got).__name__, expected="a torch.Tensor")
    return array(name, got)


# --- Tasks 1 and 2 ----------------------------------------------------------------------------------------------------


def levels(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `levels`: the levels."""
    return {"levels": tensor("levels", artifact.levels(*tensors(arrays, "betas")))}


def edm_grid(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `edm_grid`, with the case's numbers as far as it has them."""
    given = [float(arrays[name]) for name in ("sigma_min", "sigma_max", "rho") if name in arrays]
    return {"grid": tensor("the grid", artifact.edm_grid(int(arrays["steps"]), *given))}


def q_sample(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `q_sample`: noisy images."""
    return {"x": tensor("x", artifact.q_sample(*tensors(arrays, "x0", "sigma", "noise")))}


def mixture(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `denoise_mixture`: denoised points."""
    given = tensors(arrays, "x", "sigma", "means", "weights")
    return {"denoised": tensor("denoised", artifact.denoise_mixture(*given, float(arrays["deviation"])))}


def directions(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `score` and `slope`."""
    given = tensors(arrays, "denoised", "x", "sigma")
    return {name: tensor(name, getattr(artifact, name)(*given)) for name in ("score", "slope")}


def walk_ode(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `walk_ode`: images at the end."""
    denoiser, (x, grid) = Watched(artifact, arrays), tensors(arrays, "x", "grid")
    end = tensor("x", artifact.walk_ode(denoiser, x, grid, label_of(arrays)))
    return {"x": end, NEXT: denoiser.next_answer()}


def walk_sde(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `walk_sde`: images at the end."""
    denoiser, (x, grid, noise) = Watched(artifact, arrays), tensors(arrays, "x", "grid", "noise")
    end = tensor("x", artifact.walk_sde(denoiser, x, grid, noise, label_of(arrays)))
    return {"x": end, NEXT: denoiser.next_answer()}


# --- Task 3 -----------------------------------------------------------------------------------------------------------


class LinearNetwork:
    """A matrix times the pixels, and what it says of level and label; asked as a torch.nn.Module is."""

    def __init__(self, arrays: Arrays) -> None:
        self.matrix, self.by_level, self.by_label = (torch.tensor(arrays[name], requires_grad=True) for name in WEIGHTS)
        self.calls = 0

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """Weights of the network, each with its name."""
        return list(zip(WEIGHTS, self.parameters(), strict=True))

    def parameters(self) -> list[torch.Tensor]:
        """Weights of the network."""
        return [self.matrix, self.by_level, self.by_label]

    def train(self, mode: bool = True) -> LinearNetwork:
        """Return the network, which is the same in training."""
        return self

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for weight in self.parameters():
            weight.grad = None

    def __call__(self, x: torch.Tensor, noise: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
        """Answer to x (B, ...), whose levels noise (B,) tells; the calls before this one show in it."""
        told = self.by_label[-1] if label is None else self.by_label[label]
        flat = x.flatten(1) @ self.matrix.T + noise[:, None] * self.by_level + told + 0.1 * self.calls
        self.calls += 1
        return flat.view_as(x)


WEIGHTS = ("matrix", "by_level", "by_label")


class Descent:
    """Gradient descent at a rate, asked as torch.optim.SGD is, whose first use imports a compiler for seconds."""

    def __init__(self, weights: Iterable[torch.Tensor], rate: float) -> None:
        self.rate = rate
        self.param_groups = [{"params": list(weights)}]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        for weight in self.param_groups[0]["params"]:
            weight.grad = None if set_to_none or weight.grad is None else torch.zeros_like(weight)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every weight against its gradient; what the closure gave, if there is one."""
        loss = closure() if closure else None
        for weight in self.param_groups[0]["params"]:
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
    """Call `update_average` for tensors of different shapes, the weights with gradients: the average in its place."""
    first, second = (torch.tensor(arrays[name]) for name in ("first", "second"))
    weights = [torch.tensor(arrays[name], requires_grad=True) for name in ("first_weight", "second_weight")]
    for _ in range(int(arrays["times"])):
        artifact.update_average([first, second], weights, float(arrays["decay"]))
    if first.requires_grad or second.requires_grad:
        raise InputError("the average tracks gradients", expected="an update under torch.no_grad()")
    return {"first": first.numpy(), "second": second.numpy(), "weight": weights[0].detach().numpy()}


def train_step(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `train_step` for each batch of a case: the losses, and weights and average in the end.

    The network has gradients from before the first step, which are to be cleared.
    """
    network = LinearNetwork(arrays)
    average = [weight.detach().clone() for weight in network.parameters()]
    for weight in network.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer = Descent(network.parameters(), float(arrays["rate"]))
    named = PREDICTIONS[int(arrays["prediction"])]
    losses = []
    for x0, sigma, noise, label in zip(*tensors(arrays, "x0", "sigma", "noise", "label"), strict=True):
        given = (network, optimizer, average, named, x0, sigma, noise, label, float(arrays["decay"]))
        loss = artifact.train_step(*given)
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            raise InputError("the loss keeps the graph of its step", got="a tensor", expected="a float: .item()")
        losses.append(number("the loss", loss))
    if any(mean.requires_grad for mean in average):
        raise InputError("the average tracks gradients", expected="an update under torch.no_grad()")
    answers = {"losses": np.stack(losses)}
    for name, weight, mean in zip(WEIGHTS, network.parameters(), average, strict=True):
        answers |= {name: weight.detach().numpy().copy(), f"average of {name}": mean.detach().numpy().copy()}
    return answers


# --- Tasks 4 to 7 -----------------------------------------------------------------------------------------------------


def posterior(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `posterior`: mean and deviation."""
    x0, x = tensors(arrays, "x0", "x")
    got = artifact.posterior(x0, x, *(float(arrays[name]) for name in ("sigma", "following", "eta")))
    mean, deviation = pair("posterior", got, "mean", "deviation")
    return {"mean": tensor("the mean", mean), "deviation": number("the deviation", deviation)}


def ddim_step(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `ddim_step`: images at the next level."""
    x, noise = tensors(arrays, "x", "noise")
    sigma, following, eta = (float(arrays[name]) for name in ("sigma", "following", "eta"))
    denoiser = Watched(artifact, arrays)
    end = artifact.ddim_step(denoiser, x, sigma, following, noise, eta, label_of(arrays))
    return {"x": tensor("x", end), NEXT: denoiser.next_answer()}


def heun_step(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `heun_step`: images at the next level."""
    (x,) = tensors(arrays, "x")
    sigma, following = float(arrays["sigma"]), float(arrays["following"])
    denoiser = Watched(artifact, arrays)
    end = artifact.heun_step(denoiser, x, sigma, following, label_of(arrays))
    return {"x": tensor("x", end), NEXT: denoiser.next_answer()}


def convergence(artifact: Any, arrays: Arrays) -> Arrays:
    """Walk down one Gaussian's levels by `ddim_step` and by `heun_step`, with S and with 2S steps: the four ends."""
    x, centre = tensors(arrays, "x", "centre")
    first, last, spread = (float(arrays[name]) for name in ("first", "last", "spread"))

    def denoise(x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
        kept = spread**2 / (spread**2 + sigma[:, None] ** 2)
        return kept * x + (1 - kept) * centre

    def ddim(at: torch.Tensor, sigma: float, following: float) -> Any:
        return artifact.ddim_step(denoise, at, sigma, following, torch.ones_like(at))

    def heun(at: torch.Tensor, sigma: float, following: float) -> Any:
        return artifact.heun_step(denoise, at, sigma, following)

    answers: Arrays = {}
    steps: dict[str, Callable[..., Any]] = {"ddim": ddim, "heun": heun}
    for name, step in steps.items():
        for count in (int(arrays["steps"]), 2 * int(arrays["steps"])):
            grid = np.geomspace(first, last, count + 1).tolist()
            at = x
            for sigma, following in pairwise(grid):
                at = step(at, sigma, following)
            answers[f"{name}, {count} steps"] = tensor("x", at)
    return answers


def guide(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `guide`: guided images."""
    x, sigma, label, scale = tensors(arrays, "x", "sigma", "label", "scale")
    interval = [
        torch.from_numpy(arrays[name]) if arrays[name].ndim else float(arrays[name]) for name in ("low", "high")
    ]
    denoiser = Watched(artifact, arrays)
    got = artifact.guide(denoiser, x, sigma, label, scale, len(arrays["centres"]) - 2, *interval)
    return {"denoised": tensor("denoised", got), NEXT: denoiser.next_answer()}


def dit_of(artifact: Any, arrays: Arrays) -> Any:
    """The case's sizes as the notebook's own record."""
    return artifact.DiT(**dict(zip(DIT, arrays["config"].tolist(), strict=True)))


def machine_of(artifact: Any, arrays: Arrays) -> Any:
    """The case's machine as the notebook's own record."""
    return artifact.Machine(*arrays["rates"].tolist())


def dit_work(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `dit_work`: FLOPs and bytes."""
    got = artifact.dit_work(dit_of(artifact, arrays), int(arrays["images"]), int(arrays["element_bytes"]))
    flops, moved = pair("dit_work", got, "FLOPs", "bytes")
    return {"FLOPs": whole("FLOPs", flops), "bytes": whole("bytes", moved)}


def predict_step(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `predict_step`: seconds, and what binds."""
    given = (dit_of(artifact, arrays), int(arrays["images"]), machine_of(artifact, arrays))
    got = artifact.predict_step(*given, int(arrays["element_bytes"]))
    seconds, bound = pair("predict_step", got, "seconds", "what binds")
    return {"seconds": number("seconds", seconds), "bound": word("what binds", bound, ("compute", "memory"))}


def least_batch(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `least_batch`: a number of images."""
    got = artifact.least_batch(dit_of(artifact, arrays), machine_of(artifact, arrays), int(arrays["element_bytes"]))
    return {"images": whole("images", got)}


def predict_image(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `predict_image_s`: seconds."""
    given = (dit_of(artifact, arrays), machine_of(artifact, arrays), int(arrays["steps"]))
    how = (SOLVERS[int(arrays["solver"])], bool(arrays["guided"]))
    got = artifact.predict_image_s(*given, *how, int(arrays["requests"]), int(arrays["element_bytes"]))
    return {"seconds": number("seconds", got)}


def serve(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `serve` for the requests of a case: their images."""
    grids = torch.split(torch.from_numpy(arrays["grids"]), (arrays["steps"] + 1).tolist())
    noise, label, guidance = torch.from_numpy(arrays["noise"]), arrays["label"].tolist(), arrays["guidance"].tolist()
    given = zip(noise, label, grids, guidance, strict=True)
    asked = [artifact.Request(*one, *how) for *one, how in given]
    denoiser = Watched(artifact, arrays)
    got = artifact.serve(denoiser, asked, len(arrays["centres"]) - 2, int(arrays["slots"]))
    if not isinstance(got, list | tuple):
        raise InputError("serve gives no list", got=type(got).__name__, expected="a list of images")
    images = {f"image {i}": tensor("an image", image) for i, image in enumerate(got)}
    return images | {NEXT: denoiser.next_answer()}
