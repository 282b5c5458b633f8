"""Generators of lab 12's cases, their oracles in float64, and public cases rendered as code.

`draw_…` returns the inputs of a case, `expect_…` the right answers, `render_…` the case as code to paste.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.diffusion import (
    AGE,
    CALL,
    CALLS,
    CROWD,
    END,
    LAST,
    NEXT,
    OFFSET,
    PREDICTIONS,
    SOLVERS,
    STEPPED,
)
from mlsys_checks.sandboxed.diffusion import CLASSES as DIT_CLASSES
from mlsys_checks.sandboxed.diffusion import parameters_of as names_of
from mlsys_checks.sandboxed.spec import Arrays, Case, Mismatch
from mlsys_checks.sandboxed.values import encode_text
from mlsys_checks.trusted.answers import agree, likely
from mlsys_checks.trusted.compare import close
from mlsys_lab.errors import InputError

Rng = np.random.Generator
MAX_CALLS = 200
"""Calls of a denoiser after which a solution counts as endless: no case needs a quarter of them."""
LEVELS = ((0.05, 20.0), (1e-5, 5e-4))
"""Ranges of noise levels: usual ones, and so low that a threshold would take them for 0."""


def column(values: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Values (B,) with axes that broadcast over images (B, ...)."""
    return values.reshape(-1, *[1] * (images.ndim - 1))


def _draw_shape(rng: Rng, p: Any) -> tuple[int, ...]:
    """Draw the shape of a batch, sometimes with as many columns as images."""
    sides = rng.integers(1, 5, p["axes"]).tolist()
    if sides and rng.random() < 0.3 and p["images"] <= 6:
        sides[-1] = p["images"]
    return (p["images"], *sides)


def _dtype(p: Any) -> str:
    return "float32" if p.get("single") else "float64"


def _draw_images(rng: Rng, p: Any, shape: tuple[int, ...], *names: str) -> Arrays:
    return {name: rng.standard_normal(shape).astype(_dtype(p)) for name in names}


def _draw_levels(rng: Rng, p: Any, count: int) -> np.ndarray:
    low, high = LEVELS[p.get("low", 0)]
    levels: np.ndarray = np.exp(rng.uniform(math.log(low), math.log(high), count))
    return levels


def _draw_grid(rng: Rng, p: Any, steps: int) -> np.ndarray:
    """Draw falling levels (steps + 1,), of which the last is 0 or `above` it; neighbours differ by a tenth at least."""
    ratios = rng.uniform(0.3, 0.9, steps)
    grid = np.cumprod([_draw_levels(rng, p, 1)[0], *ratios])
    grid[-1] *= p.get("above", rng.random() < 0.5)
    return grid


# --- A denoiser that ages ---------------------------------------------------------------------------------------------


def _draw_denoiser(rng: Rng, case: Case, shape: tuple[int, ...]) -> Arrays:
    """Draw centres of 2 to 5 classes, of the null class and of no label; labels unless the case is `unlabelled`.

    A hidden case adds amounts to the answers that cannot be known without making the calls.
    """
    (images, *sides), p = shape, case.params
    classes = p.get("classes") or int(rng.integers(2, 6))
    centres = rng.standard_normal((classes + 2, *sides)).astype(_dtype(p))
    given = {"centres": centres, "spread": np.array(rng.uniform(0.3, 0.8))}
    if not p.get("unlabelled"):
        given["label"] = rng.integers(0, classes + 1, images)
    if case.hidden:
        return {**given, "_ages": rng.uniform(0, 1, (2, MAX_CALLS + 1)), "_crowd": rng.uniform(0.01, 0.1, ())}
    return {**given, "_ages": AGE * np.tile(np.arange(MAX_CALLS + 1), (2, 1)), "_crowd": np.array(CROWD)}


class Ages:
    """The judge's side of an aging denoiser: counts its calls and says what each adds."""

    def __init__(self, arrays: Arrays) -> None:
        (self._ages, self._last), self._crowd = arrays["_ages"], arrays["_crowd"]
        self.calls, self._is_over = 0, False

    def __call__(self, what: str, images: int) -> float:
        """Addition of a call with this number of images, or of one call after the last."""
        if self._is_over or what not in (CALL, LAST):
            what = "the denoiser is called after the end"
            raise InputError(what, got=what, expected="calls before the function returns")
        if what == CALL and self.calls == MAX_CALLS:
            what, expected = "the calls of the denoiser do not come to an end", "one per step, or two with Heun"
            raise InputError(what, got=f"more than {MAX_CALLS} calls", expected=expected)
        added = float((self._ages if what == CALL else self._last)[self.calls] + self._crowd * images)
        self.calls += what == CALL
        self._is_over = what == LAST
        return added


