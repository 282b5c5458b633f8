"""Drawings of chapter 08: two terms and a floor, valleys of loss, and budgets as lines over parameters and tokens.

Losses and best splits are those of the refitted law of `scaling.laws`.
"""

from __future__ import annotations

import math

import numpy as np
from markupsafe import Markup

from book.drawings.kit import arrow, cells, curve, drawing, line, panel, text
from mlsys_lab.scaling import BESIROGLU_2024, compute_optimal, training_flops

BUDGETS = (1e20, 1e21, 1e22, 1e23)
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def _power(number: float) -> str:
    """A power of ten, such as 10²²."""
    return "10" + str(round(math.log10(number))).translate(SUPERSCRIPTS)


def terms() -> Markup:
    """The floor and the two terms of the law along one budget, one upon the other."""
    flops, law = 1e22, BESIROGLU_2024
    best = compute_optimal(law, flops)
    sizes = best.n_params * np.geomspace(1 / 40, 40, 41)
    tokens = flops / training_flops(sizes, 1)
    by_tokens = law.E + law.B / tokens**law.beta
    loss = law.loss(sizes, tokens)
    least, most = 1.7, 2.6

    def at(n_params: float, height: float) -> tuple[float, float]:
        x = 10 + 250 * math.log(n_params / sizes[0]) / math.log(sizes[-1] / sizes[0])
        return x, 12 + 170 * (most - height) / (most - least)

    pieces = [curve([at(n, value) for n, value in zip(sizes, by_tokens, strict=True)], "orange")]
    pieces.append(curve([at(n, value) for n, value in zip(sizes, loss, strict=True) if value <= most], "blue"))
    left, right = at(sizes[0], law.E), at(sizes[-1], law.E)
    pieces += [line(*left, *right, "violet"), line(10, 182, 264, 182, "plain")]
    pieces.append(text(266, right[1] + 4, "E", "violet", size="strong", anchor="start"))
    pieces.append(text(266, at(1, by_tokens[-1])[1] + 4, "+ tokens", "orange", size="small", anchor="start"))
    x, y = at(best.n_params, best.loss)
    pieces += [*cells(x - 4, y - 4, 1, 1, lambda *_: "blue", size=8), line(x, y + 5, x, 182)]
    pieces.append(text(24, 32, "+ size", "blue", size="small", anchor="start"))
    pieces.append(text(10, 200, "smaller models", "quiet", size="small", anchor="start"))
    pieces.append(text(264, 200, "larger", "quiet", size="small", anchor="end"))
    return drawing(
        "Three lines over the model's size: a flat floor; above it a line that rises towards larger models, by what "
        "too few tokens cost; above that the loss, which falls and rises again around one lowest point.",
        panel(340, 206, pieces),
    )


def valleys() -> Markup:
    """Loss over parameters at four budgets, and their lowest points."""
    low, high, least, most = 3e7, 3e11, 1.9, 3.1

    def at(n_params: float, loss: float) -> tuple[float, float]:
        x = 40 + 292 * math.log(n_params / low) / math.log(high / low)
        return x, 12 + 190 * (most - loss) / (most - least)

    pieces = [line(40, 202, 336, 202, "plain"), line(40, 8, 40, 202, "plain")]
    for n_params in (1e8, 1e9, 1e10, 1e11):
        x, _ = at(n_params, least)
        pieces += [line(x, 202, x, 207), text(x, 220, _power(n_params), "quiet", size="small")]
    for loss in (2.0, 2.4, 2.8):
        _, y = at(low, loss)
        pieces += [line(36, y, 40, y), text(32, y + 4, f"{loss}", "quiet", size="small", anchor="end")]
    bottoms = []
    for flops, tone in zip(BUDGETS, ("blue", "orange", "green", "violet"), strict=True):
        best = compute_optimal(BESIROGLU_2024, flops)
        sizes = best.n_params * np.geomspace(1 / 60, 60, 61)
        losses = BESIROGLU_2024.loss(sizes, flops / training_flops(sizes, 1))
        inside = [(n, loss) for n, loss in zip(sizes, losses, strict=True) if low <= n <= high and loss <= 3]
        pieces.append(curve([at(*point) for point in inside], tone))
        x, y = at(best.n_params, best.loss)
        bottoms.append((x, y))
        pieces += [*cells(x - 4, y - 4, 1, 1, lambda *_, tone=tone: tone, size=8)]
        x, y = at(*inside[-1])
        pieces.append(text(x, y - 8, _power(flops), tone, size="small", anchor="end"))
    pieces.append(line(*bottoms[0], *bottoms[-1]))
    pieces.append(text(40, 240, "loss over parameters, by FLOPs", "quiet", size="small", anchor="start"))
    return drawing(
        "Four curves of loss over parameters, each with one flat bottom. With ten times the budget the bottom lies "
        "lower and further to the right.",
        panel(340, 246, pieces),
    )


def budgets() -> Markup:
    """Parameters and tokens on logarithmic axes: lines of equal compute, the best split, and three models."""
    low_n, high_n, low_d, high_d = 1e8, 1e12, 1e9, 1e14

    def at(n_params: float, tokens: float) -> tuple[float, float]:
        x = 40 + 290 * math.log(n_params / low_n) / math.log(high_n / low_n)
        return x, 214 - 200 * math.log(tokens / low_d) / math.log(high_d / low_d)

    pieces = [line(40, 214, 336, 214, "plain"), line(40, 8, 40, 214, "plain")]
    for n_params in (1e8, 1e9, 1e10, 1e11):
        x, _ = at(n_params, low_d)
        pieces += [line(x, 214, x, 219), text(x, 232, _power(n_params), "quiet", size="small")]
    for tokens in (1e10, 1e11, 1e12, 1e13):
        _, y = at(low_n, tokens)
        pieces += [line(36, y, 40, y), text(34, y + 4, _power(tokens), "quiet", size="small", anchor="end")]
    for flops in (1e20, 1e22, 1e24):
        left = max(low_n, flops / 6 / high_d)
        right = min(high_n, flops / 6 / low_d)
        ends = at(left, flops / 6 / left), at(right, flops / 6 / right)
        pieces.append(line(*ends[0], *ends[1], "blue"))
        x, y = at(left, flops / 6 / left)
        pieces.append(text(x + 14, y + 2, _power(flops), "blue", size="small", anchor="start"))
    splits = [compute_optimal(BESIROGLU_2024, flops) for flops in (1e19, 1e25)]
    shown = [at(max(one.n_params, low_n), one.tokens) for one in splits]
    pieces.append(arrow(*shown[0], *shown[1], "green"))
    models = (("GPT-3", 175e9, 300e9), ("Gopher", 280e9, 300e9), ("Chinchilla", 70e9, 1.4e12))
    for name, n_params, tokens in models:
        x, y = at(n_params, tokens)
        pieces += cells(x - 4, y - 4, 1, 1, lambda *_: "orange", size=8)
        place = {
            "GPT-3": (x - 8, y + 16, "end"),
            "Gopher": (x + 2, y + 22, "start"),
            "Chinchilla": (x - 8, y - 8, "end"),
        }
        px, py, anchor = place[name]
        pieces.append(text(px, py, name, "orange", size="small", anchor=anchor))
    pieces.append(text(40, 250, "tokens over parameters", "quiet", size="small", anchor="start"))
    return drawing(
        "Tokens over parameters on logarithmic axes. Lines of equal compute fall; an arrow of best splits rises across "
        "them. GPT-3 and Gopher lie below it, Chinchilla near it.",
        panel(340, 256, pieces),
    )


DRAWINGS = {"terms": terms, "valleys": valleys, "budgets": budgets}
