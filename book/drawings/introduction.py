"""Drawings of chapter 01: the bytes of a parameter, what limits a step, reading against multiplying, an exchange.

Times are bounds of an H100 for a model of the chapter's size.
"""

from __future__ import annotations

from markupsafe import Markup

from book.drawings.kit import box, cells, drawing, line, panel, text
from mlsys_lab.flops.memory import RECIPES
from mlsys_lab.flops.roofline import critical_batch
from mlsys_lab.hardware import device

PRINTED = ("mixed16", "mixed18", "mixed20")
"""Recipes whose bytes sources print for the same set-up."""
LEGEND = ("weights, bf16", "gradients", "master weights", "Adam's moments")
LANES = ("compute", "memory", "link")
FEW, MANY = 512, 8192
"""Tokens on each GPU and step: too few for its link, and enough."""


def copies() -> Markup:
    """Bytes of one parameter, a cell each: what a forward pass reads, and what training keeps beside it."""
    kinds = (("weights", "blue"), ("gradients", "orange"), ("master", "green"), ("moments", "violet"))
    rows = (("serving", None), *((f"{RECIPES[name].bytes_per_parameter:g} bytes", RECIPES[name]) for name in PRINTED))
    pieces = []
    for number, (label, recipe) in enumerate(rows):
        y = 4 + 24 * number
        sizes = [2, 0, 0, 0] if recipe is None else [int(getattr(recipe, kind)) for kind, _ in kinds]
        tones = [tone for size, (_, tone) in zip(sizes, kinds, strict=True) for _ in range(size)]
        pieces.append(text(2, y + 11, label, size="small", anchor="start"))
        pieces += cells(72, y, 1, len(tones), lambda _, j, tones=tones: tones[j], size=11)
    for number, (words, tone) in enumerate(zip(LEGEND, (tone for _, tone in kinds), strict=True)):
        x, y = 72 + 126 * (number % 2), 108 + 20 * (number // 2)
        pieces += cells(x, y, 1, 1, lambda *_, tone=tone: tone, size=11)
        pieces.append(text(x + 17, y + 10, words, tone, size="small", anchor="start"))
    return drawing(
        "Four rows of small squares, one for each byte of a parameter. Serving has two. Training has 16, 18 or 20: two "
        "of weights, two to six of gradients, four of a master copy, eight of Adam's moments.",
        panel(340, 146, pieces),
    )


def limits() -> Markup:
    """Three steps of one model as three lanes each, on one clock a step; the longest lane is the step's time."""
    n_params = 8e9
    steps = (  # words, and seconds of compute, memory and link
        ("decode 1 token", _least_s(2 * n_params, 2 * n_params, 0)),
        (f"train, {FEW:,} tokens a GPU", _least_s(6 * n_params * FEW, 6 * n_params, 4 * n_params)),
        (f"train, {MANY:,} tokens a GPU", _least_s(6 * n_params * MANY, 6 * n_params, 4 * n_params)),
    )
    pieces = []
    for number, (words, lanes) in enumerate(steps):
        y, longest = 16 + 94 * number, max(lanes)
        pieces.append(text(2, y, words, size="strong", anchor="start"))
        for place, (lane, seconds, tone) in enumerate(zip(LANES, lanes, ("blue", "violet", "green"), strict=True)):
            top, wide = y + 8 + 21 * place, 190 * seconds / longest
            pieces.append(text(2, top + 12, lane, "quiet", size="small", anchor="start"))
            if seconds:
                pieces.append(box(70, top, max(wide, 1), 15, tone=tone))
                took = f"{1e3 * seconds:.1f} ms" if seconds > 1e-3 else f"{1e6 * seconds:.0f} µs"
                pieces.append(text(78 + wide, top + 12, took, tone, size="small", anchor="start"))
        pieces.append(line(70 + 190, y + 4, 70 + 190, y + 74))
    return drawing(
        "Three steps of one model, each with a bar for compute, memory and link. Decoding one token is as long as its "
        "memory bar; training with few tokens as its link bar; with many tokens as its compute bar.",
        panel(340, 278, pieces),
    )


def _least_s(flops: float, read_bytes: float, sent_bytes: float) -> tuple[float, float, float]:
    """Least seconds of compute, memory and link on an H100 in a node."""
    h100 = device("H100")
    return (
        flops / h100.peak("bf16"),
        read_bytes / h100.memory_bandwidth_bytes_per_s,
        sent_bytes / h100.link("NVLink").per_direction_bytes_per_s,
    )


def wall() -> Markup:
    """Time to read all weights and time to multiply with them, for growing numbers of tokens at once."""
    h100, n_params = device("H100"), 8e9
    read_s = 2 * n_params / h100.memory_bandwidth_bytes_per_s
    balanced = round(critical_batch(h100.ridge_point("bf16")))
    counts = (1, 64, balanced, 2 * balanced)
    longest = 2 * n_params * counts[-1] / h100.peak("bf16")
    pieces = []
    for number, count in enumerate(counts):
        y = 8 + 52 * number
        compute_s = 2 * n_params * count / h100.peak("bf16")
        busy = min(1.0, compute_s / read_s)
        pieces.append(text(2, y + 13, f"{count} token{'s' * (count > 1)}", size="small", anchor="start"))
        pieces.append(box(82, y, max(250 * read_s / longest, 1), 16, tone="violet"))
        pieces.append(box(82, y + 19, max(250 * compute_s / longest, 1), 16, tone="blue"))
        beside = 90 + 250 * read_s / longest
        if busy < 1:
            pieces.append(text(beside, y + 30, f"busy {busy:.1%}", "blue", size="small", anchor="start"))
    x = 82 + 250 * read_s / longest
    pieces.append(text(x + 8, 21, "read weights", "violet", size="small", anchor="start"))
    pieces.append(text(x + 8, 177, "multiply", "blue", size="small", anchor="start"))
    pieces += [line(x, 4, x, 216), text(x, 232, f"{1e3 * read_s:.1f} ms", "violet", size="small")]
    return drawing(
        "Four pairs of bars, for 1, 64 and more tokens at once. Reading the weights takes as long each time; the "
        "arithmetic is a hair's breadth for one token and as long as reading for about three hundred.",
        panel(340, 238, pieces),
    )


def exchange() -> Markup:
    """A backward pass and the exchange of its gradients, with few, enough and many tokens on each GPU."""
    h100, n_params = device("H100"), 8e9
    send_s = 4 * n_params / h100.link("NVLink").per_direction_bytes_per_s
    critical = h100.peak("bf16") / h100.link("NVLink").per_direction_bytes_per_s
    scale = 250 / (3 * send_s)
    pieces = []
    for number, count in enumerate((round(critical / 4), round(critical), round(3 * critical))):
        y = 8 + 58 * number
        compute_s = 4 * n_params * count / h100.peak("bf16")
        pieces.append(text(2, y + 13, f"{count:,}", size="small", anchor="start"))
        pieces.append(text(2, y + 30, "tokens", "quiet", size="small", anchor="start"))
        pieces.append(box(82, y, scale * compute_s, 16, tone="blue"))
        pieces.append(box(82, y + 19, scale * send_s, 16, tone="violet"))
        if compute_s < 0.99 * send_s:
            pieces.append(line(82 + scale * compute_s, y + 8, 82 + scale * send_s, y + 8, "orange"))
            words = "waits for the wires"
            pieces.append(text(88 + scale * send_s, y + 13, words, "orange", size="small", anchor="start"))
    pieces.append(text(88 + scale * send_s, 37, "exchange", "violet", size="small", anchor="start"))
    pieces.append(text(88 + scale * send_s, 79, "backward pass", "blue", size="small", anchor="start"))
    return drawing(
        "Three pairs of bars for growing numbers of tokens on each GPU. The exchange takes as long each time; the "
        "backward pass is shorter with few tokens, as long at about two thousand, and longer beyond.",
        panel(340, 168, pieces),
    )


DRAWINGS = {"copies": copies, "wall": wall, "limits": limits, "exchange": exchange}