class AgingOracle:
    """The case's denoiser in float64; counts its calls."""

    def __init__(self, arrays: Arrays) -> None:
        self.centres, self.dtype = arrays["centres"].astype(np.float64), arrays["centres"].dtype
        self.variance, self.ages = float(arrays["spread"]) ** 2, Ages(arrays)
        self.images: list[int] = []

    def __call__(self, x: np.ndarray, sigma: Any, label: np.ndarray | None, scale: Any = 1.0) -> np.ndarray:
        """Denoise x (B, ...) at levels sigma, one or (B,), of classes label (B,)."""
        self.images.append(len(x))
        return self._denoise(CALL, x, sigma, label, scale)

    def results(self) -> Arrays:
        """Number of images in each call, and the answer to a further one."""
        answer = self._denoise(LAST, self.centres, 1.0, None, 1.0).astype(self.dtype)
        return {CALLS: np.array(self.images, np.int64), NEXT: answer}

    def _denoise(self, what: str, x: np.ndarray, sigma: Any, label: np.ndarray | None, scale: Any) -> np.ndarray:
        noise = column(np.broadcast_to(sigma, len(x)), x) ** 2
        centre = self.centres[-1] if label is None else self.centres[label]
        centre = centre * column(np.broadcast_to(scale, len(x)), x)
        denoised: np.ndarray = (self.variance * x + noise * centre) / (self.variance + noise)
        return denoised + self.ages(what, len(x))


def compare_calls(got: Arrays, expected: Arrays) -> Mismatch | None:
    """`close`, after the number of images in each call, which a message can show."""
    made, wanted = (arrays[CALLS].tolist() if CALLS in arrays else [] for arrays in (got, expected))
    if made != wanted:
        more = len(made) - len(wanted)
        what = f"the denoiser was called too {'often' if more > 0 else 'rarely'}"
        what = what if more else "the denoiser was called with the wrong number of images"
        return Mismatch(what, _tell_calls(made), _tell_calls(wanted))
    return close(got, expected)


def _tell_calls(images: list[int]) -> str:
    if not images:
        return "no call"
    listed = ", ".join(map(str, images[:12])) + ", …" * (len(images) > 12)
    return f"{len(images)} call{'s' * (len(images) > 1)} with {listed} images"


# --- Code of a case ---------------------------------------------------------------------------------------------------


def ref(name: str) -> str:
    """Code for an array of the case as a tensor."""
    return f'torch.from_numpy(given["{name}"])'


def _label(arrays: Arrays) -> str:
    return ref("label") if "label" in arrays else "None"


def render_sampling(call: str) -> Callable[[Arrays], str]:
    """Return a check's `describe` that makes an aging denoiser, `x` and `label`, and then `call`s.

    {name} in `call` is a number of the case.
    """

    def render(arrays: Arrays) -> str:
        numbers = {name: array.item() for name, array in arrays.items() if not array.ndim}
        interval = [f", {name}={numbers[name]!r}" for name in ("low", "high") if name in numbers]
        numbers |= {"null": len(arrays["centres"]) - 2, "interval": "".join(interval)}
        numbers["scales"] = numbers.get("scale", ref("scale"))
        lines = [
            "from mlsys_checks.sandboxed.diffusion import AgingDenoiser",
            f"denoiser = AgingDenoiser({ref('centres')}, {numbers['spread']!r})",
            f"x, label = {ref('x')}, {_label(arrays)}",
            call.format(**numbers),
            "denoiser.next_answer(), denoiser.images",
        ]
        return "\n".join(lines)

    return render


# --- Task 1 -----------------------------------------------------------------------------------------------------------


def draw_schedule(rng: Rng, case: Case) -> Arrays:
    least = 10.0 ** -case.params["digits"]
    drawn = rng.uniform(least, 1 - 1e-3, case.params["T"])
    return {"alphas_cumprod": np.sort(np.append(drawn[1:], least * rng.uniform(1, 2)))[::-1].copy()}


def expect_levels(arrays: Arrays) -> Arrays:
    kept = [Fraction(value) for value in arrays["alphas_cumprod"].tolist()]
    return {"levels": np.array([math.sqrt((1 - one) / one) for one in kept])}


_EDM = {"sigma_min": 0.002, "sigma_max": 80.0, "rho": 7.0}


def draw_edm(rng: Rng, case: Case) -> Arrays:
    drawn: dict[str, Any] = {"steps": case.params["steps"]}
    if not case.params.get("usual"):
        drawn |= {
            "sigma_min": 10 ** rng.uniform(-5, -1),
            "sigma_max": 10 ** rng.uniform(1, 4),
            "rho": rng.uniform(3, 9),
        }
    return {name: np.array(value) for name, value in drawn.items()}


