"""Checks of task 4: steps of samplers, and their order. Oracle: DDPM's own scale, a Gaussian's ODE in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from mlsys_checks.sandboxed.diffusion import denoisers as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.diffusion.oracle import CODE_OF_NEXT, Ages, Aging, draw_denoiser, draw_images

# --- Steps ------------------------------------------------------------------------------------------------------------


def _draw_step(rng: np.random.Generator, case: Case) -> Arrays:
    least = max(0.4, 1.5 * case.params.get("to", 0.0))
    sigma = math.exp(rng.uniform(math.log(least), math.log(20)))
    sigma_next = case.params.get("to", sigma * rng.uniform(0.3, 0.8))
    eta = case.params.get("eta", rng.uniform(0.2, 0.9))
    return {
        **draw_images(rng, case, "x", "x0", "noise"),
        **draw_denoiser(rng, case),
        **{name: np.array(float(value)) for name, value in zip(_STEP, (sigma, sigma_next, eta), strict=True)},
    }


_STEP = ("sigma", "sigma_next", "eta")
_DENOISER = ("centres", "spread", "label", "_ages", "_crowd")


def _pick(*names: str) -> Callable[[np.random.Generator, Case], Arrays]:
    """Draw a step, and keep these of its arrays."""

    def draw(rng: np.random.Generator, case: Case) -> Arrays:
        return {name: array for name, array in _draw_step(rng, case).items() if name in names}

    return draw


def _posterior(x0: np.ndarray, x: np.ndarray, arrays: Arrays) -> tuple[np.ndarray, float]:
    """Mean and deviation from DDPM's ᾱ and β̃ (eq. 7) and DDIM's equation 12, over √ᾱ of the next level."""
    sigma, sigma_next, eta = (float(arrays[name]) for name in _STEP)
    now, then = 1 / (1 + sigma**2), 1 / (1 + sigma_next**2)
    noisy = -math.expm1(-math.log1p(sigma_next**2))  # 1 - then, to the last digit
    beta = (1 / now - 1 / then) * now
    drawn = eta**2 * noisy / (1 - now) * beta
    noise = (math.sqrt(now) * x - math.sqrt(now) * x0) / math.sqrt(1 - now)
    mean = math.sqrt(then) * x0 + math.sqrt(noisy - drawn) * noise
    return mean / math.sqrt(then), math.sqrt(drawn / then)


def _expect_posterior(arrays: Arrays) -> Arrays:
    x0, x = (arrays[name].astype(np.float64) for name in ("x0", "x"))
    mean, deviation = _posterior(x0, x, arrays)
    return {"mean": mean.astype(arrays["x"].dtype), "deviation": np.array(deviation)}


def _expect_ddim(arrays: Arrays) -> Arrays:
    x = arrays["x"].astype(np.float64)
    denoise = Aging(arrays)
    mean, deviation = _posterior(denoise(x, float(arrays["sigma"]), arrays.get("label")), x, arrays)
    return {"x": (mean + deviation * arrays["noise"]).astype(arrays["x"].dtype), **denoise.next_answer()}


def _expect_heun(arrays: Arrays) -> Arrays:
    denoise, x = Aging(arrays), arrays["x"].astype(np.float64)
    sigma, sigma_next = float(arrays["sigma"]), float(arrays["sigma_next"])

    def step(x: np.ndarray, sigma: float, sigma_next: float) -> np.ndarray:
        denoised = denoise(x, sigma, arrays.get("label"))
        end: np.ndarray = denoised + sigma_next / sigma * (x - denoised)
        if not sigma_next:
            return end
        noise = (x - denoised) / sigma, (end - denoise(end, sigma_next, arrays.get("label"))) / sigma_next
        end = x + (sigma_next - sigma) * (0.5 * noise[0] + 0.5 * noise[1])
        return end

    ends = {"x": step(x, sigma, sigma_next)}
    step(2 * x, sigma, sigma_next)
    ends[calls.OPPOSITE] = step(-2 * x, sigma, sigma_next)
    if sigma_next:
        ends[calls.ON] = step(-2 * x, sigma_next, sigma_next / 2)
    return {name: end.astype(arrays["x"].dtype) for name, end in ends.items()} | denoise.next_answer()


def _code_of_step(arrays: Arrays) -> str:
    centres, x = (f'torch.from_numpy(given["{name}"])' for name in ("centres", "x"))
    label = 'torch.from_numpy(given["label"])' if "label" in arrays else "None"
    between = f"{float(arrays['sigma'])!r}, {float(arrays['sigma_next'])!r}"
    made = f"denoiser = AgingDenoiser({centres}, {float(arrays['spread'])!r})"
    if "noise" in arrays:
        noisy = f'torch.from_numpy(given["noise"]), {float(arrays["eta"])!r}'
        return f"{made}\nddim_step(denoiser, {x}, {between}, {noisy}, label={label})\n{CODE_OF_NEXT}"
    on = f"{float(arrays['sigma_next'])!r}, {float(arrays['sigma_next'] / 2)!r}"
    lines = [
        made,
        f"x, label = {x}, {label}",
        f"first = heun_step(denoiser, x, {between}, label=label)",
        "other = 2 * x",
        f"unused = heun_step(denoiser, other, {between}, label=label)",
        "other *= -1",
        f"second = heun_step(denoiser, other, {between}, label=label)",
    ]
    if arrays["sigma_next"]:
        lines.append(f"third = heun_step(denoiser, other, {on}, label=label)")
    named = "first, second, third" if arrays["sigma_next"] else "first, second"
    return "\n".join([*lines, f"{named}, {CODE_OF_NEXT}"])


# --- Order ------------------------------------------------------------------------------------------------------------


def _draw_order(rng: np.random.Generator, case: Case) -> Arrays:
    N = case.params["N"]
    return {
        "x": 8 * rng.standard_normal((5, N)),
        "centre": rng.standard_normal(N),
        "spread": np.array(rng.uniform(0.4, 0.8)),
        "first": np.array(rng.uniform(6, 10)),
        "last": np.array(rng.uniform(0.1, 0.2)),
        "steps": np.array(case.params["S"]),
    }


EXACT = "exact end"


def _expect_order(arrays: Arrays) -> Arrays:
    """The ends of both samplers' own steps, and the ODE's, as many deviations from the centre as at the beginning."""
    spread, first, last, steps = (float(arrays[name]) for name in ("spread", "first", "last", "steps"))
    far = arrays["x"] - arrays["centre"]
    ends = {}
    for name, factor in (("ddim", _ddim_factor), ("heun", _heun_factor)):
        for count in (int(steps), 2 * int(steps)):
            levels = np.geomspace(first, last, count + 1).tolist()
            left = math.prod(factor(spread, *pair) for pair in pairwise(levels))
            ends[f"{name}, {count} steps"] = arrays["centre"] + left * far
    return {**ends, EXACT: arrays["centre"] + math.hypot(spread, last) / math.hypot(spread, first) * far}


def _ddim_factor(spread: float, sigma: float, sigma_next: float) -> float:
    """What one Euler step leaves of the distance from the centre, where the slope is σ/(s² + σ²) times it."""
    return 1 + (sigma_next - sigma) * _slope(spread, sigma)


def _heun_factor(spread: float, sigma: float, sigma_next: float) -> float:
    """What one step of Heun leaves of it, whose second slope is that where Euler's step ends."""
    second = _slope(spread, sigma_next) * _ddim_factor(spread, sigma, sigma_next)
    return 1 + (sigma_next - sigma) / 2 * (_slope(spread, sigma) + second)


