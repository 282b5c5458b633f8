"""Checks of task 1: levels of a schedule, EDM's grid, images with noise. Oracle: logarithms, term by term."""

from __future__ import annotations

import math

import numpy as np

from mlsys_checks.sandboxed.diffusion import denoisers as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.diffusion.oracle import column, draw_images, draw_levels


def _draw_betas(rng: np.random.Generator, case: Case) -> Arrays:
    low, high = case.params.get("range", (1e-4, 0.02))
    return {"betas": np.sort(rng.uniform(low, high, case.params["T"]))}


def _expect_levels(arrays: Arrays) -> Arrays:
    logs = np.log1p(-arrays["betas"]).tolist()
    kept = [math.fsum(logs[: t + 1]) for t in range(len(logs))]
    return {"levels": np.array([math.sqrt(math.expm1(-log)) for log in kept])}


def _draw_grid(rng: np.random.Generator, case: Case) -> Arrays:
    drawn = {"sigma_min": rng.uniform(0.001, 0.05), "sigma_max": rng.uniform(5, 200), "rho": rng.uniform(1, 9)}
    if case.params.get("wide"):  # on a straight line, ρ = 1, the least level would be lost in the rounding of the first
        drawn = {"sigma_min": 10 ** rng.uniform(-6, -4), "sigma_max": 10 ** rng.uniform(3, 5), "rho": rng.uniform(3, 9)}
    given = drawn if case.params.get("drawn") or case.params.get("wide") else {}
    return {"steps": np.array(case.params["S"]), **{name: np.array(value) for name, value in given.items()}}


def _expect_grid(arrays: Arrays) -> Arrays:
    low, high, rho = (float(arrays.get(name, usual)) for name, usual in zip(_EDM, (0.002, 80.0, 7.0), strict=True))
    steps = int(arrays["steps"])
    ends = math.exp(math.log(high) / rho), math.exp(math.log(low) / rho)
    shares = [i / (steps - 1) if i else 0.0 for i in range(steps)]
    return {"grid": np.array([*(((1 - part) * ends[0] + part * ends[1]) ** rho for part in shares), 0.0])}


_EDM = ("sigma_min", "sigma_max", "rho")


def _code_of_grid(arrays: Arrays) -> str:
    given = "".join(f", {arrays[name].item()!r}" for name in _EDM if name in arrays)
    return f"edm_grid({int(arrays['steps'])}{given})"


def _compare_grids(got: Arrays, expected: Arrays) -> Mismatch | None:
    """`close` of logarithms, so that low levels count as high ones do; level 0 is 0."""
    return close(got, expected) or close(_logs(got), _logs(expected))


def _logs(arrays: Arrays) -> Arrays:
    grid = arrays["grid"]
    return {"the logarithm of grid": np.log(np.where(grid > 0, grid, 1e-300))}


def _draw_noisy(rng: np.random.Generator, case: Case) -> Arrays:
    return {**draw_images(rng, case, "x0", "noise"), "sigma": draw_levels(rng, case)}


def _expect_noisy(arrays: Arrays) -> Arrays:
    x0 = arrays["x0"]
    x = x0.astype(np.float64) + column(arrays["sigma"], x0) * arrays["noise"]
    return {"x": x.astype(x0.dtype)}


CHECKS = (
    Check(
        name="levels",
        title="Levels of DDPM's variances",
        points=4,
        cases=(
            Case("four steps", {"T": 4, "range": (0.1, 0.6)}),
            Case("one step", {"T": 1, "range": (0.2, 0.5)}),
            Case("a thousand steps", {"T": 1000}),
            Case("steps that keep little", {"T": 37, "range": (0.05, 0.9)}, hidden=True),
            Case("steps that keep next to nothing", {"T": 3, "range": (0.9992, 0.9999)}, hidden=True),
        ),
        inputs=_draw_betas,
        run=calls.levels,
        expect=_expect_levels,
        compare=close,
        first_hint="What is the first level? It already has the first step's noise.",
        hint="A running product of all 1 − β up to and with each step; then the root of noise over what is kept.",
        uses=("levels",),
        snippet="levels(betas)",
    ),
    Check(
        name="edm_grid",
        title="EDM's grid",
        points=4,
        cases=(
            Case("numbers of its own", {"S": 6, "drawn": True}),
            Case("EDM's numbers", {"S": 18}),
            Case("one step", {"S": 1}),
            Case("two steps", {"S": 2, "drawn": True}),
            Case("levels of all sizes", {"S": 5, "wide": True}),
            Case("one step, from a level of its own", {"S": 1, "drawn": True}, hidden=True),
            Case("seven steps", {"S": 7}, hidden=True),
            Case("twenty-two steps", {"S": 22}, hidden=True),
            Case("many steps", {"S": 61, "drawn": True}, hidden=True),
        ),
        inputs=_draw_grid,
        run=calls.edm_grid,
        expect=_expect_grid,
        compare=_compare_grids,
        first_hint="Compare both ends, the number of levels, and one in the middle.",
        hint="S numbers along a line between the two ends, each end raised to 1/ρ before; then all to the power of ρ; "
        "then a zero.",
        uses=("edm_grid",),
        describe=_code_of_grid,
    ),
    Check(
        name="q_sample",
        title="Images with noise",
        points=3,
        cases=(
            Case("points", {"shape": (5, 2)}),
            Case("images of unequal sides", {"shape": (3, 2, 4, 5)}),
            Case("one image", {"shape": (1, 3, 3)}),
            Case("as many images as columns", {"shape": (4, 4)}),
            Case("single precision", {"shape": (2, 1, 3, 2), "dtype": "float32"}),
            Case("numbers without axes", {"shape": (7,), "dtype": "float32"}),
            Case("many images", {"shape": (33, 1, 2, 7)}, hidden=True),
        ),
        inputs=_draw_noisy,
        run=calls.q_sample,
        expect=_expect_noisy,
        compare=close,
        first_hint="Which level has which image? Is the image itself left at its size?",
        hint="Level times noise is added to the image; per_image makes one level for each image, in its dtype.",
        uses=("q_sample",),
        snippet="q_sample(x0, sigma, noise)",
    ),
)
