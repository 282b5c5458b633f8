"""Drawings of chapter 14: noise levels, prediction types, steps, guidance, networks, calls, distillation, a pipeline.

Points, paths and times are computed by the package: mixtures, samplers, closed forms and the table of devices.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from markupsafe import Markup

from book.drawings.kit import Panel, arrow, box, drawing, line, panel, text
from mlsys_lab.diffusion.cost import autoregressive_cost
from mlsys_lab.diffusion.mixtures import Mixture
from mlsys_lab.diffusion.process import slope
from mlsys_lab.diffusion.samplers import DDIM, Heun, Sampler, State
from mlsys_lab.diffusion.sampling import run_step
from mlsys_lab.flops import dit, unet
from mlsys_lab.flops.roofline import bound_on
from mlsys_lab.hardware import device
from mlsys_lab.widgets.denoising import denoising_data

CLASSES = ("blue", "orange", "green")
TWO_HEAPS = Mixture(torch.tensor([[-1.0], [1.0]]).double(), torch.tensor([0.5, 0.5]).double(), 0.5)
"""Numbers around -1 and around 1."""


def levels() -> Markup:
    """One set of points under more and more noise, and the two ways along the line of levels."""
    data, shown = denoising_data(), 12
    means, noises = np.array(data["means"]), [np.array(noise) for noise in data["noise"]]
    classes = np.array(data["classes"])
    clean = means[classes] + data["deviation"] * noises[1]
    pieces = [arrow(6, 26, 334, 26, "orange"), text(170, 18, "forward: any noise level at once", "orange")]
    for at, sigma in enumerate((0.0, 0.5, 2.0, 20.0)):
        left, size = 6 + 84 * at, 76
        pieces += [box(left, 40, size, size, tone="quiet"), text(left + size / 2, 134, f"σ = {sigma:g}", size="small")]
        seen = (clean + sigma * noises[0]) / np.hypot(1, sigma)
        for k, tone in enumerate(CLASSES):
            places = np.clip(seen[classes == k][:shown] * size / 6.4, -size / 2 + 4, size / 2 - 4)
            pieces += [box(left + size / 2 + x - 2, 40 + size / 2 - y - 2, 4, 4, tone=tone) for x, y in places]
    pieces += [arrow(334, 148, 6, 148, "blue"), text(170, 168, "sampling: one prediction per step", "blue")]
    return drawing(
        "Points of three classes at four levels of noise, from none to so much that the classes cannot be told apart. "
        "An arrow to the right adds noise in one step; an arrow to the left removes it in many steps.",
        panel(340, 176, pieces),
    )


def targets() -> Markup:
    """Four prediction types, and how each becomes the denoised image."""
    answers = (
        ("ε", "the noise", "x − σ·ε", ""),
        ("x₀", "the image", "x₀", ""),
        ("v", "a mixture", "(x − σ r·v)", "÷ r²"),
        ("u", "the flow", "(x − σ·u)", "÷ (1 + σ)"),
    )
    pieces = [box(70, 4, 200, 26, "x and σ, scaled to size 1"), arrow(170, 30, 170, 46)]
    pieces.append(box(30, 46, 280, 30, "one network", "violet"))
    for at, (name, words, first, second) in enumerate(answers):
        left, tone = 4 + 84 * at, ("blue", "green", "orange", "violet")[at]
        middle = left + 40
        pieces += [arrow(middle, 76, middle, 92, "quiet"), box(left, 92, 80, 44, tone=tone)]
        pieces += [text(middle, 110, name, tone, size="strong"), text(middle, 128, words, size="small")]
        pieces += [text(middle, 158, first, size="small"), text(middle, 175, second, size="small")]
        pieces.append(arrow(middle, 182, middle, 200, "quiet"))
    pieces.append(box(4, 200, 332, 30, "D(x; σ), the denoised image", "green"))
    return drawing(
        "A noisy image and its level go into one network, which predicts the noise, the image, v or the flow. "
        "A formula turns each of the four predictions into the same denoised image.",
        panel(340, 236, pieces),
    )


def solvers() -> Markup:
    """One long step of Euler's and of Heun's method beside the path that they should follow."""
    return drawing(
        "The same curved path twice, from a high level of noise to a low one. Euler follows the slope of the start and "
        "ends off the path. Heun averages the slopes at both ends and ends much nearer.",
        _step_along(DDIM(), "Euler, DDIM: one evaluation"),
        _step_along(Heun(), "Heun: two evaluations"),
    )


def guidance() -> Markup:
    """Two predictions for one noisy point, and the point beyond them."""
    data, scale, sigma = denoising_data(), 2.0, 1.0
    means = torch.tensor(data["means"]).double()
    mixture = Mixture(means, torch.full((3,), 1 / 3).double(), data["deviation"])
    x, level = torch.tensor([[0.9, 0.75]]).double(), torch.tensor([sigma]).double()
    (any_class,), (own,) = mixture(x, level), mixture(x, level, torch.tensor([2]))
    guided = any_class + scale * (own - any_class)

    def at(point: torch.Tensor) -> tuple[float, float]:
        return 130 + 66 * float(point[0]), 106 - 66 * float(point[1])

    reach = 66 * data["deviation"]
    pieces = []
    for mean, tone in zip(means, CLASSES, strict=True):
        across, down = at(mean)
        pieces.append(box(across - reach, down - reach, 2 * reach, 2 * reach, tone=tone))
    start, u, c, end = at(x[0]), at(any_class), at(own), at(guided)
    pieces += [arrow(*start, *u, "quiet"), arrow(*start, *c, "green"), arrow(*u, *end, "violet")]
    pieces += [box(px - 3, py - 3, 6, 6, tone="plain") for px, py in (start, u, c, end)]
    pieces += [
        text(start[0] + 8, start[1] - 6, "x, noisy", anchor="start"),
        text(u[0] - 8, u[1] + 4, "without class", size="small", anchor="end"),
        text(at(means[2])[0] + reach + 6, c[1] + 4, "with class C", "green", size="small", anchor="start"),
        text(end[0] + 10, end[1] + 4, f"at s = {scale:g}", "violet", size="small", anchor="start"),
    ]
    return drawing(
        "A noisy point among three classes. The prediction without a class lies between all three, the one with class "
        "C near that class. Guidance goes from the first through the second to twice the distance.",
        panel(340, 216, pieces),
    )


def transformer() -> Markup:
    """A pass of DiT-XL/2 with its shapes."""
    config = dit.preset("XL/2")
    size, T, D = config.size, config.tokens, f"{config.d_model:,}"
    side = config.patch**2
    flow = [
        (4, 30, f"latent: {config.channels} × {size} × {size}", "plain"),
        (50, 30, f"patches: {T} × {side * config.channels}", "plain"),
        (96, 30, f"tokens: {T} × {D}", "blue"),
        (150, 34, "scale · attention · gate", "orange"),
        (192, 34, "scale · MLP · gate", "orange"),
        (248, 30, f"patches: {T} × {side * config.out_channels}", "plain"),
        (294, 30, f"output: {config.out_channels} × {size} × {size}", "plain"),
    ]
    pieces = [box(2, 140, 206, 96, tone="quiet")]
    pieces += [box(8, top, 194, height, words, tone) for top, height, words, tone in flow]
    pieces += [arrow(105, a[0] + a[1], 105, b[0]) for a, b in pairwise(flow)]
    pieces += [
        box(226, 50, 110, 30, "σ and class"),
        arrow(281, 80, 281, 96),
        box(226, 96, 110, 30, f"1 × {D}", "green"),
    ]
    pieces += [arrow(281, 126, 281, 150), box(226, 150, 110, 76, tone="green")]
    pieces += [text(281, 182, "six vectors"), text(281, 202, f"6 × {D}", size="small")]
    pieces += [arrow(226, 167, 204, 167, "green"), arrow(226, 209, 204, 209, "green")]
    pieces.append(text(218, 250, f"{config.n_layers} blocks", "orange", size="small", anchor="start"))
    return drawing(
        f"A latent is cut into {T} patches, which become tokens, go through {config.n_layers} blocks of attention and "
        "MLP, and are put together again. The level and the class become one vector, and from it six in each block, "
        "which shift, scale and gate all tokens.",
        panel(340, 330, pieces),
    )


def u_shape() -> Markup:
    """Sizes and widths of ADM, going down and up again."""
    down = [block for block in unet.plan(unet.ADM).down if block.resample == "none"]
    shapes = list(dict.fromkeys((block.size, block.out) for block in down))
    pieces = []
    for level, (size, width) in enumerate(shapes):
        left, top = 4 + 12 * level, 24 + 36 * level
        words, tone = f"{size}² × {width}", "orange" if size in unet.ADM.attention_sizes else "blue"
        pieces += [box(left, top, 90, 26, words, tone), box(246 - 12 * level, top, 90, 26, words, tone)]
        pieces.append(arrow(left + 92, top + 13, 244 - 12 * level, top + 13, "quiet"))
        if level:
            right = 320 - 12 * level
            pieces += [arrow(left + 20, top - 10, left + 20, top), arrow(right, top, right, top - 10)]
    pieces += [text(170, 30, "skips", "quiet", size="small"), text(49, 16, "down"), text(291, 16, "up")]
    return drawing(
        "The shape of a U: on the left an image of 256 by 256 pixels is halved five times, to 8 by 8, while channels "
        "grow from 256 to 1024; on the right it is doubled again. At each size an arrow is a skip connection.",
        panel(340, 24 + 36 * len(shapes), pieces),
    )


def passes() -> Markup:
    """A step of diffusion and one of decoding: what is multiplied, and both in time."""
    h100, config = device("H100"), dit.preset("XL/2")
    weights = 2.0 * dit.parameters(config)
    steps = 50
    denoise_s = bound_on(h100, "bf16", dit.forward(config, batch=2).total, weights).time_s
    writing = autoregressive_cost(dit.parameters(config), config.tokens)
    decode_s = bound_on(h100, "bf16", writing.flops, writing.weight_bytes).time_s / config.tokens
    shapes = []
    for title, rows, words in (
        (f"denoise: {steps} times", 84, f"2 × {config.tokens} rows"),
        (f"decode: {config.tokens} times", 12, "1 row"),
    ):
        top = 60 - rows / 2
        pieces = [box(8, top, 30, rows, tone="blue"), text(2, 118, words, "blue", size="small", anchor="start")]
        pieces += [text(50, 65, "·"), box(62, 30, 60, 60, "weights"), text(134, 65, "=")]
        pieces.append(box(146, top, 16, rows, tone="green"))
        shapes.append(panel(170, 124, pieces, title=title))
    longest, rows_in_time = config.tokens * decode_s, []
    for y, words, count, each, tone in (
        (22, "50 steps, guided", steps, denoise_s, "blue"),
        (74, f"{config.tokens} tokens", config.tokens, decode_s, "orange"),
    ):
        rows_in_time.append(text(4, y - 6, f"{words}: {1e3 * count * each:.0f} ms", tone, size="small", anchor="start"))
        rows_in_time.append(box(4, y, 330 * count * each / longest, 22, tone=tone))
    return drawing(
        "Denoising multiplies the weights with the rows of a whole image, twice for guidance, fifty times. Decoding "
        "multiplies them with one row, once for each of 256 tokens. In time, to scale, the 256 steps take four times "
        "as long as the fifty.",
        *shapes,
        panel(340, 102, rows_in_time, title="least time of one image, H100"),
    )


def calls() -> Markup:
    """Requests that start at different times and are at different noise levels share calls of the network."""
    requests = (("A", 0, 6, "blue"), ("B", 1, 4, "orange"), ("C", 3, 5, "green"))
    pieces = [text(200, 14, "calls of the network", "quiet", size="small")]
    pieces += [box(30 + 38 * call, 22, 36, 112, tone="quiet") for call in range(8)]
    for row, (name, first, steps, tone) in enumerate(requests):
        y = 28 + 35 * row
        pieces.append(text(12, y + 20, name, tone, size="strong"))
        pieces += [box(33 + 38 * (first + i), y, 30, 30, f"σ{'₀₁₂₃₄₅'[i]}", tone) for i in range(steps)]
    return drawing(
        "Eight calls of the network as columns. Request A takes part in calls one to six, B in two to five, C in four "
        "to eight, each with its own level of noise. A call serves one to three of them.",
        panel(340, 140, pieces),
    )


def halving() -> Markup:
    """Runs of eight, four, two and one steps: each step of a student spans two of its teacher's."""
    left, apart, pieces = 40, 34, []
    for row, steps in enumerate((8, 4, 2, 1)):
        y, span = 40 + 52 * row, 8 // steps
        pieces.append(text(6, y + 5, steps, size="strong", anchor="start"))
        for start in range(0, 8, span):
            here, there = left + apart * start, left + apart * (start + span)
            pieces.append(arrow(here + 2, y, there - 2, y, "blue" if row else "plain", bend=6 + 3 * span))
        pieces += [box(left + apart * i - 3, y - 3, 6, 6, tone="plain") for i in range(0, 9, span)]
    pieces += [
        text(left, 14, "noise", "orange", size="small"),
        text(left + 8 * apart, 14, "image", "green", size="small"),
    ]
    return drawing(
        "Four rows of arrows from noise to an image: eight steps of the first teacher, then four, two and one. Every "
        "arrow begins and ends where a pair of arrows in the row above does.",
        panel(340, 212, pieces, title="steps per image"),
    )