def expect_edm(arrays: Arrays) -> Arrays:
    low, high, rho = (float(arrays.get(name, usual)) for name, usual in _EDM.items())
    steps, ends = int(arrays["steps"]), (math.exp(math.log(high) / rho), math.exp(math.log(low) / rho))
    parts = [i / (steps - 1) if i else 0.0 for i in range(steps)]
    return {"grid": np.array([*(((1 - part) * ends[0] + part * ends[1]) ** rho for part in parts), 0.0])}


def compare_grids(got: Arrays, expected: Arrays) -> Mismatch | None:
    """`close`, then of logarithms, so that low levels count as high ones do."""

    def logs(arrays: Arrays) -> Arrays:
        return {"logarithms of grid": np.log(np.maximum(arrays["grid"], 1e-300))}

    return close(got, expected) or close(logs(got), logs(expected))


def render_edm(arrays: Arrays) -> str:
    given = "".join(f", {name}={arrays[name].item()!r}" for name in _EDM if name in arrays)
    return f"edm_grid({int(arrays['steps'])}{given})"


# --- Task 2 -----------------------------------------------------------------------------------------------------------


def draw_mixture(rng: Rng, case: Case) -> Arrays:
    p = case.params
    K, B, N = p["classes"], p["images"], int(rng.integers(1, 4))
    N = B if B <= 4 and rng.random() < 0.3 else N
    weights, dtype = rng.uniform(0.2, 1, K), _dtype(p)
    drawn = {
        "x": (p.get("far", 1) * rng.standard_normal((B, N))).astype(dtype),
        "sigma": _draw_levels(rng, p, B),
        "means": rng.standard_normal((K, N)).astype(dtype),
        "weights": (weights / weights.sum()).astype(dtype),
        "deviation": np.array(0.0 if p.get("sharp") else rng.uniform(0.2, 0.9)),
    }
    return drawn if p.get("unlabelled") else drawn | {"label": rng.integers(0, K + 1, B)}


def expect_mixture(arrays: Arrays) -> Arrays:
    """Bayes' rule point by point."""
    s2, means, dtype = float(arrays["deviation"]) ** 2, arrays["means"].astype(np.float64), arrays["x"].dtype
    shares, denoised = [], []
    for i, (x, sigma) in enumerate(zip(arrays["x"].astype(np.float64), arrays["sigma"].tolist(), strict=True)):
        variance = s2 + sigma**2
        logs = np.log(arrays["weights"].astype(np.float64)) - ((x - means) ** 2).sum(1) / (2 * variance)
        likely = np.exp(logs - logs.max())
        shares.append(likely / likely.sum())
        label = int(arrays["label"][i]) if "label" in arrays else len(means)
        p = shares[-1] if label == len(means) else np.arange(len(means)) == label
        denoised.append((p[:, None] * (s2 * x + sigma**2 * means)).sum(0) / variance)
    return {"responsibilities": np.array(shares, dtype), "denoised": np.array(denoised, dtype)}


def render_mixture(arrays: Arrays) -> str:
    return f"""mixture = Mixture({ref("means")}, {ref("weights")}, {arrays["deviation"].item()!r})
x, sigma, label = {ref("x")}, {ref("sigma")}, {_label(arrays)}
mixture.responsibilities(x, sigma), mixture(x, sigma, label)"""


def draw_run(rng: Rng, case: Case) -> Arrays:
    """Draw images at the first of some levels; with `noisy`, noise of each step."""
    p = case.params
    shape = _draw_shape(rng, p)
    drawn = {**_draw_images(rng, p, shape, "x"), **_draw_denoiser(rng, case, shape)}
    drawn["grid"] = _draw_grid(rng, p, p["steps"])
    return drawn | (_draw_images(rng, p, (p["steps"], *shape), "noise") if p.get("noisy") else {})


def expect_run(arrays: Arrays) -> Arrays:
    """A fraction of the way from x to the denoised images remains: the ratio of levels, or with noise its square."""
    denoise, x = AgingOracle(arrays), arrays["x"].astype(np.float64)
    for i, (sigma, sigma_next) in enumerate(pairwise(arrays["grid"].tolist())):
        denoised = denoise(x, sigma, arrays.get("label"))
        left = sigma_next / sigma
        x = denoised + (left**2 if "noise" in arrays else left) * (x - denoised)
        if "noise" in arrays and sigma_next:
            x = x + math.sqrt(sigma**2 - sigma_next**2) * arrays["noise"][i]
    return {END: x.astype(arrays["x"].dtype), **denoise.results()}


