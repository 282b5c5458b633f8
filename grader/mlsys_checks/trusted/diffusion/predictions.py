"""Checks of task 3: what a network is asked, what its answer says, what an error weighs. Oracle: DDPM's own scale."""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed.diffusion import training as calls
from mlsys_checks.sandboxed.diffusion.training import PREDICTIONS
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.diffusion.oracle import column, draw_images, draw_levels


def scales(sigma: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """√ᾱ and √(1 - ᾱ) of each image, to the last digit of low levels too."""
    log = column(-np.log1p(sigma**2), images)  # of ᾱ
    return np.exp(log / 2), np.sqrt(-np.expm1(log))


def target(prediction: str, x0: np.ndarray, sigma: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """What a network ought to answer for x0 with noise, both (B, ...), of levels sigma (B,)."""
    kept, noisy = scales(sigma, x0)
    wanted: dict[str, np.ndarray] = {"epsilon": noise, "x0": x0, "v": kept * noise - noisy * x0}
    return wanted[prediction]


def draw_predictions(rng: np.random.Generator, case: Case) -> Arrays:
    """Images, noise, an answer and levels, with the place of the case's prediction in PREDICTIONS."""
    named = np.array(PREDICTIONS.index(case.params["prediction"]))
    return {
        **draw_images(rng, case, "x0", "noise", "answer", "x"),
        "sigma": draw_levels(rng, case),
        "prediction": named,
    }


def _expect_predictions(arrays: Arrays) -> Arrays:
    """Solve x_t = √ᾱ·x₀ + √(1 - ᾱ)·ε for x₀, with what was answered: for v, x₀ = √ᾱ·x_t - √(1 - ᾱ)·v."""
    dtype, prediction = arrays["x"].dtype, PREDICTIONS[int(arrays["prediction"])]
    x0, noise, answer, x = (arrays[name].astype(np.float64) for name in ("x0", "noise", "answer", "x"))
    kept, noisy = scales(arrays["sigma"], x)
    scaled = kept * x
    denoised = {"epsilon": (scaled - noisy * answer) / kept, "x0": answer, "v": kept * scaled - noisy * answer}
    wanted = {"target": target(prediction, x0, arrays["sigma"], noise), "denoised": denoised[prediction]}
    return {name: value.astype(dtype) for name, value in wanted.items()}


def _code_of_predictions(arrays: Arrays) -> str:
    named = PREDICTIONS[int(arrays["prediction"])]
    x0, sigma, noise, answer, x = (
        f'torch.from_numpy(given["{name}"])' for name in ("x0", "sigma", "noise", "answer", "x")
    )
    return f'target("{named}", {x0}, {sigma}, {noise})\ndenoised_from("{named}", {answer}, {x}, {sigma})'


def _draw_weights_of_loss(rng: np.random.Generator, case: Case) -> Arrays:
    named = np.array(PREDICTIONS.index(case.params["prediction"]))
    return {"sigma": draw_levels(rng, Case("", {"shape": (case.params["B"],), **case.params})), "prediction": named}


def _expect_weights_of_loss(arrays: Arrays) -> Arrays:
    """How far an answer moves for a denoised image that is off by one, squared."""
    ones = np.ones_like(arrays["sigma"])
    kept, noisy = scales(arrays["sigma"], ones)
    moved = {"epsilon": kept / noisy, "x0": ones, "v": 1 / noisy}[PREDICTIONS[int(arrays["prediction"])]]
    return {"weight": moved**2}


def _code_of_weights(arrays: Arrays) -> str:
    return f'loss_weight("{PREDICTIONS[int(arrays["prediction"])]}", torch.from_numpy(given["sigma"]))'


CHECKS = (
    Check(
        name="predictions",
        title="What a network is asked, and what its answer says",
        points=6,
        cases=(
            Case("noise", {"prediction": "epsilon", "shape": (3, 2)}),
            Case("the image", {"prediction": "x0", "shape": (3, 2)}),
            Case("v", {"prediction": "v", "shape": (3, 2)}),
            Case("v, images of unequal sides", {"prediction": "v", "shape": (2, 1, 3, 2)}),
            Case("noise, as many images as columns", {"prediction": "epsilon", "shape": (3, 3)}),
            Case("noise, single precision", {"prediction": "epsilon", "shape": (2, 5), "dtype": "float32"}),
            Case("v, single precision", {"prediction": "v", "shape": (2, 5), "dtype": "float32"}),
            Case("v, one image", {"prediction": "v", "shape": (1, 2, 2)}),
            Case("v, numbers without axes", {"prediction": "v", "shape": (4,), "dtype": "float32"}),
            Case("noise, many images", {"prediction": "epsilon", "shape": (17, 2, 3)}, hidden=True),
            Case("v, many images", {"prediction": "v", "shape": (17, 17)}, hidden=True),
        ),
        inputs=draw_predictions,
        run=calls.predictions,
        expect=_expect_predictions,
        compare=close,
        first_hint="Put the right target in as the answer: does the denoised image come out as x₀?",
        hint="Write √ᾱ and √(1 − ᾱ) by σ. Of v and the scaled image both, x₀ and the noise are a rotation.",
        uses=("target", "denoised_from"),
        describe=_code_of_predictions,
    ),
    Check(
        name="loss_weight",
        title="What an error weighs",
        points=3,
        cases=(
            Case("noise", {"prediction": "epsilon", "B": 4}),
            Case("the image", {"prediction": "x0", "B": 3}),
            Case("v", {"prediction": "v", "B": 4}),
            Case("noise, low levels", {"prediction": "epsilon", "B": 4, "levels": (5e-3, 9e-3)}),
            Case("noise, many levels", {"prediction": "epsilon", "B": 40}, hidden=True),
            Case("v, many levels", {"prediction": "v", "B": 40}, hidden=True),
            Case("v, low levels", {"prediction": "v", "B": 4, "levels": (5e-3, 9e-3)}, hidden=True),
        ),
        inputs=_draw_weights_of_loss,
        run=calls.loss_weight,
        expect=_expect_weights_of_loss,
        compare=close,
        first_hint="Change an answer by a little: by how much does the denoised image change?",
        hint="The factor before the answer in denoised_from, squared, and one over it.",
        uses=("loss_weight",),
        describe=_code_of_weights,
    ),
)