def pipeline() -> Markup:
    """What a text-to-image request runs, how often, and the shapes between, for FLUX.1-dev."""
    once, steps, middle = "green", "orange", 100
    flow = [
        (4, "prompt: 512 tokens", "plain", "", ""),
        (54, "text encoder", once, "once", "T5-XXL, CLIP"),
        (120, "text: 512 × 4,096", "plain", "", ""),
        (176, "transformer", steps, "28 steps", "4,608 tokens"),
        (242, "latent: 16 × 128 × 128", "plain", "", ""),
        (292, "VAE decoder", once, "once", "full resolution"),
        (342, "image: 3 × 1,024 × 1,024", "plain", "", ""),
    ]
    pieces = []
    for top, words, tone, times, note in flow:
        pieces.append(box(8, top, 184, 30, words, tone))
        if times:
            pieces.append(text(206 if tone == once else 236, top + 14, times, tone, size="strong", anchor="start"))
            pieces.append(text(206 if tone == once else 236, top + 31, note, size="small", anchor="start"))
    pieces += [arrow(middle, a[0] + 30, middle, b[0]) for a, b in pairwise(flow)]
    pieces += [line(192, 257, 228, 257, steps), line(228, 257, 228, 184, steps), arrow(228, 184, 192, 184, steps)]
    return drawing(
        "From top to bottom: a prompt of 512 tokens goes through the text encoder once. The transformer takes the text "
        "and a noisy latent, and an arrow leads from the latent back into it, 28 times. The VAE decoder turns the last "
        "latent into an image of 1,024 by 1,024 pixels, once.",
        panel(340, 376, pieces),
    )