# --- Task 3 -----------------------------------------------------------------------------------------------------------

CLASSES = 3
"""Classes of a linear network; its last label is the null class."""


def _draw_network(rng: Rng, p: Any, pixels: int) -> Arrays:
    shapes: dict[str, tuple[int, ...]] = {"matrix": (pixels, pixels), "by_level": (pixels,)}
    shapes |= {"by_label": (CLASSES + 1, pixels)} | {f"{OFFSET}_{i}": (pixels,) for i in range(p.get("offsets", 0))}
    return {name: rng.standard_normal(shape).astype(_dtype(p)) for name, shape in shapes.items()}


def draw_network(rng: Rng, case: Case) -> Arrays:
    """Draw images, noise, levels, labels unless `unlabelled`, and a linear network."""
    p = case.params
    shape = _draw_shape(rng, p)
    drawn = _draw_images(rng, p, shape, "x", "x0", "noise") | {"sigma": _draw_levels(rng, p, len(shape) and shape[0])}
    drawn |= _draw_network(rng, p, math.prod(shape[1:]))
    if "prediction" in p:
        drawn |= {"prediction": np.array(p["prediction"]), "sigma_data": np.array(rng.uniform(0.2, 2))}
    return drawn if p.get("unlabelled") else drawn | {"label": rng.integers(0, CLASSES + 1, shape[0])}


def _run_network(
    arrays: Arrays, x: np.ndarray, level: np.ndarray, label: np.ndarray | None, age: int = 0
) -> np.ndarray:
    """Output of the linear network for images, flat: (B, pixels)."""
    weights = {name: arrays[name].astype(np.float64) for name in names_of(arrays)}
    shift = weights["by_label"][np.full(len(x), CLASSES) if label is None else label]
    offsets = sum(value for name, value in weights.items() if name.startswith(OFFSET))
    flat = x.reshape(len(x), -1) @ weights["matrix"].T + np.outer(level, weights["by_level"])
    output: np.ndarray = flat + shift + offsets + 0.1 * age
    return output


def expect_predictions(arrays: Arrays) -> Arrays:
    """Coefficients from each method's own scale: DDPM's √ᾱ and √(1 - ᾱ), and a flow's time t."""
    prediction, sigma = PREDICTIONS[int(arrays["prediction"])], arrays["sigma"]
    x, log = arrays["x"].astype(np.float64), -np.log1p(sigma**2)
    kept, noisy, t = np.exp(log / 2), np.sqrt(-np.expm1(log)), sigma / (1 + sigma)
    data, total = float(arrays["sigma_data"]), np.hypot(sigma, arrays["sigma_data"])
    skip, out = {
        "epsilon": (kept / kept, -noisy / kept),
        "x0": (0 * kept, kept / kept),
        "v": (kept**2, -noisy),
        "flow": (1 - t, -t),
        "edm": ((data / total) ** 2, data * sigma / total),
    }[prediction]
    into = {"flow": 1 - t, "edm": 1 / total}.get(prediction, kept)
    level = np.log(sigma) / 4
    output = _run_network(arrays, column(into, x) * x, level, arrays.get("label"), age=1).reshape(x.shape)
    denoised = (column(skip, x) * x + column(out, x) * output).astype(arrays["x"].dtype)
    return {"c_skip": skip, "c_out": out, "c_in": into, "c_noise": level, "denoised": denoised}


def render_predictions(arrays: Arrays) -> str:
    named, data = PREDICTIONS[int(arrays["prediction"])], arrays["sigma_data"].item()
    return f"""from mlsys_checks.sandboxed.diffusion import LinearNetwork
x, sigma, label = {ref("x")}, {ref("sigma")}, {_label(arrays)}
denoiser = Preconditioned(LinearNetwork(given), "{named}", {data!r})
unused = denoiser.forward(x, 2 * sigma, label)
*coefficients("{named}", sigma, {data!r}), denoiser.forward(x, sigma, label).detach()"""


def expect_losses(arrays: Arrays) -> Arrays:
    """Squared error of the output against c_skip·x + c_out·F* = x0, solved for F*."""
    x0, sigma = arrays["x0"].astype(np.float64), arrays["sigma"]
    skip, out, into = 1 / (2 + sigma), -(2 + sigma) / (1 + sigma), 0.9 / (1 + sigma)  # of GivenDenoiser
    x = x0 + column(sigma, x0) * arrays["noise"]
    output = _run_network(arrays, column(into, x) * x, np.log(sigma) / 4, arrays.get("label"))
    wanted = ((x0 - column(skip, x) * x) / column(out, x)).reshape(len(x), -1)
    return {"losses": ((output - wanted) ** 2).mean(1).astype(arrays["x0"].dtype)}


