"""Distil the digit model of `mlsys_lab.diffusion.pretrained` to 8, 4, 2 and 1 steps: `python book/distil_digits.py`.

It takes a few minutes of one core, in rounds, each of half the steps. Students go into the package, and a record of how
well they draw, beside their teacher by DDIM and by Heun at the same levels, to book/data/measurements.
"""

from __future__ import annotations

import copy
import math
import time

import torch

from book.pretrain_digits import RECORDS
from mlsys_lab.benchmark import new_record
from mlsys_lab.diffusion.digits import accuracy, diversity, feature_distance, load_digits
from mlsys_lab.diffusion.distillation import distil, halve_grid
from mlsys_lab.diffusion.preconditioning import Preconditioned
from mlsys_lab.diffusion.pretrained import (
    STUDENTS,
    load_classifier,
    load_digits_model,
    load_student,
    read_config,
    save_student,
)
from mlsys_lab.diffusion.process import Denoiser
from mlsys_lab.diffusion.samplers import DDIM, Heun, Sampler
from mlsys_lab.diffusion.sampling import Noise, Sampling
from mlsys_lab.diffusion.schedules import edm_grid
from mlsys_lab.flops import dit
from mlsys_lab.models.training import one_thread

COMMAND = "python book/distil_digits.py"
GRID = edm_grid(32, sigma_min=0.02, sigma_max=20)
"""The first teacher's levels: with 32 steps DDIM draws digits as varied as those held out."""
STEPS, BATCH, RATE, SEED = 120, 128, 1e-3, 0
"""Steps of training in each round."""


def main() -> None:
    """Distil, save the students, and record how well they draw."""
    with one_thread():
        record(train_students())


def train_students() -> float:
    """Train student after student, and save those that the package brings; CPU seconds of all rounds."""
    digits, _ = load_digits()
    grid, teacher = GRID, load_digits_model()
    started = time.process_time()
    while len(grid) - 1 > min(STUDENTS):
        student = copy.deepcopy(teacher).requires_grad_(True)
        losses = [
            loss for _, loss in distil(teacher, student, grid, *digits, steps=STEPS, batch=BATCH, rate=RATE, seed=SEED)
        ]
        grid, teacher = halve_grid(grid), student.requires_grad_(False)
        steps, last = len(grid) - 1, losses[-STEPS // 5 :]
        print(f"{steps} steps: loss {sum(last) / len(last):.5f}, {time.process_time() - started:.0f} CPU s", flush=True)
        if steps in STUDENTS:
            save_student(teacher, grid, {"rounds": rounds_to(steps), "steps": STEPS, "batch": BATCH})
    return time.process_time() - started


def rounds_to(steps: int) -> int:
    """How often the first teacher's steps are halved down to so many."""
    return round(math.log2((len(GRID) - 1) / steps))


def record(seconds: float) -> None:
    """Measure what the saved students and their teacher draw of the held-out digits' classes, and keep it."""
    teacher, judge = load_digits_model(), load_classifier()
    _, held_out = load_digits()

    def draw(denoiser: Denoiser, grid: torch.Tensor, sampler: Sampler) -> torch.Tensor:
        return Sampling(denoiser, grid, Noise((len(held_out.images), 1, 8, 8), SEED), held_out.labels, sampler).run()

    def measure(images: torch.Tensor, evaluations: int) -> dict[str, float]:
        return {
            "evaluations": evaluations,
            "accuracy": accuracy(judge, images, held_out.labels),
            "distance": feature_distance(judge, images, held_out.images),
            "diversity": diversity(images, held_out.labels),
            "off": float((images - whole).square().mean().sqrt()),
        }

    whole = draw(teacher, GRID, DDIM())
    figures = {f"DDIM, {len(GRID) - 1} steps": measure(whole, len(GRID) - 1)}
    for steps in STUDENTS:
        student = load_student(steps)
        ways: dict[str, tuple[Preconditioned, Sampler]] = {
            "DDIM": (teacher, DDIM()),
            "Heun": (teacher, Heun()),
            "student": (student.denoiser, DDIM()),
        }
        for name, (denoiser, sampler) in ways.items():
            images = draw(denoiser, student.grid, sampler)
            figures[f"{name}, {steps} steps"] = measure(images, sampler.evaluations(steps))
    for name, values in figures.items():
        print(name + ": " + ", ".join(f"{what} {value:.4g}" for what, value in values.items()), flush=True)
    fewest = min(STUDENTS)
    new_record(
        "distilled-digits",
        f"how far digits of the student of {fewest} step are from those that its teacher makes of the same noise in"
        f" {len(GRID) - 1} steps, root mean square",
        [figures[f"student, {fewest} steps"]["off"]],
        unit="half of a pixel's range",
        better="lower",
        command=COMMAND,
        seed=SEED,
        notes="evaluations: of the network, for an image; accuracy: share read as asked by a classifier trained apart;"
        " distance: Fréchet, by the classifier's features, to the held-out digits; diversity: mean distance of two"
        " images of a class; off: root mean square distance to the teacher's digits of most steps from the same noise",
        parameters={
            "forward_flops": dit.forward(read_config()).total,
            "rounds": rounds_to(fewest),
            "steps": STEPS,
            "batch": BATCH,
            "cpu_s": seconds,
            "figures": figures,
        },
    ).save(RECORDS)


if __name__ == "__main__":
    main()
