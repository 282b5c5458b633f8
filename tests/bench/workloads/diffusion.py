"""A diffusion transformer at work, DiT-B/2 on latents of 256 pixels: its share of the GPU's peak, and its engine.

Weights are drawn at random, all of them, since a new DiT answers 0. Products of matrices are in bf16; in training the
weights themselves are kept in fp32, and updated so.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random

import torch
from torch import nn
from torch.func import functional_call

from mlsys_lab.diffusion.engine import Engine, Request
from mlsys_lab.diffusion.guidance import ClassifierFreeGuidance
from mlsys_lab.diffusion.networks import DiT
from mlsys_lab.diffusion.preconditioning import Preconditioned
from mlsys_lab.diffusion.process import Denoiser
from mlsys_lab.diffusion.sampling import Noise, Sampling
from mlsys_lab.diffusion.schedules import edm_grid
from mlsys_lab.diffusion.training import log_normal, optimize, p_losses
from mlsys_lab.flops.dit import DiTConfig, forward, preset
from tests.bench.kernels.entries import Call, Entry, Machine, Program

PEAK, IDEAL = 0.45, 0.9
"""Asked: model FLOPs a second over the peak, which is MFU; images a second of the engine over an ideal batch's."""
SCALE, RATE = 4.0, 1e-4
"""Scale of guidance, and highest rate of learning."""
PART, CHECKED = 32, 5
"""Images of a part of a batch, where fp32 would not find room for all; of the engine, those that are checked."""
BF16 = torch.bfloat16