def render_losses(arrays: Arrays) -> str:
    return f"""from mlsys_checks.sandboxed.diffusion import GivenDenoiser, LinearNetwork
denoiser = GivenDenoiser(LinearNetwork(given))
p_losses(denoiser, {ref("x0")}, {ref("sigma")}, {ref("noise")}, {_label(arrays)}).detach()"""


def draw_average(rng: Rng, case: Case) -> Arrays:
    p = case.params
    decay = rng.uniform(0.15, 0.6) if p["late"] else rng.uniform(0.97, 0.999)
    moves = rng.uniform(0.2, 1, p["updates"]).astype(_dtype(p))
    return {**_draw_network(rng, p, 2), "decay": np.array(decay), "moves": moves}


def expect_average(arrays: Arrays) -> Arrays:
    """Means weighted by what each update leaves of the ones before."""
    moves, decay = arrays["moves"].astype(np.float64), float(arrays["decay"])
    decays = [min(decay, (1 + n) / (10 + n)) for n in range(1, len(moves) + 1)]
    parts = [(1 - one) * math.prod(decays[n + 1 :]) for n, one in enumerate(decays)]
    mean, dtype = float(np.dot(parts, np.cumsum(moves))), arrays["matrix"].dtype
    averages = {f"average of {name}": (arrays[name] + mean).astype(dtype) for name in names_of(arrays)}
    return averages | {name: (arrays[name] + moves.sum()).astype(dtype) for name in names_of(arrays)}


def render_average(arrays: Arrays) -> str:
    return f"""from mlsys_checks.sandboxed.diffusion import LinearNetwork
model = LinearNetwork(given)
average = EMA(model, {arrays["decay"].item()!r})
for move in {arrays["moves"].tolist()}:
    for parameter in model.parameters():
        parameter.data += move
    average.update(model)
[parameter.detach() for one in (average.model, model) for parameter in one.parameters()]"""


def draw_training(rng: Rng, case: Case) -> Arrays:
    p = case.params
    shape, steps = (p["images"], 2), p["steps"]
    network = _draw_network(rng, p, 2)
    return {
        **_draw_images(rng, p, (steps, *shape), "x"),
        **_draw_images(rng, p, (steps, shape[0]), "level"),
        **network,
        "label": rng.integers(0, CLASSES + 1, (steps, shape[0])),
        "rate": np.array(rng.uniform(0.01, 0.05)),
        "trained": rng.permutation(len(network))[: p.get("trained")],
    }


def expect_training(arrays: Arrays) -> Arrays:
    """Gradients of a linear network by hand."""
    names, now = list(names_of(arrays)), {name: arrays[name].astype(np.float64) for name in names_of(arrays)}
    losses, records, dtype = [], Arrays(), arrays["matrix"].dtype
    for age, (x, level, label) in enumerate(zip(*(arrays[name] for name in ("x", "level", "label")), strict=True)):
        output = _run_network(now, x.astype(np.float64), level, label, age)
        losses.append((output**2).mean())
        upstream = 2 * output / output.size
        by_label = np.zeros_like(now["by_label"])
        np.add.at(by_label, label, upstream)
        gradients = {"matrix": upstream.T @ x, "by_level": level @ upstream, "by_label": by_label}
        for name in (names[i] for i in arrays["trained"]):
            now[name] = now[name] - float(arrays["rate"]) * gradients.get(name, upstream.sum(0))
        records |= {f"in update {age + 1} of the average: {name}": now[name].astype(dtype) for name in names}
    rounded = np.array(losses, dtype).astype(np.float64)
    return {"losses": rounded, **{name: now[name].astype(dtype) for name in names}, **records}


def compare_training(got: Arrays, expected: Arrays) -> Mismatch | None:
    """`close`, with losses in the precision of the network, and a message of its own for missing updates."""
    made, wanted = (sum("update" in name and "matrix" in name for name in arrays) for arrays in (got, expected))
    if made != wanted:
        return Mismatch("average.update(model) was not called once per step", f"{made} updates", f"{wanted}")
    narrow = expected["matrix"].dtype
    rounded = [{**one, "losses": one["losses"].astype(narrow)} for one in (got, expected)]
    return close(*rounded)


def render_training(arrays: Arrays) -> str:
    return f"""from mlsys_checks.sandboxed.diffusion import Descent, LinearNetwork, Recorder
model, average = LinearNetwork(given), Recorder()
parameters = list(model.parameters())
for parameter in parameters:
    parameter.grad = torch.ones_like(parameter)
optimizer = Descent([parameters[i] for i in {arrays["trained"].tolist()}], {arrays["rate"].item()!r})
for batch in zip(*(torch.from_numpy(given[name]) for name in ("x", "level", "label"))):
    losses = model(*batch).square().flatten(1).mean(1)
    print(train_step(model, losses, optimizer, average))
[parameter.detach() for parameter in parameters], average.records"""


