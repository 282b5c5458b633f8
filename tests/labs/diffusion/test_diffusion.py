"""Lab 12: where figures in the text come from, and that a missing function costs the points of its own check only."""

from __future__ import annotations

import inspect
import math
from types import ModuleType
from typing import Any

import pytest
import torch

from mlsys_lab import hardware
from mlsys_lab.diffusion import cost, ema, guidance, mixtures, preconditioning, process, schedules, training
from mlsys_lab.diffusion.schedules import edm_grid
from mlsys_lab.flops import dit
from tests.labs.figures import assert_held, texts_of
from tests.labs.harness import labs
from tests.labs.slips import failed, leave_unwritten, load_reference

DIFFUSION = next(lab for lab in labs() if lab.info.topic == "diffusion")
IN_CODE = (
    "A cloud of noise at level 80",
    "the null class 10",
    "down to level 1 in 40 steps",
    "You go from 64 steps to 128",
    "your digits, in 16 steps of Heun",
)
GIVEN = (
    "of DiT-XL/2 is a latent of 32 × 32 with 4 channels",
    "decoder turns into 256 × 256 pixels",
    "DiT-XL/2 draws an image of 256 × 256 pixels in 50 steps",
    "[lab 05](05-transformer-arithmetic.ipynb)",
    "Where do two schedules put twenty steps?",
    "makes up for it with noise of variance 15",
    "SGD moves the weight to 0.8",
    "keeps 2/11 of 1 and takes 9/11 of 0.8",
    "which leads to 0.8",
    "The exact ODE leads to 0.894, a single Euler step to 0.8",
    "adds noise of variance 15, where",
    "an error of 0.01 in the noise at level 80 is an error of 0.8 in the image",
    "on 1,000 levels and is sampled at 20 others",
    "With decay 0.999 and no warm-up",
    "after 1,000 updates",
    "1.5 images per call on average",
    "sixteen times those of attention's scores",
)
CHECK_OF = {
    "sigmas": "levels",
    "edm_grid": "edm_grid",
    "sample_ode": "walk_ode",
    "sample_sde": "walk_sde",
    "coefficients": "predictions",
    "p_losses": "p_losses",
    "train_step": "train_step",
    "posterior": "posterior",
    "heun_step": "heun_step",
    "step_cost": "dit_work",
    "predict_image": "predict_image",
    "serve": "serve",
}


IN_PACKAGE: dict[ModuleType, tuple[str, ...]] = {
    process: ("q_sample", "posterior", "score", "slope", "per_image"),
    schedules: ("alphas_cumprod", "sigmas", "edm_grid"),
    mixtures: ("Mixture", "Mixture.__call__", "Mixture.responsibilities"),
    preconditioning: ("coefficients", "Coefficients", "Preconditioned", "Preconditioned.forward"),
    training: ("p_losses",),
    ema: ("EMA", "EMA.update"),
    guidance: ("ClassifierFreeGuidance", "ClassifierFreeGuidance.__call__"),
    cost: ("Cost",),
    dit: ("DiTConfig",),
}
"""Names that the lab and the package share, with the same parameters in the same order."""


def computed() -> list[str]:
    """Phrases of the text, made of what the package, the lab's mixture and the lab's requests give."""
    xl, h100 = dit.preset("XL/2"), hardware.device("H100")
    flops, weights = dit.forward(xl).total, dit.parameters(xl)
    peak, bandwidth = h100.peak("bf16"), h100.memory_bandwidth_bytes_per_s
    fine = dit.DiTConfig("XL/1", xl.n_layers, xl.d_model, xl.n_heads, xl.size, 1, 4, 1000, 8)
    intensity, ridge = dit.forward(fine).total / (2 * dit.parameters(fine)), peak / bandwidth
    means = torch.tensor([-1.0, 1.0, 0.0])  # of the lab's mixture, along the first axis
    shares = torch.tensor([0.5, 0.3, 0.2])
    variance = float(shares @ means**2 - (shares @ means) ** 2) + 0.2**2
    steps = [4 + 20 * (7 * digit % 10) // 9 for digit in range(10)]
    return [
        f"100 calls of {flops / 1e9:.0f} GFLOPs, at least {100e3 * flops / peak:.0f} ms on an H100",
        f"has {xl.tokens} tokens per image and about {weights / 1e9:.2f} billion weights",
        f"all tokens of an image, {xl.tokens} of them",
        f"H100: {peak / 1e12:.0f} TFLOP/s and {bandwidth / 1e12:.2f} TB/s",
        f"{intensity:.0f} FLOPs per byte, above the ridge point at {ridge:.0f}",
        f"standard deviation along the first axis is {math.sqrt(variance):.2f}",
        f"the data's {variance:.1f} and the noise's 1 make {1 + variance:.1f}",
        f"a deviation of {math.sqrt(1 + variance):.2f}",
        f"{', '.join(map(str, steps[:-1]))} and {steps[-1]} steps: {sum(steps)} calls",
        f"{sum(steps)} steps on 4 slots are at least {math.ceil(sum(steps) / 4)} calls",
        f"or {100 * 0.999**1000:.0f} %",
    ]


def test_figures_come_from_somewhere() -> None:
    assert_held(DIFFUSION, computed=computed(), in_code=IN_CODE, given=GIVEN)


def test_the_drawing_shows_edms_levels() -> None:
    levels = " ──► ".join(f"{level:.2g}" for level in edm_grid(6)[1:6].tolist())
    assert f"σ = 80 ──► {levels} ──► 0" in texts_of(DIFFUSION)


@pytest.mark.parametrize("name", CHECK_OF)
def test_a_missing_function_costs_its_own_check_only(name: str) -> None:
    module = load_reference(DIFFUSION)
    leave_unwritten(module, name)
    assert failed(DIFFUSION, module) == {CHECK_OF[name]}


@pytest.mark.parametrize("module", IN_PACKAGE, ids=lambda module: module.__name__)
def test_the_lab_has_the_names_and_parameters_of_the_package(module: ModuleType) -> None:
    artifact = load_reference(DIFFUSION)
    for name in IN_PACKAGE[module]:
        mine: Any = artifact
        ours: Any = module
        for part in name.split("."):
            mine, ours = getattr(mine, part), getattr(ours, part)
        assert list(inspect.signature(mine).parameters) == list(inspect.signature(ours).parameters), name