def _slope(spread: float, sigma: float) -> float:
    return sigma / (spread**2 + sigma**2)


ORDERS = {"ddim": (1.7, 2.4), "heun": (3.4, 5.0)}
"""How many times less error twice the steps must leave: about 2 and 4, with room for steps that are not small yet."""


def _compare_orders(got: Arrays, expected: Arrays) -> Mismatch | None:
    """None where twice the steps leave as much less error as the order says, and every end is the sampler's own.

    The denoiser that the learner's code is given tells the exact end: an error of the right order could be made up.
    """
    ends = {name: end for name, end in expected.items() if name != EXACT}
    if (mismatch := close(got, ends, scale=1e12)) is not None:
        return mismatch
    names = list(ends)
    for name, few, many in zip(ORDERS, names[::2], names[1::2], strict=True):
        errors = [float(np.abs(got[end] - expected[EXACT]).mean()) for end in (few, many)]
        low, high = ORDERS[name]
        if not low * errors[1] < errors[0] < high * errors[1]:
            what = f"twice the steps do not leave {low} to {high} times less error with {name}"
            return Mismatch(what, f"{errors[0]:.3g}, then {errors[1]:.3g}", "the exact end of the ODE is approached")
    return close(got, ends)


def _code_of_order(arrays: Arrays) -> str:
    first, last, steps = float(arrays["first"]), float(arrays["last"]), int(arrays["steps"])
    return f"""centre, x = torch.from_numpy(given["centre"]), torch.from_numpy(given["x"])
def denoise(x, sigma, label=None):
    kept = {float(arrays["spread"])!r} ** 2 / ({float(arrays["spread"])!r} ** 2 + sigma[:, None] ** 2)
    return kept * x + (1 - kept) * centre
ends = []
for step in (lambda *at: ddim_step(denoise, *at, torch.ones_like(x)), lambda *at: heun_step(denoise, *at)):
    for count in ({steps}, {2 * steps}):
        grid = torch.tensor({last!r} / {first!r}).double() ** (torch.arange(count + 1) / count)
        at = x
        for sigma, sigma_next in pairwise(({first!r} * grid).tolist()):
            at = step(at, sigma, sigma_next)
        ends.append(at)
ends"""


