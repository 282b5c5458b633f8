"""Checks of task 2: a mixture's denoiser, score and slope, walks. Oracle: Bayes point by point, and recurrences."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np

from mlsys_checks.sandboxed.diffusion import denoisers as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.diffusion.oracle import (
    CODE_OF_NEXT,
    SMALL,
    Ages,
    Aging,
    column,
    draw_denoiser,
    draw_grid,
    draw_images,
    draw_levels,
)


def _draw_mixture(rng: np.random.Generator, case: Case) -> Arrays:
    K, (B, N) = case.params["K"], case.params["shape"]
    weights = rng.uniform(0.2, 1, K)
    far, dtype = case.params.get("far", 1.0), case.params.get("dtype", "float64")
    return {
        "x": (far * rng.standard_normal((B, N))).astype(dtype),
        "sigma": draw_levels(rng, case),
        "means": rng.standard_normal((K, N)).astype(dtype),
        "weights": (weights / weights.sum()).astype(dtype),
        "deviation": np.array(case.params.get("deviation", rng.uniform(0.2, 0.9))),
    }


def _expect_mixture(arrays: Arrays) -> Arrays:
    s2, means = float(arrays["deviation"]) ** 2, arrays["means"].tolist()
    denoised = []
    for point, level in zip(arrays["x"].tolist(), arrays["sigma"].tolist(), strict=True):
        variance = s2 + level**2
        logs = [
            math.log(weight) - math.fsum((a - b) ** 2 for a, b in zip(point, mean, strict=True)) / (2 * variance)
            for weight, mean in zip(arrays["weights"].tolist(), means, strict=True)
        ]
        likely = [math.exp(log - max(logs)) for log in logs]
        shares = [one / math.fsum(likely) for one in likely]
        denoised.append(
            [
                math.fsum(p * (s2 * a + level**2 * mean[n]) / variance for p, mean in zip(shares, means, strict=True))
                for n, a in enumerate(point)
            ]
        )
    return {"denoised": np.array(denoised, arrays["x"].dtype)}


def _draw_directions(rng: np.random.Generator, case: Case) -> Arrays:
    return {**draw_images(rng, case, "denoised", "x"), "sigma": draw_levels(rng, case)}


def _expect_directions(arrays: Arrays) -> Arrays:
    x, level = arrays["x"].astype(np.float64), column(arrays["sigma"], arrays["x"])
    noise = (x - arrays["denoised"]) / level
    return {"score": (-noise / level).astype(arrays["x"].dtype), "slope": noise.astype(arrays["x"].dtype)}


def _draw_walk(rng: np.random.Generator, case: Case) -> Arrays:
    S = case.params["S"]
    grid = draw_grid(rng, case, S)
    grid[-1] *= 0.0 if case.params.get("down", True) else 1.0
    drawn = {**draw_images(rng, case, "x"), **draw_denoiser(rng, case), "grid": grid}
    if not case.params.get("noisy"):
        return drawn
    noise = rng.standard_normal((S, *case.params["shape"]))
    return {**drawn, "noise": noise.astype(drawn["x"].dtype)}


def _draw_noisy_walk(rng: np.random.Generator, case: Case) -> Arrays:
    return _draw_walk(rng, replace(case, params={**case.params, "noisy": True}))


def _expect_walk(arrays: Arrays) -> Arrays:
    """Along the line through x and the denoised image: a share of what lies between is left, or less with noise."""
    denoise, x = Aging(arrays), arrays["x"].astype(np.float64)
    for i, (sigma, sigma_next) in enumerate(pairwise(arrays["grid"].tolist())):
        denoised = denoise(x, sigma, arrays.get("label"))
        left = sigma_next / sigma
        if "noise" in arrays:
            x = denoised + left**2 * (x - denoised)
            x += math.sqrt(sigma**2 - sigma_next**2) * arrays["noise"][i] if sigma_next else 0.0
        else:
            x = denoised + left * (x - denoised)
    return {"x": x.astype(arrays["x"].dtype), **denoise.next_answer()}


def _code_of_walk(arrays: Arrays) -> str:
    noise = ', torch.from_numpy(given["noise"])' if "noise" in arrays else ""
    label = ', torch.from_numpy(given["label"])' if "label" in arrays else ""
    x, grid, centres = (f'torch.from_numpy(given["{name}"])' for name in ("x", "grid", "centres"))
    kind = "sde" if noise else "ode"
    return (
        f"denoiser = AgingDenoiser({centres}, {arrays['spread'].item()!r})\n"
        f"walk_{kind}(denoiser, {x}, {grid}{noise}{label})\n{CODE_OF_NEXT}"
    )


WALKS = (
    Case("four steps", {"S": 4, "shape": (3, 2)}),
    Case("one step down to 0", {"S": 1, "shape": (2, 3)}),
    Case("one step that ends above 0", {"S": 1, "shape": (2, 3), "down": False}),
    Case("a walk that ends above 0", {"S": 3, "shape": (4, 2), "down": False}),
    Case("images of unequal sides", {"S": 3, "shape": (2, 1, 3, 4)}),
    Case("one image, without a label", {"S": 3, "shape": (1, 2, 2), "none": True}),
    Case("single precision", {"S": 5, "shape": (3, 4), "dtype": "float32"}),
    Case("numbers without axes", {"S": 3, "shape": (4,), "dtype": "float32"}),
    Case("hardly any noise", {"S": 3, "shape": (3, 2), "levels": SMALL, "down": False}, hidden=True),
    Case("many steps", {"S": 23, "shape": (5, 2, 3)}, hidden=True),
)
CHECKS = (
    Check(
        name="mixture",
        title="The denoiser of a mixture",
        points=5,
        cases=(
            Case("three in the plane", {"shape": (4, 2), "K": 3}),
            Case("two on a line", {"shape": (6, 1), "K": 2}),
            Case("one alone", {"shape": (3, 2), "K": 1}),
            Case("data without spread", {"shape": (5, 2), "K": 4, "deviation": 0.0}),
            Case("far from all means", {"shape": (5, 3), "K": 3, "far": 200.0}),
            Case("as many points as means", {"shape": (3, 3), "K": 3}),
            Case("single precision", {"shape": (4, 2), "K": 3, "dtype": "float32"}),
            Case("hardly any noise", {"shape": (5, 2), "K": 4, "deviation": 2e-4, "levels": SMALL}, hidden=True),
            Case("many", {"shape": (19, 4), "K": 7}, hidden=True),
        ),
        inputs=_draw_mixture,
        run=calls.mixture,
        expect=_expect_mixture,
        compare=close,
        first_hint="Do the shares of a point add up to 1? Which variance has a component once noise is on it?",
        hint="Logarithms of weights less squared distances over twice the variance, then a softmax over components; "
        "the guess keeps s² over the variance of x and the rest of the shares' mean.",
        uses=("denoise_mixture",),
        snippet="denoise_mixture(x, sigma, means, weights, deviation)",
    ),
    Check(
        name="directions",
        title="Score and slope",
        points=3,
        cases=(
            Case("points", {"shape": (4, 2)}),
            Case("images of unequal sides", {"shape": (2, 3, 2, 5)}),
            Case("one image", {"shape": (1, 4)}),
            Case("as many images as columns", {"shape": (3, 3)}),
            Case("single precision", {"shape": (3, 2, 2), "dtype": "float32"}),
            Case("numbers without axes", {"shape": (4,), "dtype": "float32"}),
            Case("hardly any noise", {"shape": (4, 2), "levels": SMALL}),
            Case("many images", {"shape": (21, 1, 3)}, hidden=True),
        ),
        inputs=_draw_directions,
        run=calls.directions,
        expect=_expect_directions,
        compare=close,
        first_hint="Which of the two leads towards the denoised image, and which away from it?",
        hint="One is divided by the level of each image, the other by its square; they point in opposite directions.",
        uses=("score", "slope"),
        snippet="score(denoised, x, sigma), slope(denoised, x, sigma)",
    ),
    Check(
        name="walk_ode",
        title="A walk along the ODE",
        points=4,
        cases=WALKS,
        inputs=_draw_walk,
        run=calls.walk_ode,
        partner=Ages,
        expect=_expect_walk,
        compare=close,
        first_hint="How often is the denoiser called, at which levels, and where does the last step end?",
        hint="From each level to the next: the slope at the level where the step begins, times the difference of "
        "levels, which is below 0.",
        uses=("walk_ode", "slope"),
        describe=_code_of_walk,
    ),
    Check(
        name="walk_sde",
        title="A walk along the SDE",
        points=6,
        cases=WALKS,
        inputs=_draw_noisy_walk,
        run=calls.walk_sde,
        partner=Ages,
        expect=_expect_walk,
        compare=close,
        first_hint="Which variance does a step take away, and which does it add? What about a last step to 0, and "
        "above?",
        hint="The score times the difference of squared levels, then noise of that variance, unless the next level "
        "is 0.",
        uses=("walk_sde", "score"),
        describe=_code_of_walk,
    ),
)