# --- Tasks 4 and 5 ----------------------------------------------------------------------------------------------------


def draw_step(rng: Rng, case: Case) -> Arrays:
    """Draw two levels and η; `to` is the lower level, `eta` is 0, 1, or 2 for one in between."""
    p = case.params
    shape, to = _draw_shape(rng, p), p.get("to", -1)
    sigma = math.exp(rng.uniform(math.log(max(0.4, 1.5 * to)), math.log(20)))
    sigma_next = sigma * rng.uniform(0.3, 0.8) if to < 0 else to
    eta = rng.uniform(0.2, 0.9) if p["eta"] == 2 else p["eta"]
    numbers = {"sigma": sigma, "sigma_next": sigma_next, "eta": float(eta)}
    arrays = {name: np.array(value) for name, value in numbers.items()}
    return {**_draw_images(rng, p, shape, "x", "x0", "noise"), **_draw_denoiser(rng, case, shape), **arrays}


def expect_step(arrays: Arrays) -> Arrays:
    """DDPM's β̃ (equation 7) and DDIM's equation 12, in DDPM's scale."""
    sigma, sigma_next, eta = (float(arrays[name]) for name in ("sigma", "sigma_next", "eta"))
    x, dtype, denoise = arrays["x"].astype(np.float64), arrays["x"].dtype, AgingOracle(arrays)
    now, then = 1 / (1 + sigma**2), 1 / (1 + sigma_next**2)
    noisy = -math.expm1(-math.log1p(sigma_next**2))  # 1 - then, to the last digit
    drawn = eta**2 * noisy / (1 - now) * (1 / now - 1 / then) * now

    def mean(x0: np.ndarray) -> np.ndarray:
        noise = (math.sqrt(now) * x - math.sqrt(now) * x0) / math.sqrt(1 - now)
        found: np.ndarray = (math.sqrt(then) * x0 + math.sqrt(max(0.0, noisy - drawn)) * noise) / math.sqrt(then)
        return found

    deviation = math.sqrt(drawn / then)
    found = {"mean of posterior": mean(arrays["x0"].astype(np.float64)).astype(dtype)}
    found["deviation of posterior"] = np.array(deviation)
    end = mean(denoise(x, sigma, arrays.get("label"))) + deviation * arrays["noise"]
    return found | {STEPPED: end.astype(dtype), **denoise.results()}


def expect_heun(arrays: Arrays) -> Arrays:
    denoise, x, found = AgingOracle(arrays), arrays["x"].astype(np.float64), Arrays()
    for i, (sigma, sigma_next) in enumerate(pairwise(arrays["grid"].tolist()), 1):
        denoised = denoise(x, sigma, arrays.get("label"))
        end = denoised + sigma_next / sigma * (x - denoised)
        if sigma_next:
            noise = (x - denoised) / sigma, (end - denoise(end, sigma_next, arrays.get("label"))) / sigma_next
            end = x + (sigma_next - sigma) * (0.5 * noise[0] + 0.5 * noise[1])
        x = end
        found[f"what heun_step returned, step {i}"] = x.astype(arrays["x"].dtype)
    return found | denoise.results()


def draw_guidance(rng: Rng, case: Case) -> Arrays:
    """Draw levels and scales. `inside` says which images the interval holds: 0 none, 1 some, 2 all."""
    p = case.params
    shape = _draw_shape(rng, p)
    B, sigma = shape[0], _draw_levels(rng, p, shape[0])
    scale = np.resize(rng.permutation([1.0, 1 + 2.0**-20, 0.0, -2.0, *rng.uniform(1.5, 5, 8)]), B)
    drawn = {**_draw_images(rng, p, shape, "x"), **_draw_denoiser(rng, case, shape), "sigma": sigma}
    if p["inside"] == 0:
        drawn |= {"low": np.array(1e3), "high": np.array(1e4)}
    elif p["inside"] == 1:  # both ends are levels of images
        low, high = np.sort(rng.choice(sigma, 2))
        drawn |= {"low": np.array(low), "high": np.array(high)}
    return drawn | {"scale": np.array(float(rng.uniform(1.5, 5))) if p.get("alike") else scale}