CHECKS = (
    Check(
        name="posterior",
        title="A cleaner image, given both ends",
        points=4,
        cases=(
            Case("DDPM", {"shape": (3, 2), "eta": 1}),
            Case("DDIM", {"shape": (3, 2), "eta": 0}),
            Case("between the two", {"shape": (2, 1, 3, 2)}),
            Case("down to 0", {"shape": (2, 3), "to": 0.0}),
            Case("down to 1", {"shape": (2, 3), "to": 1.0}),
            Case("single precision", {"shape": (4, 2), "dtype": "float32"}),
            Case("numbers without axes", {"shape": (4,), "dtype": "float32"}),
            Case("nearly down to 0", {"shape": (2, 3), "to": 9e-4}, hidden=True),
            Case("many images", {"shape": (15, 3)}, hidden=True),
        ),
        inputs=_pick("x", "x0", *_STEP),
        run=calls.posterior,
        expect=_expect_posterior,
        compare=close,
        first_hint="With η = 1: is the variance DDPM's β̃, over ᾱ of the next level? With η = 0 nothing is drawn.",
        hint="The squared level there, times η² and times the share that goes; what is left of the squared level is "
        "the guessed noise's.",
        uses=("posterior",),
        snippet="posterior(x0, x, sigma, sigma_next, eta)",
    ),
    Check(
        name="ddim_step",
        title="A step of DDIM and DDPM",
        points=4,
        cases=(
            Case("between the two", {"shape": (3, 2)}),
            Case("DDIM", {"shape": (3, 2), "eta": 0}),
            Case("DDPM, unequal sides", {"shape": (2, 1, 3, 4), "eta": 1}),
            Case("down to 0", {"shape": (2, 3), "to": 0.0, "eta": 1}),
            Case("down to 1", {"shape": (2, 3), "to": 1.0}),
            Case("one image, without a label", {"shape": (1, 4), "none": True}),
            Case("single precision", {"shape": (3, 3), "dtype": "float32"}),
            Case("numbers without axes", {"shape": (4,), "dtype": "float32"}),
            Case("nearly down to 0", {"shape": (2, 3), "to": 9e-4, "eta": 1}, hidden=True),
            Case("many images", {"shape": (22, 2, 2)}, hidden=True),
        ),
        inputs=_pick("x", "noise", *_DENOISER, *_STEP),
        run=calls.ddim_step,
        partner=Ages,
        expect=_expect_ddim,
        compare=close,
        first_hint="How many calls are made, and at which level? What is added besides the posterior's mean?",
        hint="One call at the level where the step begins; its answer takes the place of x₀ in your posterior.",
        uses=("ddim_step", "posterior"),
        describe=_code_of_step,
    ),
    Check(
        name="heun_step",
        title="A step of Heun",
        points=5,
        cases=(
            Case("points", {"shape": (3, 2)}),
            Case("images of unequal sides", {"shape": (2, 3, 1, 4)}),
            Case("down to 0", {"shape": (2, 3), "to": 0.0}),
            Case("down to 1", {"shape": (2, 3), "to": 1.0}),
            Case("nearly down to 0", {"shape": (2, 3), "to": 1e-4}),
            Case("one image, without a label", {"shape": (1, 4), "none": True}),
            Case("single precision", {"shape": (3, 3), "dtype": "float32"}),
            Case("numbers without axes", {"shape": (4,), "dtype": "float32"}),
            Case("many images", {"shape": (22, 2, 2)}, hidden=True),
        ),
        inputs=_pick("x", *_DENOISER, "sigma", "sigma_next"),
        run=calls.heun_step,
        partner=Ages,
        expect=_expect_heun,
        compare=close,
        first_hint="At which image and level is the second slope? From where does the step go, and how many calls has "
        "one to 0?",
        hint="The second slope is where Euler's step ends, at the level there; the mean of both is followed from the "
        "image that the step began with.",
        uses=("heun_step", "slope"),
        describe=_code_of_step,
    ),
    Check(
        name="convergence",
        title="Errors fall as the order says",
        points=3,
        cases=(
            Case("points in the plane", {"N": 2, "S": 20}),
            Case("points on a line", {"N": 1, "S": 32}),
            Case("many steps", {"N": 3, "S": 48}, hidden=True),
        ),
        inputs=_draw_order,
        run=calls.convergence,
        expect=_expect_order,
        compare=_compare_orders,
        first_hint="Does the error fall at all? Half of it says that a step is of first order.",
        hint="If heun_step passes its own check and this does not, look for what your step keeps between calls.",
        uses=("ddim_step", "heun_step"),
        describe=_code_of_order,
    ),
)
