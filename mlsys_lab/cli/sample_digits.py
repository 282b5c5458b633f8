"""Let the small diffusion model that comes with the course draw a digit, and say what it cost beside the bound.

The picture is a PNG; a file of that name is written over. A line says steps, evaluations of the
network, FLOPs, seconds, and the share of the bound: the time that these FLOPs take at the speed at which this machine
multiplies matrices, measured on the spot, over the time that drawing took. A model this small is far below it.

examples:
  mlsys-lab sample-digits 7
  mlsys-lab sample-digits 7 --steps 20 --guidance 2 --sampler heun --out sevens.png
  mlsys-lab sample-digits 3 --sampler dpm++ --steps 8 --count 100 --seed 1
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.diffusion.sampling import Sampling
    from mlsys_lab.flops.dit import DiTConfig

SIGMA_MIN, SIGMA_MAX = 0.02, 20.0
MOST_STEPS, MOST_COUNT = 1000, 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `mlsys-lab sample-digits`: the digit, how it is drawn, and where to."""
    parser.add_argument("digit", type=int, metavar="DIGIT", help="0 to 9")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="steps of the sampler (20)")
    parser.add_argument("--guidance", type=float, default=2.0, metavar="S", help="1 is none, 0 ignores the digit (2)")
    parser.add_argument("--sampler", default="heun", metavar="NAME", help="ddpm, ddim, heun, churn, dpm++, sde (heun)")
    parser.add_argument("--count", type=int, default=10, metavar="N", help="how many to draw (10)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the same picture every time (0)")
    parser.add_argument("--out", type=Path, default=Path("digits.png"), metavar="FILE", help="digits.png by default")


def run(args: argparse.Namespace) -> int:
    """Write the picture, then a line about its cost; returns exit code 0."""
    _require("digit", args.digit, 0, 9)
    _require("steps", args.steps, 1, MOST_STEPS)
    _require("count", args.count, 1, MOST_COUNT)
    _require("seed", args.seed, 0, 2**32)
    if not 0 <= args.guidance < 100:
        raise InputError("guidance out of range", got=args.guidance, expected="0 to below 100; 1 is none")
    from mlsys_lab.diffusion.digits import sheet, write_png
    from mlsys_lab.models.training import one_thread

    with one_thread():
        sampling, config = _prepare(args)
        started = time.perf_counter()
        images = sampling.run()
        seconds = time.perf_counter() - started
        write_png(args.out, sheet(images, columns=min(10, args.count)))
        print(_report(args, sampling, config, seconds))
    return 0


def _prepare(args: argparse.Namespace) -> tuple[Sampling, DiTConfig]:
    """The run that draws the digits, and the sizes of its network."""
    import torch

    from mlsys_lab.diffusion.guidance import ClassifierFreeGuidance
    from mlsys_lab.diffusion.pretrained import load_digits_model, read_config
    from mlsys_lab.diffusion.samplers import find_sampler
    from mlsys_lab.diffusion.sampling import Noise, Sampling
    from mlsys_lab.diffusion.schedules import edm_grid

    sampler, denoiser, config = find_sampler(args.sampler), load_digits_model(), read_config()
    noise = Noise((args.count, config.channels, config.size, config.size), args.seed)
    label = torch.full((args.count,), args.digit)
    guided = ClassifierFreeGuidance(denoiser, args.guidance, config.classes)
    return Sampling(guided, edm_grid(args.steps, SIGMA_MIN, SIGMA_MAX), noise, label, sampler), config


def _report(args: argparse.Namespace, sampling: Sampling, config: DiTConfig, seconds: float) -> str:
    """What the picture cost, on one line."""
    from mlsys_lab.diffusion.cost import evaluations
    from mlsys_lab.flops import dit
    from mlsys_lab.hardware import measure_cpu

    each = evaluations(sampling.sampler, args.steps, guided=args.guidance != 1)
    flops = args.count * each * dit.forward(config).total
    peak = measure_cpu().peaks["fp32"]
    least = flops / peak
    return (
        f"{args.out}: {args.count} digits, {args.steps} steps, {each} evaluations each, {flops / 1e9:.2f} GFLOP in"
        f" {seconds:.2f} s; at least {least:.3f} s at the {peak / 1e9:.0f} GFLOP/s of this machine's matrix products:"
        f" {least / seconds:.1%} of the bound"
    )


def _require(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InputError(f"{name} out of range", got=value, expected=f"{least} to {most}")