def expect_guidance(arrays: Arrays) -> Arrays:
    """(1 + w)·D_c - w·D_u with w = s - 1 where guidance acts."""
    denoise, x, sigma = AgingOracle(arrays), arrays["x"].astype(np.float64), arrays["sigma"]
    scale = np.broadcast_to(arrays["scale"], len(x))
    inside = (arrays.get("low", np.array(0)) <= sigma) & (sigma <= arrays.get("high", np.array(math.inf)))
    acts = inside & (scale != 1)
    again = np.concatenate([np.arange(len(x)), np.flatnonzero(acts)])
    label = np.concatenate([arrays["label"], np.full(int(acts.sum()), len(arrays["centres"]) - 2)])
    answers = denoise(x[again], sigma[again], label)
    denoised, w = answers[: len(x)].copy(), column(scale[acts] - 1, x)
    denoised[acts] = (1 + w) * denoised[acts] - w * answers[len(x) :]
    return {"denoised": denoised.astype(arrays["x"].dtype), **denoise.results()}


# --- Task 6 -----------------------------------------------------------------------------------------------------------


def draw_config(rng: Rng, case: Case) -> Arrays:
    p, patch = case.params, int(rng.integers(1, 9))
    drawn = [rng.integers(1, 30), 4 * rng.integers(1, 300), 1, patch * rng.integers(1, 33), patch]
    config = p.get("config", [*drawn, *rng.integers(1, 9, 2)])
    return {
        "config": np.array(config, np.int64),
        "batch": np.array(p["batch"]),
        "element_bytes": np.array(p["element_bytes"]),
    }


