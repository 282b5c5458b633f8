"""Drawings of chapter 15: number formats, scales, remedies for an outlier, compensated columns, FP8 training."""

from __future__ import annotations

from markupsafe import Markup

from book.drawings.kit import arrow, box, cells, dashed, drawing, line, panel, text
from mlsys_lab.efficiency.formats import E2M1, E4M3, E5M2, INT8
from mlsys_lab.efficiency.quantization import hadamard
from mlsys_lab.flops.number_formats import FLOAT_FORMATS


def formats() -> Markup:
    """Sign, exponent and mantissa of floating-point formats, and the bits of an integer."""
    floats = {"bf16": FLOAT_FORMATS["bf16"], "fp16": FLOAT_FORMATS["fp16"], "E5M2": E5M2, "E4M3": E4M3, "E2M1": E2M1}
    pieces = []
    for row, (name, format) in enumerate(floats.items()):
        kinds = ["quiet", *["orange"] * format.exponent_bits, *["blue"] * format.mantissa_bits]
        pieces += _bits(name, row, kinds)
    pieces += _bits("int8", len(floats), ["quiet", *["blue"] * (INT8.bits - 1)])
    return drawing(
        "Rows of squares, a square for each bit: bf16 has 8 exponent and 7 mantissa bits, fp16 5 and 10, E5M2 5 and 2, "
        "E4M3 4 and 3, E2M1 2 and 1; int8 has no exponent.",
        panel(340, 172, pieces),
    )


def _bits(name: str, row: int, kinds: list[str]) -> list[str]:
    y = 8 + 27 * row
    return [
        text(8, y + 13, name, size="strong", anchor="start"),
        *cells(62, y, 1, len(kinds), lambda _, bit: kinds[bit], size=15),
    ]


def granularity() -> Markup:
    """One matrix three times: a scale for all of it, for each row, for each group of a row."""
    tones = ("blue", "orange", "green", "violet")
    panels = []
    for title, tone in (
        ("per tensor", lambda _, __: "blue"),
        ("per channel", lambda i, _: tones[i]),
        ("per group of 4", lambda i, j: tones[(i + j // 4 * 2 + j // 4) % 4]),
    ):
        pieces = [*cells(8, 8, 4, 12, tone, size=13, gap=2)]
        panels.append(panel(196, 74, pieces, title=title))
    return drawing(
        "A matrix of 4 rows and 12 columns three times: in one colour; in a colour for each row; and in a colour for "
        "each four neighbours of a row.",
        *panels,
    )


CHANNELS = (10, 7, 12, 9, 56, 10, 6, 12)
"""Magnitudes of a token's channels, one of them an outlier."""
OUTLIER = 4


def outliers() -> Markup:
    """Magnitudes of eight channels and of the weights that they meet, under three remedies."""
    smooth = [*CHANNELS]
    smooth[OUTLIER] = round((CHANNELS[OUTLIER] * 10) ** 0.5)
    weights = [10.0] * len(CHANNELS)
    rotated = (hadamard(8).double().numpy() @ CHANNELS) / 8**0.5
    kept = [*CHANNELS]
    kept[OUTLIER] = 0
    return drawing(
        "Bars of eight channels, activations above and weights below. At first one activation towers over the rest. "
        "With LLM.int8() it is taken out; with SmoothQuant it is a third as tall and its weight taller; rotated, all "
        "channels are of similar size.",
        _channels("activations and weights", CHANNELS, weights),
        _channels("LLM.int8()", kept, weights, apart=True),
        _channels("SmoothQuant", smooth, [w if i != OUTLIER else smooth[OUTLIER] for i, w in enumerate(weights)]),
        _channels("rotation", [abs(float(one)) for one in rotated], weights),
    )


def _channels(title: str, activations: list[float] | tuple[int, ...], weights: list[float], *, apart: bool = False):  # type: ignore[no-untyped-def]
    """Bars upwards for activations, downwards for weights."""
    pieces, floor = [line(6, 80, 158, 80)], 78.0
    for i, (activation, weight) in enumerate(zip(activations, weights, strict=True)):
        x, tone = 10 + 18 * i, "orange" if i == OUTLIER else "blue"
        if activation:
            pieces.append(box(x, floor - activation, 13, activation, tone=tone))
        elif apart:
            pieces += [dashed(x, floor - 56, 13, 56, "orange"), text(x + 7, floor - 61, "16 bits", size="small")]
        pieces.append(box(x, 82, 13, weight, tone="green"))
    return panel(164, 110, pieces, title=title)


def compensation() -> Markup:
    """Columns of a matrix: rounded ones, the one being rounded, and those that take over its error."""
    tones = ["quiet"] * 4 + ["orange"] + ["blue"] * 5
    pieces = [*cells(40, 34, 5, 10, lambda _, j: tones[j], size=20, gap=4)]
    pieces.append(text(84, 20, "rounded", "quiet", size="small"))
    pieces.append(text(230, 20, "full precision", "blue", size="small"))
    pieces += [arrow(146, 164, 40 + 24 * j + 10, 164, "orange", bend=-6 * (j - 4)) for j in (6, 8)]
    pieces.append(text(150, 196, "its error, weighted, is subtracted", "orange", size="small"))
    return drawing(
        "A matrix of ten columns. Four on the left are grey, the fifth is orange, five on the right are blue; arrows "
        "lead from the orange column to the blue ones.",
        panel(320, 204, pieces),
    )


def fp8() -> Markup:
    """The three products of a linear layer, what they read, and what stays in fp32."""
    pieces = [
        box(8, 14, 92, 34, "W in fp32", "orange"),
        box(8, 92, 92, 34, "W in E4M3", "blue"),
        box(124, 14, 92, 34, "x in E4M3", "blue"),
        box(240, 14, 92, 34, "g in E5M2", "blue"),
        arrow(54, 48, 54, 92, "plain"),
        text(62, 75, "scale, round", size="small", anchor="start"),
        box(8, 170, 92, 34, "y = W x", "green"),
        box(124, 170, 92, 34, "Wᵀ g", "green"),
        box(240, 170, 92, 34, "g xᵀ", "green"),
        arrow(40, 126, 40, 170, "blue"),
        arrow(88, 126, 146, 170, "blue"),
        arrow(160, 48, 78, 170, "blue"),
        arrow(186, 48, 262, 170, "blue"),
        arrow(262, 48, 190, 170, "blue"),
        arrow(300, 48, 300, 170, "blue"),
        text(170, 224, "sums in fp32", "green", size="small"),
        arrow(286, 204, 286, 240, "green"),
        box(206, 240, 126, 32, "optimizer, fp32", "orange"),
    ]
    return drawing(
        "Weights in fp32 are rounded to E4M3. The output reads weights and activations in E4M3; the gradient of the "
        "input reads weights and gradients in E5M2; the gradient of the weights reads gradients and activations, and "
        "goes to the optimizer in fp32.",
        panel(340, 280, pieces),
    )


DRAWINGS = {
    "formats": formats,
    "granularity": granularity,
    "outliers": outliers,
    "compensation": compensation,
    "fp8": fp8,
}
