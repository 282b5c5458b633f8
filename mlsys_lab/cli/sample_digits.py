"""Sample digits from the course's small diffusion model, and compare its speed with the bound that arithmetic sets.

The picture is a PNG; a file of that name is overwritten. A line gives the steps, the network evaluations (NFE), FLOPs,
seconds, and the fraction of the bound reached: the time of these FLOPs at this machine's speed of matrix products,
which is measured on the spot, over the time that sampling took. A model this small is far below the bound.

With --student the model is one of those that were distilled from it (`python book/distil_digits.py` trains them), to 1,
2, 4 or 8 steps of DDIM, without guidance.

examples:
  mlsys-lab sample-digits 7
  mlsys-lab sample-digits 7 --steps 20 --guidance 2 --sampler heun --out sevens.png
  mlsys-lab sample-digits 3 --sampler dpm++ --steps 8 --count 100 --seed 1
  mlsys-lab sample-digits 7 --student 2
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mlsys_lab.cli.app import argument, option
from mlsys_lab.cli.spinner import spinner
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.diffusion.sampling import Sampling
    from mlsys_lab.flops.dit import DiTConfig

MOST_STEPS, MOST_COUNT = 1000, 1000


@dataclass(kw_only=True)
class Arguments:
    """The digit, how it is sampled, and the file that it is written to."""

    digit: Annotated[int, argument("0 to 9")]
    steps: Annotated[int, option("steps of the sampler", "N")] = 20
    guidance: Annotated[float, option("guidance scale: 1 is none, 0 ignores the digit", "S")] = 2.0
    sampler: Annotated[str, option("ddpm, ddim, heun, churn, dpm++ or sde", "NAME")] = "heun"
    student: Annotated[int | None, option("the model distilled to 1, 2, 4 or 8 steps", "N")] = None
    count: Annotated[int, option("how many to sample", "N")] = 10
    seed: Annotated[int, option("the same picture every time", "N")] = 0
    out: Annotated[Path, option("the picture", "FILE")] = Path("digits.png")


def run(args: Arguments) -> int:
    """Write the picture, then a line about its cost; returns exit code 0."""
    _require("digit", args.digit, 0, 9)
    _require("steps", args.steps, 1, MOST_STEPS)
    _require("count", args.count, 1, MOST_COUNT)
    _require("seed", args.seed, 0, 2**32)
    if not 0 <= args.guidance < 100:
        raise InputError("guidance out of range", got=args.guidance, expected="0 to below 100; 1 is none")
    if args.student is not None:
        fixed: dict[str, Any] = {"steps": args.student, "guidance": 1.0, "sampler": "ddim"}
        if given := [f"--{name}" for name in fixed if getattr(args, name) != getattr(Arguments, name)]:
            raise InputError("a student has its own steps, guidance and sampler", got=", ".join(given))
        args = replace(args, **fixed)
    from mlsys_lab.diffusion.digits import sheet, write_png
    from mlsys_lab.models.training import one_thread

    with one_thread():
        sampling, config = _prepare(args)
        with spinner(f"sampling {args.count} digits in {args.steps} steps") as say:
            started = time.perf_counter()
            images = sampling.run()
            seconds = time.perf_counter() - started
            write_png(args.out, sheet(images, columns=min(10, args.count)))
            say("measuring this machine's speed of matrix products")
            report = _report(args, sampling, config, seconds)
        print(report)
    return 0


def _prepare(args: Arguments) -> tuple[Sampling, DiTConfig]:
    """The run that draws the digits, and the sizes of its network."""
    import torch

    from mlsys_lab.diffusion.guidance import ClassifierFreeGuidance
    from mlsys_lab.diffusion.pretrained import default_grid, load_digits_model, load_student, read_config
    from mlsys_lab.diffusion.samplers import find_sampler
    from mlsys_lab.diffusion.sampling import Noise, Sampling

    sampler, config = find_sampler(args.sampler), read_config()
    if args.student is None:
        denoiser, grid = load_digits_model(), default_grid(args.steps)
    else:
        denoiser, grid = load_student(args.student)
    noise = Noise((args.count, config.channels, config.size, config.size), args.seed)
    label = torch.full((args.count,), args.digit)
    guided = ClassifierFreeGuidance(denoiser, args.guidance, config.classes)
    return Sampling(guided, grid, noise, label, sampler), config


def _report(args: Arguments, sampling: Sampling, config: DiTConfig, seconds: float) -> str:
    """One line on steps, FLOPs, seconds and the bound."""
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