def config(layers: int, width: int, size: int) -> DiTConfig:
    """DiT-B/2 at 12 layers, a width of 768 and latents of 32·32; it answers for the image alone, not for a variance."""
    base = preset("B/2", size)
    return dataclasses.replace(base, n_layers=layers, d_model=width, n_heads=width // 64, out_channels=base.channels)


def make_denoiser(machine: Machine, layers: int, width: int, size: int) -> Preconditioned:
    """A denoiser with random weights in fp32."""
    torch.manual_seed(0)
    with torch.device(machine.device):
        network = DiT(config(layers, width, size))
        for weight in network.parameters():
            nn.init.normal_(weight, std=0.02)
    return Preconditioned(network)


def make_batch(machine: Machine, of: DiTConfig, batch: int) -> tuple[torch.Tensor, ...]:
    """Images (B, C, S, S), levels (B,), noise like images, and labels (B,), all on the machine's device."""
    images, noise = machine.several(2, batch, of.channels, of.size, of.size, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    levels, labels = log_normal()(batch, generator), torch.randint(of.classes, (batch,), generator=generator)
    return images, levels.to(images), noise, labels.to(images.device)


def lower(denoiser: Preconditioned) -> Denoiser:
    """The denoiser with its weights and products of matrices in bf16, and without gradients."""
    coarse = copy.deepcopy(denoiser).to(BF16)

    @torch.no_grad()
    def denoise(x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
        with torch.autocast(x.device.type, BF16):
            answer: torch.Tensor = coarse(x, sigma, label)
        return answer

    return denoise


def denoising(machine: Machine, layers: int, width: int, size: int, batch: int) -> Program:
    """One call of the network, compiled, beside the same as it is."""
    fine = make_denoiser(machine, layers, width, size).requires_grad_(False)
    of, coarse = config(layers, width, size), lower(fine)
    images, levels, noise, labels = make_batch(machine, of, batch)
    given = images + levels[:, None, None, None] * noise, levels, labels
    ours = partial(machine.compiled(coarse), *given)

    def expected() -> torch.Tensor:
        return torch.cat([fine(*part) for part in zip(*(x.split(PART) for x in given), strict=True)])

    return Program(
        ours,
        {"eager": partial(coarse, *given)},
        expected,
        forward(of, batch).total,
        "TFLOP/s",
        {"dtype": str(BF16), "model": of.name},
        checked=lambda: ours().to(BF16),
        limits={"peak": machine.peak_flops_per_s / 1e12},
    )


class Loss(nn.Module):
    """Mean of the losses of a batch, of which `make_batch` gives the parts."""

    def __init__(self, denoiser: Preconditioned) -> None:
        super().__init__()
        self.denoiser = denoiser

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        return p_losses(self.denoiser, *batch).mean()


def norms(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Norm of each weight's gradient: the errors of bf16 in single numbers, some per cent after 12 layers, cancel."""
    return torch.stack([gradient.norm() for gradient in gradients])


def training(machine: Machine, layers: int, width: int, size: int, batch: int) -> Program:
    """A step of the package's training, loss and gradients compiled, beside the same as it is.

    The backward pass has twice the FLOPs of the forward pass; those of the optimiser are not counted.
    """
    fine = Loss(make_denoiser(machine, layers, width, size))
    of, given = config(layers, width, size), make_batch(machine, config(layers, width, size), batch)
    weights = dict(fine.named_parameters())
    state = weights | dict(fine.named_buffers())

    def coarse() -> torch.Tensor:
        lowered = {name: value.to(BF16) for name, value in state.items()}
        with torch.autocast(given[0].device.type, BF16):
            loss: torch.Tensor = functional_call(fine, lowered, given)
        return loss

    def steps(loss: Call) -> Call:
        def losses() -> Iterator[torch.Tensor]:
            while True:
                yield loss()

        return partial(next, optimize(fine, losses(), steps=10**6, rate=RATE))

    def gradients(loss: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(loss, list(weights.values()))

    def expected() -> torch.Tensor:
        parts = list(zip(*(x.split(PART) for x in given), strict=True))
        shares = [[len(part[0]) / batch * one for one in gradients(fine(*part))] for part in parts]
        return norms([torch.stack(some).sum(0) for some in zip(*shares, strict=True)])

    compiled = machine.compiled(coarse)
    return Program(
        steps(compiled),
        {"eager": steps(coarse)},
        expected,
        3 * forward(of, batch).total,
        "TFLOP/s",
        {"dtype": str(BF16), "model": of.name},
        checked=lambda: norms(gradients(compiled())).to(BF16),
        limits={"peak": machine.peak_flops_per_s / 1e12},
    )


def ask(counts: list[int], classes: int) -> list[Request]:
    """Guided requests of so many steps each, of classes that are drawn evenly."""
    random = Random(0)
    return [Request(random.randrange(classes), edm_grid(n), seed, scale=SCALE) for seed, n in enumerate(counts)]


def draw(
    denoiser: Denoiser, of: DiTConfig, requests: list[Request], slots: int, dtype: torch.dtype, device: str
) -> torch.Tensor:
    """Images (requests, C, S, S) of a new engine, to which all requests are given at the start."""
    shape = (of.channels, of.size, of.size)
    engine = Engine(denoiser, shape, classes=of.classes, null=of.classes, slots=slots, dtype=dtype, device=device)
    numbers = [engine.submit(request) for request in requests]
    images = dict(engine.run())
    return torch.stack([images[number] for number in numbers])


def draw_at_once(
    denoiser: Denoiser, of: DiTConfig, like: Request, count: int, dtype: torch.dtype, device: str
) -> torch.Tensor:
    """Images (count, C, S, S) of a run in one batch: all of one request's class and steps, each of other noise."""
    noise = Noise((count, of.channels, of.size, of.size), like.seed, dtype, device)
    guided = ClassifierFreeGuidance(denoiser, SCALE, of.classes)
    return Sampling(guided, like.grid, noise, torch.full((count,), like.label, device=device)).run()


def drawing(machine: Machine, layers: int, width: int, size: int, slots: int, requests: int, steps: int) -> Program:
    """Guided requests of different numbers of steps beside an ideal batch: as many as fill all slots, step for step.

    Steps are even from a third of the mean to the rest of twice the mean. Counted are images that the network is given,
    two for each guided step of a request.
    """
    fine = make_denoiser(machine, layers, width, size).requires_grad_(False)
    of, coarse, exact = config(layers, width, size), lower(fine), copy.deepcopy(fine).double()
    random = Random(0)
    counts = [random.randint(steps // 3, 2 * steps - steps // 3) for _ in range(requests)]
    asked, ideal = ask(counts, of.classes), Request(0, edm_grid(steps))
    few = asked[:CHECKED]

    def expected() -> torch.Tensor:
        return torch.cat([draw_at_once(exact, of, one, 1, torch.float64, machine.device) for one in few])

    return Program(
        partial(draw, coarse, of, asked, slots, torch.float32, machine.device),
        {"ideal": partial(draw_at_once, coarse, of, ideal, slots, torch.float32, machine.device)},
        expected,
        2 * sum(counts),
        "images/s",
        {"dtype": str(BF16), "model": of.name},
        checked=partial(draw, exact, of, few, 2, torch.float64, machine.device),
        amounts={"ideal": 2 * slots * steps},
    )


ENTRIES = [
    *(
        Entry(
            f"gpu-dit-{make.__name__}",
            f"{what} of DiT-B/2 on 256 latents of 32×32, bf16",
            make,
            (12, 768, 32, 256),
            (2, 64, 8, 3),
            {"peak": PEAK},
            samples=10,
        )
        for make, what in ((denoising, "a call"), (training, "a training step"))
    ),
    Entry(
        "gpu-diffusion-engine",
        "the engine with 256 guided requests of 10 to 50 steps on 64 slots, DiT-B/2 in bf16",
        drawing,
        (12, 768, 32, 64, 256, 30),
        (2, 64, 8, 3, 6, 3),
        {"ideal": IDEAL},
        samples=3,
    ),
]
