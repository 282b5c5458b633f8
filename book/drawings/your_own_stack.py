"""Drawings of chapter 18: the layers, one file three ways, a training step, blocks of a sequence, a waterfall.

Numbers of the waterfall are those of the record of `book/measure_stack.py`; shards are those of lab 07's chunks.
"""

from __future__ import annotations

from markupsafe import Markup

from book.drawings.kit import CHUNKS, arrow, box, cells, drawing, line, panel, text
from book.project import BOOK
from mlsys_lab.benchmark import load

RECORD = BOOK / "data" / "measurements" / "capstone-step.json"
RANKS = 4


def layers() -> Markup:
    """Lab 16 on the layers that it connects, in three columns, and what milestones and swaps use besides."""
    columns = (
        ("train", "orange", ("01 engine", "08 optimizer", "07 collectives")),
        ("predict", "violet", ("05 arithmetic", "07 link cost", "10 step cost")),
        ("serve", "green", ("11 scheduler", "10 KV cache", "10 attention")),
    )
    pieces = [box(4, 4, 332, 36, "16 decoder, training, sheet, cache", "blue")]
    for i, (name, tone, labels) in enumerate(columns):
        x = 4 + 114 * i
        pieces += [arrow(x + 52, 44, x + 52, 66, tone), text(x + 52, 84, name, tone, size="strong")]
        pieces += [box(x, 92 + 36 * row, 104, 30, label, tone) for row, label in enumerate(labels)]
    pieces.append(text(170, 224, "milestones and swaps", "quiet", size="small"))
    for i, label in enumerate(("04 kernels", "06 scaling laws", "09 model parallel", "12 diffusion")):
        pieces.append(box(4 + 170 * (i % 2), 232 + 36 * (i // 2), 162, 30, label, "quiet"))
    return drawing(
        "Lab 16 on top, arrows to three columns. Train: engine of lab 1, optimizer of lab 8, collectives of lab 7. "
        "Predict: arithmetic of lab 5, link cost of lab 7, step cost of lab 10. Serve: scheduler of lab 11, KV cache "
        "and attention of lab 10. Below, kernels, scaling laws, model parallelism and diffusion.",
        panel(340, 304, pieces),
    )


def three_ways() -> Markup:
    """One file of weights, three programs that compute logits from it, and one comparison."""
    pieces = [box(90, 4, 160, 32, "model.safetensors", "blue")]
    ways = (
        ("decoder on", "your engine", "orange"),
        ("Transformer", "in PyTorch", "plain"),
        ("Transformer,", "your cache", "green"),
    )
    for i, (first, second, tone) in enumerate(ways):
        x = 57 + 113 * i
        pieces += [arrow(170 + 40 * (i - 1), 38, x, 66, "quiet"), box(x - 52, 68, 104, 48, tone=tone)]
        pieces += [text(x, 88, first, size="small"), text(x, 106, second, size="small"), arrow(x, 118, x, 140, tone)]
        pieces.append(box(x - 52, 142, 104, 28, "logits (T, V)", tone))
    pieces += [arrow(130, 190, 112, 172, "quiet"), arrow(210, 190, 228, 172, "quiet")]
    pieces.append(text(170, 206, "largest difference below 1e-10", size="strong"))
    return drawing(
        "One safetensors file at the top leads to three programs: the decoder on your engine, the Transformer in "
        "PyTorch, and the Transformer through your cache. Each gives logits; the largest difference is below 1e-10.",
        panel(340, 214, pieces),
    )


STEP = (
    ("forward", 50, "orange"),
    ("backward", 86, "orange"),
    ("reduce-scatter", 44, "green"),
    ("update", 34, "violet"),
    ("all-gather", 44, "green"),
)
"""Phases of a training step, with widths that are not to scale."""


def step() -> Markup:
    """A training step on four ranks: what each phase runs, and which shard a rank holds when."""
    pieces, x = [], 54.0
    for number, (name, width, tone) in enumerate(STEP, start=1):
        pieces.append(text(x + width / 2, 16, number, tone, size="strong"))
        for r in range(RANKS):
            pieces.append(box(x, 24 + 34 * r, width - 3, 28, tone=CHUNKS[r] if name == "update" else tone))
        x += width + 3
    pieces += [text(0, 43 + 34 * r, f"rank {r}", size="small", anchor="start") for r in range(RANKS)]
    words = (
        "1, 2 forward, backward: labs 16 and 01",
        "3 reduce-scatter of gradients: lab 07",
        "4 AdamW on the rank's shard: lab 08",
        "5 all-gather of weights: lab 07",
    )
    tones = ("orange", "green", "violet", "green")
    pieces += [
        text(6, 182 + 20 * i, said, tone, size="small", anchor="start")
        for i, (said, tone) in enumerate(zip(words, tones, strict=True))
    ]
    return drawing(
        "Four ranks as rows, five phases in time: forward and backward on each rank's own sequences, a reduce-scatter, "
        "an update in which each rank has another shard, and an all-gather.",
        panel(340, 250, pieces),
    )


BLOCK_SIZE, NUM_BLOCKS, TABLE, TOKENS = 4, 5, (3, 1), 6


def blocks() -> Markup:
    """A sequence of six tokens, its block table, and the slots of the pool where its keys and values are."""
    pieces = [text(4, 22, "tokens", size="small", anchor="start")]
    pieces += cells(86, 6, 1, TOKENS, lambda _, i: "blue" if i < BLOCK_SIZE else "orange", size=22, gap=3)
    pieces += [text(97 + 25 * i, 22, i, size="small") for i in range(TOKENS)]
    pieces.append(text(4, 76, "block table", size="small", anchor="start"))
    for middle, block, tone in zip((134, 209), TABLE, ("blue", "orange"), strict=True):
        pieces += [arrow(middle, 34, middle, 56, tone), box(middle - 22, 58, 44, 28, block, tone)]
        pieces.append(arrow(middle, 88, 37 + 66 * block, 116, tone))
    held = {block: min(BLOCK_SIZE, TOKENS - BLOCK_SIZE * i) for i, block in enumerate(TABLE)}
    for block in range(NUM_BLOCKS):
        x, tone = 8 + 66 * block, {TABLE[0]: "blue", TABLE[1]: "orange"}.get(block, "quiet")
        pieces += cells(
            x, 120, 1, BLOCK_SIZE, lambda _, j, b=block, t=tone: t if j < held.get(b, 0) else "plain", size=13, gap=2
        )
        pieces.append(text(x + 29, 154, f"block {block}", "quiet", size="small"))
    slot = TABLE[1] * BLOCK_SIZE + 5 % BLOCK_SIZE
    pieces.append(
        text(170, 186, f"token 5: block {TABLE[1]}, slot {TABLE[1]} × 4 + 1 = {slot}", "orange", size="small")
    )
    return drawing(
        "Six tokens of a sequence. The block table maps the first four to block 3, the last two to block 1 of a pool "
        "of five blocks with four slots each; token 5 is in slot 5.",
        panel(340, 196, pieces),
    )


def waterfall() -> Markup:
    """A training step from its bound to the clock, by the record."""
    record = load(RECORD)
    predicted, measured_s = record.parameters["predicted"], record.p50
    assert record.bound is not None
    computed_s = predicted["training_step_s"] - predicted["communication_s"]
    bars = (
        ("bound: products at peak", 0.0, record.bound.value, "blue"),
        ("products at their own rates", record.bound.value, predicted["products_s"], "orange"),
        ("elementwise work", predicted["products_s"], computed_s, "orange"),
        ("communication", computed_s, predicted["training_step_s"], "green"),
        ("not predicted", predicted["training_step_s"], measured_s, "violet"),
        ("measured", 0.0, measured_s, "quiet"),
    )
    scale, pieces = 250 / max(measured_s, predicted["training_step_s"]), []
    for row, (name, start_s, end_s, tone) in enumerate(bars):
        y, left = 4 + 40 * row, 6 + scale * min(start_s, end_s)
        width = max(2.0, scale * abs(end_s - start_s))
        pieces += [text(6, y + 12, name, tone, size="small", anchor="start"), box(left, y + 16, width, 18, tone=tone)]
        pieces.append(text(left + width + 5, y + 30, f"{1e3 * (end_s - start_s):.0f} ms", size="small", anchor="start"))
    pieces.append(line(2, 4, 2, 4 + 40 * len(bars)))
    return drawing(
        f"Bars from the bound of {1e3 * record.bound.value:.0f} ms to a measured step of {1e3 * measured_s:.0f} ms: "
        "products at their own rates, elementwise work, communication, and what was not predicted.",
        panel(340, 8 + 40 * len(bars), pieces),
    )


DRAWINGS = {"layers": layers, "three_ways": three_ways, "step": step, "blocks": blocks, "waterfall": waterfall}