def expect_cost(arrays: Arrays) -> Arrays:
    """All matrices, each (inputs, outputs) with the number of rows that an image sends through it."""
    L, D, _, size, patch, channels, out_channels = arrays["config"].tolist()
    T = (size // patch) * (size // patch)
    block = [(D, 3 * D, T), (D, D, T), (D, 4 * D, T), (4 * D, D, T), (D, 6 * D, 1)]
    matrices = [(patch * patch * channels, D, T), (D, patch * patch * out_channels, T), (256, D, 1), (D, D, 1)]
    matrices += L * block + [(D, 2 * D, 1)]
    weights = int(arrays["element_bytes"]) * sum(rows * columns for rows, columns, _ in matrices)
    products = sum(inputs * outputs * rows for inputs, outputs, rows in matrices)
    attention, images = L * (T * D * T + T * T * D), int(arrays["batch"])
    flops = 2 * images * (products + attention)
    mistakes = {
        "flops": {
            "multiply-adds are counted as one FLOP": flops // 2,
            "attention's scores and sums are missing": 2 * images * products,
            "attention is counted as if it were causal": 2 * images * (products + attention // 2),
            "the modulation's rows are counted as one per token": flops + 2 * images * (T - 1) * L * 6 * D * D,
        },
        "weight_bytes": {
            "the weights are read for each image": images * weights if images > 1 else -1,
            "bytes are those of 2-byte numbers": 2 * weights // int(arrays["element_bytes"]),
        },
    }
    found = {"flops": np.array(flops), "weight_bytes": np.array(weights)}
    return found | likely("flops", mistakes["flops"]) | likely("weight_bytes", mistakes["weight_bytes"])


def render_cost(arrays: Arrays) -> str:
    n_layers, d_model, n_heads, size, patch, channels, out_channels = arrays["config"].tolist()
    sizes = f"n_layers={n_layers}, d_model={d_model}, n_heads={n_heads}, size={size}, patch={patch}"
    ends = f"channels={channels}, classes={DIT_CLASSES}, out_channels={out_channels}"
    return f"""config = DiTConfig("case", {sizes}, {ends})
step_cost(config, batch={int(arrays["batch"])}, element_bytes={int(arrays["element_bytes"])})"""


def draw_image(rng: Rng, case: Case) -> Arrays:
    """Draw cost, machine and run. `tied`: computing takes as long as reading, to the last bit."""
    p = case.params
    images = p["requests"] * (1 + p["guided"])
    flops, moved = (int(one) for one in rng.integers(10**9, 10**12, 2))
    rates = [flops * rng.uniform(0.5, 20), moved * rng.uniform(0.5, 4)]
    if p.get("tied"):
        rates = [float(images * flops), float(moved)]
    names = ("steps", "solver", "guided", "requests")
    return {"cost": np.array([flops, moved]), "rates": np.array(rates), **{name: np.array(p[name]) for name in names}}


def expect_image(arrays: Arrays) -> Arrays:
    steps, guided, requests = (int(arrays[name]) for name in ("steps", "guided", "requests"))
    (flops, moved), (flops_per_s, bytes_per_s) = arrays["cost"].tolist(), arrays["rates"].tolist()
    compute = requests * (1 + guided) * flops / Fraction(flops_per_s)
    memory = moved / Fraction(bytes_per_s)
    calls = steps + (steps - 1) * int(arrays["solver"])
    seconds = float(calls * max(compute, memory))
    mistakes = {
        "computing and reading are added": float(calls * (compute + memory)),
        "Heun's last step, to level 0, makes one call": float((calls + 1) * max(compute, memory)),
        "guidance doubles the images of a call, not the calls": float((1 + guided) * calls * max(compute / 2, memory)),
        "these are the seconds of one of the requests": seconds / requests if requests > 1 else -1.0,
    }
    limit = "compute" if compute > memory else "memory"
    return {"seconds": np.array(seconds), "limit": encode_text(limit)} | likely("seconds", mistakes)


def render_image(arrays: Arrays) -> str:
    numbers = {name: array.item() for name, array in arrays.items() if not array.ndim}
    return """cost, machine = Cost({}, {}), Machine({!r}, {!r})
predict_image(cost, machine, {}, "{}", {}, {})""".format(
        *arrays["cost"].tolist(),
        *arrays["rates"].tolist(),
        numbers["steps"],
        SOLVERS[numbers["solver"]],
        bool(numbers["guided"]),
        numbers["requests"],
    )


compare_answers = agree


# --- Task 7 -----------------------------------------------------------------------------------------------------------


def draw_requests(rng: Rng, case: Case) -> Arrays:
    p = case.params
    count, sides = p["requests"], tuple(rng.integers(1, 4, p["axes"]).tolist())
    steps = rng.integers(1, p["longest"] + 1, count)
    grids = [_draw_grid(rng, {"low": p.get("low", 0)}, one) for one in steps.tolist()]
    noise = rng.standard_normal((count, *sides)).astype(_dtype(p))
    guidance = np.ones((count, 3))
    for row, grid in zip(guidance, grids, strict=True):
        high, low = grid[np.sort(rng.integers(len(grid) - 1, size=2))]
        always = rng.random() < 0.5
        row[:] = rng.choice([1.0, 0.0, 3.5]), 0.0 if always else low, math.inf if always else high
    drawn = _draw_denoiser(rng, case, (count, *sides))
    twice = bool(p.get("twice")) and count > 1
    if twice:  # the last request is the first once more, as one object
        steps[-1], grids[-1] = steps[0], grids[0]
        for values in (guidance, drawn["label"], noise):
            values[-1] = values[0]
    return {
        **drawn,
        "noise": noise,
        "grids": np.concatenate([*grids, np.empty(0)]),
        "steps": steps.astype(np.int64),
        "guidance": guidance,
        "slots": np.array(p["slots"]),
        "twice": np.array(twice),
    }


def expect_images(arrays: Arrays) -> Arrays:
    """Each request begins with the first call at which a slot is free, by arithmetic on the ends of earlier ones."""
    denoise, steps, slots = AgingOracle(arrays), arrays["steps"].tolist(), int(arrays["slots"])
    starts, ends = list[int](), list[int]()
    for i, count in enumerate(steps):
        starts.append(sorted(ends)[i - slots] if i >= slots else 0)
        ends.append(starts[i] + count)
    first = np.concatenate([[0], np.cumsum(arrays["steps"] + 1)])[:-1]
    noise = arrays["noise"].astype(np.float64)
    images = column(arrays["grids"][first], noise) * noise if steps else noise
    for call in range(max(ends, default=0)):
        now = np.array([i for i in range(len(steps)) if starts[i] <= call < ends[i]])
        at = np.array([first[i] + call - starts[i] for i in now])
        sigma, sigma_next = arrays["grids"][at], arrays["grids"][at + 1]
        scale, low, high = arrays["guidance"][now].T
        scale, x = np.where((low <= sigma) & (sigma <= high), scale, 1.0), images[now]
        denoised = denoise(x, sigma, arrays["label"][now], scale)
        images[now] = denoised + column(sigma_next / sigma, x) * (x - denoised)
    return {"images": images.astype(arrays["noise"].dtype), **denoise.results()}


def render_requests(arrays: Arrays) -> str:
    last = "requests[-1] = requests[0]\n" if arrays["twice"] else ""
    return f"""from mlsys_checks.sandboxed.diffusion import AgingDenoiser
denoiser = AgingDenoiser({ref("centres")}, {arrays["spread"].item()!r})
grids = {ref("grids")}.split({(arrays["steps"] + 1).tolist()})
each = zip({arrays["label"].tolist()}, grids, {ref("noise")}, given["guidance"].tolist())
requests = [Request(label, grid, noise, *guidance) for label, grid, noise, guidance in each]
{last}images = serve(denoiser, requests, {int(arrays["slots"])})
torch.stack(images) if images else [], denoiser.next_answer(), denoiser.images"""