def _step_along(sampler: Sampler, title: str) -> Panel:
    """A step of `sampler` from level 1.2 to 0.4, and the path of the ODE beside it, for data around -1 and 1."""
    high, low, first = 1.2, 0.4, 0.8
    grid = np.linspace(high, low, 61)

    def at(sigma: float, x: float) -> tuple[float, float]:
        return 24 + 220 * (high - sigma) / (high - low), 64 - 280 * (x - 0.75)

    def stepped(way: Sampler, x: float, sigma: float, sigma_next: float) -> float:
        state = State.begin(torch.tensor([[x]]).double())
        return float(run_step(way.advance(state, sigma, sigma_next, lambda: state.x), TWO_HEAPS).x)

    def follow(x: float, sigma: float, sigma_next: float) -> float:
        point = torch.tensor([[x]]).double()
        denoised = TWO_HEAPS(point, torch.tensor([sigma]).double())
        return x + (sigma_next - sigma) * float(slope(denoised, point, sigma))

    path = [first]
    for sigma, sigma_next in pairwise(grid):
        path.append(stepped(Heun(), path[-1], float(sigma), float(sigma_next)))
    curve = [line(*a, *b, "green") for a, b in pairwise([at(s, x) for s, x in zip(grid, path, strict=True)])]
    start, end = at(high, first), at(low, stepped(sampler, first, high, low))
    pieces = [*curve, line(24, 150, 256, 150)]
    if isinstance(sampler, Heun):
        ahead = follow(first, high, low)
        reached = at(low, ahead)
        pieces.append(line(*start, *reached))
        before = at(low + 0.16, follow(ahead, low, low + 0.16))
        pieces.append(line(*before, *reached))
    pieces += [arrow(*start, *end, "blue"), box(start[0] - 3, start[1] - 3, 6, 6, tone="plain")]
    pieces += [box(end[0] - 3, end[1] - 3, 6, 6, tone="blue"), text(start[0], start[1] - 12, "x", size="small")]
    pieces += [text(24, 168, f"σ = {high:g}", "quiet", size="small", anchor="start")]
    pieces += [text(256, 168, f"{low:g}", "quiet", size="small")]
    return panel(270, 174, pieces, title=title)


DRAWINGS = {
    "levels": levels,
    "targets": targets,
    "solvers": solvers,
    "guidance": guidance,
    "u_shape": u_shape,
    "transformer": transformer,
    "passes": passes,
    "calls": calls,
    "halving": halving,
    "pipeline": pipeline,
}
