"""Run the learner's code for lab 12's checks: denoisers and networks are built from arrays, and called by it.

A denoiser counts its calls, and each call changes the next answer: a result is right only if the denoiser was called
as often, and with as many images, as the task asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from mlsys_checks.sandboxed.exceptions import ProblemError
from mlsys_checks.sandboxed.spec import Arrays, Mismatch, Query
from mlsys_checks.sandboxed.values import array, describe_value, number, pair, whole, word
from mlsys_lab.errors import InputError

CALL, LAST = "call", "last"
"""What a denoiser queries with the number of its images: the addition of a call, and that of one call more."""
AGE, CROWD = 0.05, 0.01
"""What a denoiser without a partner adds: for each earlier call, and for each image of this call."""
CALLS, NEXT = "images in each call", "answer to one call more"
"""Names of two arrays: the first can be read, the second cannot be known without making the calls."""
END, STEPPED = "what the sampler returned", "what ddim_step returned"
PREDICTIONS = ("epsilon", "x0", "v", "flow", "edm")
SOLVERS = ("ddim", "heun")
LIMITS = ("compute", "memory")
CLASSES = 1000
"""Classes of a DiT, whose embeddings are no matrix product."""
OFFSET = "offset"
"""Prefix of the names of parameters that a network may have besides its three."""


def tensors(arrays: Arrays, *names: str) -> list[torch.Tensor]:
    """Inputs as tensors that share memory with the arrays, so that changes show."""
    return [torch.from_numpy(arrays[name]) for name in names]


def label_of(arrays: Arrays) -> torch.Tensor | None:
    return torch.from_numpy(arrays["label"]) if "label" in arrays else None


def tensor(name: str, got: Any) -> np.ndarray:
    """Numbers of a tensor; `InputError` for anything else, lists of numbers included."""
    if not isinstance(got, torch.Tensor):
        raise InputError(f"{name} returned no tensor", got=describe_value(got), expected="a torch.Tensor")
    return array(name, got.detach())


class AgingDenoiser:
    """Denoiser of Gaussians around `centres` (K + 2, ...): of K classes, of the null class, and without labels.

    `query` says what a call adds to the exact answer. Guidance scales move the centres.
    """

    def __init__(self, centres: torch.Tensor, spread: float, query: Query | None = None) -> None:
        self.centres, self.spread, self.query = centres, spread, query
        self.images: list[int] = []
        self._answers: list[tuple[torch.Tensor, np.ndarray]] = []

    def __call__(
        self,
        x: torch.Tensor,
        sigma: torch.Tensor,
        label: torch.Tensor | None = None,
        scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Denoise x (B, ...) at levels sigma (B,) of classes label (B,), guided by scale (B,)."""
        for name, values, dtype in (
            ("sigma", sigma, torch.float64),
            ("label", label, torch.int64),
            ("scale", scale, torch.float64),
        ):
            if values is not None or name == "sigma":
                _require_one_per_image(name, values, dtype, x)
        denoised = self._denoise(CALL, x, sigma, label, scale)
        self.images.append(len(x))
        self._answers.append((denoised, array("the answer", denoised.detach())))
        return denoised

    def results(self) -> Arrays:
        """Number of images in each call, and the answer to a further call."""
        if not all(np.array_equal(given.detach().numpy(), was, equal_nan=True) for given, was in self._answers):
            what = "your code overwrites a tensor that the denoiser returned"
            raise InputError(what, got="an operation in place (x += …, x.add_(…))", expected="a new tensor")
        return {CALLS: np.array(self.images, np.int64), NEXT: array(NEXT, self.next_answer())}

    def next_answer(self) -> torch.Tensor:
        """Answer to one call more, about the centres at level 1."""
        return self._denoise(LAST, self.centres, torch.ones(len(self.centres), dtype=torch.float64), None, None)

    def _denoise(
        self, what: str, x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor | None, scale: torch.Tensor | None
    ) -> torch.Tensor:
        kept = _per_image(self.spread**2 / (self.spread**2 + sigma**2), x)
        centre = self.centres[-1] if label is None else self.centres[label]
        centre = centre if scale is None else centre * _per_image(scale, x)
        count = len(self.images)
        try:
            added = AGE * count + CROWD * len(x) if self.query is None else self.query(what, len(x))
        except InputError as error:
            raise ProblemError(Mismatch(error.what, str(error.got), str(error.expected))) from None
        return kept * x + (1 - kept) * centre + added


