"""Train the digit model and its judge of `mlsys_lab.diffusion.pretrained`: `python book/pretrain_digits.py`.

It takes a minute of one core. Weights go into the package, the loss curve with them; a record of how well the model
draws goes to book/data/measurements, and `--sheet FILE` writes what it draws as a picture.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from book.project import BOOK
from mlsys_lab.benchmark import new_record
from mlsys_lab.diffusion.digits import (
    accuracy,
    diversity,
    feature_distance,
    load_digits,
    memorised_fraction,
    sheet,
    train_classifier,
    write_png,
)
from mlsys_lab.diffusion.ema import EMA
from mlsys_lab.diffusion.guidance import ClassifierFreeGuidance
from mlsys_lab.diffusion.networks import DiT
from mlsys_lab.diffusion.preconditioning import Preconditioned
from mlsys_lab.diffusion.pretrained import CLASSIFIER, MODEL, describe, load_classifier, load_digits_model, save
from mlsys_lab.diffusion.samplers import DDIM
from mlsys_lab.diffusion.sampling import Noise, Sampling
from mlsys_lab.diffusion.schedules import edm_grid
from mlsys_lab.diffusion.training import log_normal, train
from mlsys_lab.flops import dit
from mlsys_lab.models.digits import CLASSES, SIZE
from mlsys_lab.models.training import one_thread

RECORDS = BOOK / "data" / "measurements"
COMMAND = "python book/pretrain_digits.py"
CONFIG = dit.DiTConfig("digits", 4, d_model=64, n_heads=4, size=SIZE, patch=2, channels=1, classes=CLASSES)
STEPS, BATCH, RATE, SEED = 440, 128, 4e-3, 0
LEVELS = {"mean": 0.4, "deviation": 1.3}
"""Digits are small: their class is decided at levels of 1 to 10, higher than in EDM's large images."""
POINTS = 20
"""How many points of the loss curve are kept."""
SAMPLER, GRID = DDIM(eta=1), edm_grid(40, sigma_min=0.02, sigma_max=20)
"""DDPM's noise mends what earlier steps got wrong: without guidance 97 % are read as asked, by the ODE (Heun) 93 %."""
GUIDANCE = 2.0


def main(argv: Sequence[str] | None = None) -> None:
    """Train both, save them, and record how well the model draws."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sheet", type=Path, metavar="FILE", help="where to write what the model draws, as PNG")
    picture = parser.parse_args(argv).sheet
    digits, _ = load_digits()
    with one_thread():
        save(train_classifier(digits), CLASSIFIER, {})
        denoiser, curve, seconds = train_denoiser()
        save(denoiser.network, MODEL, {**describe(denoiser), "steps": STEPS, "batch": BATCH, "curve": curve})
        record(seconds)
        if picture:
            asked = torch.arange(CLASSES).repeat(CLASSES)
            write_png(picture, sheet(draw(load_digits_model(), asked, GUIDANCE), CLASSES))


def train_denoiser() -> tuple[Preconditioned, list[tuple[int, float]], float]:
    """Train the denoiser: its averaged weights, points of the loss curve, and CPU seconds."""
    digits, _ = load_digits()
    torch.manual_seed(SEED)
    denoiser = Preconditioned(DiT(CONFIG), "edm", round(float(digits.images.std()), 4))
    curve: list[tuple[int, float]] = []
    started, seen = time.process_time(), []
    average = EMA(denoiser, decay=0.99)
    for step, loss in train(
        denoiser, *digits, average, steps=STEPS, batch=BATCH, rate=RATE, levels=log_normal(**LEVELS), seed=SEED
    ):
        seen.append(loss)
        if step * POINTS % STEPS == 0:
            curve.append((step, round(float(np.mean(seen)), 4)))
            seen.clear()
            print(f"step {step}: loss {curve[-1][1]:.4f}, {time.process_time() - started:.0f} CPU s", flush=True)
    return average.model, curve, time.process_time() - started


def draw(denoiser: Preconditioned, labels: torch.Tensor, scale: float) -> torch.Tensor:
    """Images of the classes in labels (B,), (B, 1, 8, 8), under guidance of this scale."""
    guided = ClassifierFreeGuidance(denoiser, scale, CLASSES)
    return Sampling(guided, GRID, Noise((len(labels), 1, SIZE, SIZE), SEED), labels, SAMPLER).run()


def record(seconds: float) -> None:
    """Measure what the saved model draws of the held-out digits' classes, and keep it with its seconds of training."""
    denoiser, judge = load_digits_model(), load_classifier()
    digits, held_out = load_digits()
    own, other = digits.images[: len(held_out.images)], held_out.images
    figures: dict[str, dict[str, float]] = {
        "held-out digits": {
            "accuracy": accuracy(judge, *held_out),
            "distance": feature_distance(judge, own, other),
            "diversity": diversity(*held_out),
        }
    }
    for scale in (1.0, GUIDANCE):
        images = draw(denoiser, held_out.labels, scale)
        figures[f"guidance {scale:g}"] = {
            "accuracy": accuracy(judge, images, held_out.labels),
            "distance": feature_distance(judge, images, other),
            "diversity": diversity(images, held_out.labels),
            "memorised": memorised_fraction(images, digits.images, other),
        }
    for name, values in figures.items():
        print(name + ": " + ", ".join(f"{what} {value:.4f}" for what, value in values.items()), flush=True)
    new_record(
        "pretrained-digits",
        "share of drawn digits in which a classifier trained apart reads the class asked for, without guidance",
        [figures["guidance 1"]["accuracy"]],
        unit="share",
        better="higher",
        command=COMMAND,
        seed=SEED,
        notes="distance: Fréchet, by the classifier's features, to the held-out digits; that of held-out digits is to"
        " as many training digits; diversity: mean distance of two images of a class; memorised: share nearer to a"
        " training digit than 95 % of held-out digits are",
        parameters={
            "parameters": dit.parameters(CONFIG),
            "forward_flops": dit.forward(CONFIG).total,
            "steps": STEPS,
            "batch": BATCH,
            "cpu_s": seconds,
            "figures": figures,
        },
    ).save(RECORDS)


if __name__ == "__main__":
    main()
