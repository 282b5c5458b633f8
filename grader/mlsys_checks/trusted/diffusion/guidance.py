"""Check of task 5: guidance in one call. Oracle: (1 + w) times one guess less w times the other, where it acts."""

from __future__ import annotations

import math

import numpy as np

from mlsys_checks.sandboxed.diffusion import denoisers as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.diffusion.oracle import (
    CODE_OF_NEXT,
    Ages,
    Aging,
    column,
    draw_denoiser,
    draw_images,
    draw_levels,
    null_of,
)

NEARLY = 2.0**-20
"""How little a scale may differ from 1 and still be another: single precision holds it, too."""


def _draw_guided(rng: np.random.Generator, case: Case) -> Arrays:
    B, sigma = case.params["shape"][0], draw_levels(rng, case)
    scale = rng.uniform(1.5, 5, B) * (1 - 2 * (rng.random(B) < 0.2))
    order = rng.permutation(B)
    scale[order[-1:]] *= B < 3  # one of many leaves its class out
    scale[order[: case.params.get("plain", 0)]] = 1.0
    if case.params.get("near"):
        scale[order[0]] = 1 + NEARLY
    low, high = 0.0, math.inf
    if interval := case.params.get("interval"):
        ordered = np.sort(sigma)
        low, high = (float(ordered[place]) for place in interval)
    if case.params.get("outside"):
        low, high = 100.0, 200.0
    if case.params.get("turned"):
        low, high = float(sigma.max()), float(sigma.min())
    ends = np.array(low), np.array(high)
    if case.params.get("each"):
        ends = sigma * rng.choice([0.5, 1.5], B), sigma * rng.choice([1.6, 3.0], B)
    drawn = {**draw_images(rng, case, "x"), **draw_denoiser(rng, case)}
    if case.params.get("unnamed"):
        drawn["label"][order[0]] = null_of(drawn)
    return {**drawn, "sigma": sigma, "scale": scale, "low": ends[0], "high": ends[1]}


def guided(denoise: Aging, x: np.ndarray, arrays: Arrays) -> np.ndarray:
    """Denoised images (B, ...), as (1 + w)·D_c - w·D_u with w = s - 1 where guidance acts."""
    sigma, scale = arrays["sigma"], arrays["scale"]
    acts = np.array((arrays["low"] <= sigma) & (sigma <= arrays["high"]) & (scale != 1))
    again = np.concatenate([np.arange(len(x)), np.flatnonzero(acts)])
    label = np.concatenate([arrays["label"], np.full(int(acts.sum()), denoise.null)])
    answers = denoise(x[again], sigma[again], label)
    denoised = answers[: len(x)].copy()
    w = column(scale[acts] - 1, denoised)
    denoised[acts] = (1 + w) * denoised[acts] - w * answers[len(x) :]
    return denoised


def _expect_guided(arrays: Arrays) -> Arrays:
    denoise = Aging(arrays)
    denoised = guided(denoise, arrays["x"].astype(np.float64), arrays)
    return {"denoised": denoised.astype(arrays["x"].dtype), **denoise.next_answer()}


def _code_of_guide(arrays: Arrays) -> str:
    centres, x, sigma, label, scale = (
        f'torch.from_numpy(given["{name}"])' for name in ("centres", "x", "sigma", "label", "scale")
    )
    low, high = (
        f'torch.from_numpy(given["{name}"])' if arrays[name].ndim else f'float(given["{name}"])'
        for name in ("low", "high")
    )
    return (
        f"denoiser = AgingDenoiser({centres}, {float(arrays['spread'])!r})\n"
        f"guide(denoiser, {x}, {sigma}, {label}, {scale}, {null_of(arrays)}, {low}, {high})\n{CODE_OF_NEXT}"
    )


CHECKS = (
    Check(
        name="guide",
        title="Guidance in one call",
        points=8,
        cases=(
            Case("all levels", {"shape": (3, 2)}),
            Case("within an interval", {"shape": (5, 2), "interval": (1, 3)}),
            Case("some of scale 1", {"shape": (4, 1, 2, 3), "plain": 2}),
            Case("none is guided", {"shape": (3, 2), "plain": 3}),
            Case("none is inside", {"shape": (2, 3), "outside": True}),
            Case("one image", {"shape": (1, 2, 2)}),
            Case("an interval for each", {"shape": (8, 3), "each": True}),
            Case("single precision", {"shape": (4, 4), "interval": (0, 2), "dtype": "float32"}),
            Case("numbers without axes", {"shape": (5,), "dtype": "float32"}),
            Case("a scale of nearly 1", {"shape": (3, 2), "near": True}),
            Case("levels of all sizes", {"shape": (40, 2), "levels": (1e-4, 1e4)}),
            Case("an interval without a level", {"shape": (3, 2), "turned": True}, hidden=True),
            Case("an image of no class", {"shape": (4, 2), "unnamed": True}, hidden=True),
            Case("many images", {"shape": (24, 2, 3), "interval": (4, 19), "plain": 5, "classes": 11}, hidden=True),
        ),
        inputs=_draw_guided,
        run=calls.guide,
        partner=Ages,
        expect=_expect_guided,
        compare=close,
        first_hint="How many images has the one call, and which of them have no class? Which keep their first guess?",
        hint="All images with their labels, then those that are guided once more with null; what is guided begins at "
        "the guess without a class and goes scale times the difference.",
        uses=("guide",),
        describe=_code_of_guide,
    ),
)