def _per_image(values: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    return values.to(images).reshape(-1, *[1] * (images.ndim - 1))


def _require_one_per_image(name: str, values: Any, dtype: torch.dtype, x: torch.Tensor) -> None:
    if not isinstance(values, torch.Tensor) or values.shape != x.shape[:1] or values.dtype != dtype:
        tensor = isinstance(values, torch.Tensor)
        got = f"{values.dtype} of shape {tuple(values.shape)}" if tensor else describe_value(values)
        what = f"the denoiser was called with a wrong `{name}` for images of shape {tuple(x.shape)}"
        raise ProblemError(Mismatch(what, got, f"{dtype} of shape {tuple(x.shape[:1])}", is_form=True))


def make_denoiser(query: Query, arrays: Arrays) -> AgingDenoiser:
    return AgingDenoiser(torch.from_numpy(arrays["centres"]), float(arrays["spread"]), query)


# --- Noise levels and exact denoisers ---------------------------------------------------------------------------------


def sigmas(artifact: Any, arrays: Arrays) -> Arrays:
    return {"levels": tensor("sigmas", artifact.sigmas(*tensors(arrays, "alphas_cumprod")))}


def edm_grid(artifact: Any, arrays: Arrays) -> Arrays:
    given = [float(arrays[name]) for name in ("sigma_min", "sigma_max", "rho") if name in arrays]
    return {"grid": tensor("edm_grid", artifact.edm_grid(int(arrays["steps"]), *given))}


def mixture(artifact: Any, arrays: Arrays) -> Arrays:
    mixture = artifact.Mixture(*tensors(arrays, "means", "weights"), float(arrays["deviation"]))
    x, sigma = tensors(arrays, "x", "sigma")
    mixture(2 * x, 2 * sigma)
    p = tensor("responsibilities", mixture.responsibilities(x, sigma))
    return {"responsibilities": p, "denoised": tensor("mixture(x, sigma)", mixture(x, sigma, label_of(arrays)))}


def sample_ode(artifact: Any, query: Query, arrays: Arrays) -> Arrays:
    denoiser, (x, grid) = make_denoiser(query, arrays), tensors(arrays, "x", "grid")
    end = tensor("sample_ode", artifact.sample_ode(denoiser, x, grid, label_of(arrays)))
    return {END: end, **denoiser.results()}


def sample_sde(artifact: Any, query: Query, arrays: Arrays) -> Arrays:
    denoiser, (x, grid, noise) = make_denoiser(query, arrays), tensors(arrays, "x", "grid", "noise")
    end = tensor("sample_sde", artifact.sample_sde(denoiser, x, grid, noise, label_of(arrays)))
    return {END: end, **denoiser.results()}


# --- Loss and training ------------------------------------------------------------------------------------------------


def parameters_of(arrays: Arrays) -> tuple[str, ...]:
    """Names of a linear network's parameters, in their order."""
    return ("matrix", "by_level", "by_label", *(name for name in arrays if name.startswith(OFFSET)))


class LinearNetwork:
    """A matrix times the pixels, shifted by level and label; has what the tasks need of a torch.nn.Module."""

    def __init__(self, arrays: Arrays) -> None:
        self.tensors = {name: torch.tensor(arrays[name], requires_grad=True) for name in parameters_of(arrays)}
        self.calls = 0

    def __call__(self, x: torch.Tensor, noise: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
        """Output for x (B, ...) with c_noise (B,) and label (B,); each earlier call adds 0.1."""
        _require_one_per_image("noise", noise, x.dtype, x)
        matrix, by_level, by_label, *offsets = self.parameters()
        shift = by_label[-1] if label is None else by_label[label]
        flat = x.reshape(len(x), -1) @ matrix.T + noise[:, None] * by_level + shift + 0.1 * self.calls
        self.calls += 1
        return sum(offsets, flat).view_as(x)

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self.tensors.items())

    def parameters(self) -> Iterator[torch.Tensor]:
        return iter(self.tensors.values())

    def buffers(self) -> Iterator[torch.Tensor]:
        return iter(())

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {name: parameter.detach() for name, parameter in self.tensors.items()}

    def load_state_dict(self, state_dict: dict[str, torch.Tensor], strict: bool = True) -> None:
        for name, value in state_dict.items():
            self.tensors[name].data.copy_(value)

    def requires_grad_(self, wanted: bool = True) -> LinearNetwork:
        for parameter in self.parameters():
            parameter.requires_grad_(wanted)
        return self

    def train(self, mode: bool = True) -> LinearNetwork:
        return self

    eval = train

    def zero_grad(self, set_to_none: bool = True) -> None:
        clear_gradients(self.parameters(), set_to_none)


def clear_gradients(parameters: Iterable[torch.Tensor], set_to_none: bool) -> None:
    for parameter in parameters:
        parameter.grad = None if set_to_none or parameter.grad is None else torch.zeros_like(parameter)


class Coefficients(NamedTuple):
    """Four coefficients, each (B,), in EDM's order."""

    skip: torch.Tensor
    out: torch.Tensor
    into: torch.Tensor
    noise: torch.Tensor


class GivenDenoiser:
    """A network as a denoiser, with coefficients that belong to no prediction type of the lab."""

    def __init__(self, network: LinearNetwork) -> None:
        self.network = network

    def at(self, sigma: torch.Tensor) -> Coefficients:
        return Coefficients(1 / (2 + sigma), -(2 + sigma) / (1 + sigma), 0.9 / (1 + sigma), sigma.log() / 4)

    def __call__(self, x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
        c = self.at(sigma)
        output = self.network(_per_image(c.into, x) * x, c.noise.to(x), label)
        return _per_image(c.skip, x) * x + _per_image(c.out, x) * output

    forward = __call__


class Descent:
    """Gradient descent, called as torch.optim.SGD is, which would import a compiler for seconds."""

    def __init__(self, parameters: Iterable[torch.Tensor], rate: float) -> None:
        self.rate, self.parameters = rate, list(parameters)
        self.param_groups = [{"params": self.parameters[:1]}, {"params": self.parameters[1:]}]

    def zero_grad(self, set_to_none: bool = True) -> None:
        clear_gradients(self.parameters, set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = closure() if closure else None
        for parameter in self.parameters:
            if parameter.grad is None:
                what = "train_step calls optimizer.step() when there are no gradients"
                raise ProblemError(Mismatch(what, expected="loss.backward() before it, and no clearing in between"))
            parameter.data -= self.rate * parameter.grad
        return loss


class Recorder:
    """An average that records the parameters of a model whenever it is updated."""

    def __init__(self) -> None:
        self.records: list[Arrays] = []

    def update(self, model: LinearNetwork) -> None:
        self.records.append(read_parameters(model, f"in update {len(self.records) + 1} of the average: "))


def read_parameters(model: LinearNetwork, prefix: str = "") -> Arrays:
    return {prefix + name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}


def predictions(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `coefficients`, and `Preconditioned` on a linear network, the second time with the levels of the case."""
    prediction, (x, sigma) = PREDICTIONS[int(arrays["prediction"])], tensors(arrays, "x", "sigma")
    got = artifact.coefficients(prediction, sigma, float(arrays["sigma_data"]))
    if not isinstance(got, tuple) or len(got) != 4:
        expected = "Coefficients(skip, out, into, noise)"
        raise InputError(f"coefficients({prediction!r}, sigma) is wrong", got=describe_value(got), expected=expected)
    names = ("c_skip", "c_out", "c_in", "c_noise")
    found = {name: tensor(name, one) for name, one in zip(names, got, strict=True)}
    denoiser = artifact.Preconditioned(LinearNetwork(arrays), prediction, float(arrays["sigma_data"]))
    denoiser.forward(x, 2 * sigma, label_of(arrays))
    return found | {"denoised": tensor("forward", denoiser.forward(x, sigma, label_of(arrays)))}


def p_losses(artifact: Any, arrays: Arrays) -> Arrays:
    given = tensors(arrays, "x0", "sigma", "noise")
    got = artifact.p_losses(GivenDenoiser(LinearNetwork(arrays)), *given, label_of(arrays))
    losses = {"losses": tensor("p_losses", got)}
    if not got.requires_grad:
        expected = "losses whose backward() reaches the network's parameters: no torch.no_grad(), no detach()"
        raise InputError("the losses of p_losses have no graph", got="requires_grad is False", expected=expected)
    return losses


def update_average(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `EMA.update` with a model that moves on before each update, and read the average after the last one."""
    model = LinearNetwork(arrays)
    model.tensors["by_level"].requires_grad_(False)
    average = artifact.EMA(model, float(arrays["decay"]))
    held = [one.detach() for one in average.model.parameters()]
    for move in arrays["moves"].tolist():
        for parameter in model.parameters():
            parameter.data += move
        average.update(model)
    if any(one.requires_grad for one in average.model.parameters()):
        raise InputError("the average tracks gradients after update()", expected="an update under torch.no_grad()")
    if any(one.data_ptr() != other.data_ptr() for one, other in zip(held, average.model.parameters(), strict=True)):
        raise InputError("update() replaces tensors of ema.model", expected="the same tensors, changed in place")
    found = read_parameters(average.model, "average of ") | read_parameters(model)
    for parameter in model.parameters():
        parameter.data.zero_()
    kept = read_parameters(average.model, "average of ")
    if any(not np.array_equal(kept[name], found[name], equal_nan=True) for name in kept):
        raise InputError("ema.model shares memory with the model", expected="a copy that only update() changes")
    return found


def train_step(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `train_step` for each batch of a case; the model has gradients from before the first one."""
    model, average = LinearNetwork(arrays), Recorder()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    parameters = list(model.parameters())
    optimizer = Descent([parameters[i] for i in arrays["trained"]], float(arrays["rate"]))
    losses = []
    for x, level, label in zip(*tensors(arrays, "x", "level", "label"), strict=True):
        loss = artifact.train_step(model, model(x, level, label).square().flatten(1).mean(1), optimizer, average)
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            raise InputError("the loss that train_step returns keeps its graph", got="a tensor", expected=".item()")
        losses.append(number("the loss that train_step returns", loss))
    records = {name: one for record in average.records for name, one in record.items()}
    return {"losses": np.stack(losses), **read_parameters(model), **records}


# --- Samplers, guidance, server ---------------------------------------------------------------------------------------


def posterior(artifact: Any, query: Query, arrays: Arrays) -> Arrays:
    """Call `posterior` and `ddim_step` with the same numbers."""
    (x0, x, noise), denoiser = tensors(arrays, "x0", "x", "noise"), make_denoiser(query, arrays)
    sigma, sigma_next, eta = (float(arrays[name]) for name in ("sigma", "sigma_next", "eta"))
    mean, deviation = pair("posterior", artifact.posterior(x0, x, sigma, sigma_next, eta), "mean", "deviation")
    if isinstance(deviation, torch.Tensor) and deviation.dtype != torch.float64:
        got = f"a tensor of {deviation.dtype}"
        raise InputError("posterior returned a rounded deviation", got=got, expected="a Python float: use math.sqrt")
    found = {"mean of posterior": tensor("mean", mean), "deviation of posterior": number("deviation", deviation)}
    end = artifact.ddim_step(denoiser, x, sigma, sigma_next, noise, eta, label_of(arrays))
    return found | {STEPPED: tensor("ddim_step", end), **denoiser.results()}


def heun_step(artifact: Any, query: Query, arrays: Arrays) -> Arrays:
    """Call `heun_step` from each level of a grid to the next."""
    denoiser, (x,) = make_denoiser(query, arrays), tensors(arrays, "x")
    found: Arrays = {}
    for i, (sigma, sigma_next) in enumerate(pairwise(arrays["grid"].tolist()), 1):
        x = artifact.heun_step(denoiser, x, sigma, sigma_next, label_of(arrays))
        found[f"what heun_step returned, step {i}"] = tensor("heun_step", x)
    return found | denoiser.results()


def guide(artifact: Any, query: Query, arrays: Arrays) -> Arrays:
    denoiser, null = make_denoiser(query, arrays), len(arrays["centres"]) - 2
    scale = torch.from_numpy(arrays["scale"]) if arrays["scale"].ndim else float(arrays["scale"])
    interval = [float(arrays[name]) for name in ("low", "high") if name in arrays]
    guided = artifact.ClassifierFreeGuidance(denoiser, scale, null, *interval)
    got = guided(*tensors(arrays, "x", "sigma", "label"))
    return {"denoised": tensor("ClassifierFreeGuidance", got), **denoiser.results()}


def make_requests(artifact: Any, arrays: Arrays) -> list[Any]:
    """Requests of a case, of which the last may be the first once more."""
    grids = torch.split(torch.from_numpy(arrays["grids"]), (arrays["steps"] + 1).tolist())
    noise, label, guidance = torch.from_numpy(arrays["noise"]), arrays["label"].tolist(), arrays["guidance"].tolist()
    requests = [artifact.Request(*one, *how) for *one, how in zip(label, grids, noise, guidance, strict=True)]
    return [*requests[:-1], requests[0]] if arrays["twice"] else requests


def serve(artifact: Any, query: Query, arrays: Arrays) -> Arrays:
    denoiser, requests = make_denoiser(query, arrays), make_requests(artifact, arrays)
    count = len(requests)
    got = artifact.serve(denoiser, requests, int(arrays["slots"]))
    if len(requests) != count:
        raise InputError("serve changes its list of requests", got=f"{len(requests)} left", expected=str(count))
    if not isinstance(got, list | tuple) or len(got) != count:
        raise InputError("serve returned something else", got=describe_value(got), expected=f"a list of {count} images")
    images = [tensor("serve", image) for image in got]
    if len({(image.shape, image.dtype) for image in images}) > 1:
        shapes = ", ".join(f"{image.shape} {image.dtype}" for image in images)[:80]
        raise InputError("the images of serve differ in shape or dtype", got=shapes, expected="those of the noise")
    return {"images": np.array(images) if images else arrays["noise"], **denoiser.results()}


# --- Cost -------------------------------------------------------------------------------------------------------------


def step_cost(artifact: Any, arrays: Arrays) -> Arrays:
    *sizes, out_channels = arrays["config"].tolist()
    config = artifact.DiTConfig("case", *sizes, CLASSES, out_channels)
    got = artifact.step_cost(config, int(arrays["batch"]), int(arrays["element_bytes"]))
    flops, weight_bytes = pair("step_cost", got, "flops", "weight_bytes")
    return {"flops": whole("flops", flops), "weight_bytes": whole("weight_bytes", weight_bytes)}


def predict_image(artifact: Any, arrays: Arrays) -> Arrays:
    cost, machine = artifact.Cost(*arrays["cost"].tolist()), artifact.Machine(*arrays["rates"].tolist())
    solver, guided = SOLVERS[int(arrays["solver"])], bool(arrays["guided"])
    got = artifact.predict_image(cost, machine, int(arrays["steps"]), solver, guided, int(arrays["requests"]))
    seconds, limit = pair("predict_image", got, "seconds", "limit")
    return {"seconds": number("seconds", seconds), "limit": word("the second value of predict_image", limit, LIMITS)}
