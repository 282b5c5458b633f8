"""Drawings of chapter 08: a law's terms, valleys, runs under three floors, budgets, and the tables of three approaches.

Losses and best splits are those of the refitted law of `scaling.laws`, runs and tables those of `scaling.published`.
"""

from __future__ import annotations

import numpy as np
from markupsafe import Markup

from book.drawings.axes import Axes, Scale, power_of_ten
from book.drawings.kit import arrow, cells, curve, drawing, line, panel, text
from mlsys_lab.scaling import (
    BESIROGLU_2024,
    CEREBRAS_FLOOR,
    CEREBRAS_GPT,
    HOFFMANN_TABLES,
    KAPLAN_FRONTIER,
    PF_DAY,
    PowerLaw,
    compute_optimal,
    training_flops,
)

BUDGETS = (1e20, 1e21, 1e22, 1e23)


def terms() -> Markup:
    """The floor and the two terms of the law along one budget, one upon the other."""
    flops, law = 1e22, BESIROGLU_2024
    best = compute_optimal(law, flops)
    sizes = best.n_params * np.geomspace(1 / 40, 40, 41)
    tokens = flops / training_flops(sizes, 1)
    by_tokens = law.E + law.B / tokens**law.beta
    loss = law.loss(sizes, tokens)
    least, most = 1.7, 2.6

    at = Axes(Scale(sizes[0], sizes[-1], 10, 260, log=True), Scale(least, most, 182, 12)).at
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

    axes = Axes(Scale(low, high, 40, 332, log=True), Scale(least, most, 202, 12))
    at, pieces = (
        axes.at,
        axes.frame((1e8, 1e9, 1e10, 1e11), (2.0, 2.4, 2.8), label_x="parameters", label_y="loss, by FLOPs"),
    )
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
        pieces.append(text(x, y - 8, power_of_ten(flops), tone, size="small", anchor="end"))
    pieces.append(line(*bottoms[0], *bottoms[-1]))
    return drawing(
        "Four curves of loss over parameters, each with one flat bottom. With ten times the budget the bottom lies "
        "lower and further to the right.",
        panel(340, 246, pieces),
    )


def budgets() -> Markup:
    """Parameters and tokens on logarithmic axes: lines of equal compute, the best split, and three models."""
    low_n, high_n, low_d, high_d = 1e8, 1e12, 1e9, 1e14
    axes = Axes(Scale(low_n, high_n, 40, 330, log=True), Scale(low_d, high_d, 214, 14, log=True))
    at, pieces = (
        axes.at,
        axes.frame(
            (1e8, 1e9, 1e10, 1e11),
            (1e10, 1e11, 1e12, 1e13),
            label_x="parameters",
            label_y="tokens",
            name_y=power_of_ten,
        ),
    )
    for flops in (1e20, 1e22, 1e24):
        left = max(low_n, flops / 6 / high_d)
        right = min(high_n, flops / 6 / low_d)
        ends = at(left, flops / 6 / left), at(right, flops / 6 / right)
        pieces.append(line(*ends[0], *ends[1], "blue"))
        x, y = at(left, flops / 6 / left)
        pieces.append(text(x + 14, y + 2, power_of_ten(flops), "blue", size="small", anchor="start"))
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
    return drawing(
        "Tokens over parameters on logarithmic axes. Lines of equal compute fall; an arrow of best splits rises across "
        "them. GPT-3 and Gopher lie below it, Chinchilla near it.",
        panel(340, 256, pieces),
    )


def floors() -> Markup:
    """Seven published runs, and power laws above three floors through the first six, a thousand times further on."""
    high = 1e26
    axes = Axes(Scale(1e18, high, 34, 270, log=True), Scale(0.8, 2.7, 208, 12))
    at, pieces = axes.at, axes.frame((1e19, 1e21, 1e23, 1e25), (1.0, 1.5, 2.0, 2.5), label_x="FLOPs", label_y="loss")
    grid = np.geomspace(CEREBRAS_GPT.flops[0], high, 41)
    for floor, tone in ((0.0, "violet"), (CEREBRAS_FLOOR, "blue"), (1.0, "orange")):
        fitted = PowerLaw.fit(CEREBRAS_GPT.flops[:-1], CEREBRAS_GPT.loss[:-1] - floor)
        way = [at(flops, floor + float(fitted(flops))) for flops in grid]
        pieces.append(curve(way, tone))
        pieces.append(
            text(274, way[-1][1] + (12 if floor == 0 else 4), f"E = {floor:.2g}", tone, size="small", anchor="start")
        )
    for number, (flops, loss) in enumerate(zip(CEREBRAS_GPT.flops, CEREBRAS_GPT.loss, strict=True)):
        x, y = at(flops, loss)
        tone = "green" if number == len(CEREBRAS_GPT) - 1 else "plain"
        pieces += cells(x - 4, y - 4, 1, 1, lambda *_, tone=tone: tone, size=8)
    x, y = at(CEREBRAS_GPT.flops[-1], CEREBRAS_GPT.loss[-1])
    pieces.append(text(x - 4, y + 22, "held out", "green", size="small", anchor="end"))
    return drawing(
        "Loss over FLOPs: seven runs from 10¹⁸ to 10²² on three curves that lie upon each other there. Further right "
        "the curves part, the one with the highest floor above the others.",
        panel(340, 252, pieces),
    )


def approaches() -> Markup:
    """Best parameters over FLOPs as three tables of one paper print them, with power laws through two, and Kaplan's."""
    low_c = 1e19
    axes = Axes(Scale(low_c, 2e29, 40, 332, log=True), Scale(2e8, 3e13, 214, 10, log=True))
    up = (1e9, 1e10, 1e11, 1e12, 1e13)
    at, pieces = (
        axes.at,
        axes.frame((1e20, 1e22, 1e24, 1e26, 1e28), up, label_x="FLOPs", label_y="best parameters", name_y=power_of_ten),
    )
    reach = KAPLAN_FRONTIER.params.inverse(2e13) * PF_DAY
    ends = [(flops, float(KAPLAN_FRONTIER.params(flops / PF_DAY))) for flops in (low_c, float(reach))]
    pieces.append(line(*at(*ends[0]), *at(*ends[1]), "violet"))
    x, y = at(1e24, float(KAPLAN_FRONTIER.params(1e24 / PF_DAY)))
    pieces.append(text(x - 10, y, "Kaplan", "violet", size="small", anchor="end"))
    for (name, best), tone in zip(HOFFMANN_TABLES.items(), ("blue", "green", "orange"), strict=True):
        fitted = best.frontier().params
        ends = [(flops, float(fitted(flops))) for flops in (best.flops[0], best.flops[-1])]
        pieces.append(line(*at(*ends[0]), *at(*ends[1]), tone))
        for flops, n_params in zip(best.flops, best.n_params, strict=True):
            x, y = at(flops, n_params)
            pieces += cells(x - 3, y - 3, 1, 1, lambda *_, tone=tone: tone, size=6)
        number = int(name.split()[-1])
        pieces.append(text(232, 146 + 18 * number, name, tone, size="small", anchor="start"))
    third = HOFFMANN_TABLES["approach 3"]
    furthest = int(np.abs(np.log(third.flops / training_flops(third.n_params, third.tokens))).argmax())
    x, y = at(third.flops[furthest], third.n_params[furthest])
    pieces += [line(x - 48, y, x - 5, y), text(x - 52, y + 4, "misprint", "orange", size="small", anchor="end")]
    return drawing(
        "Best parameters over FLOPs on logarithmic axes. The points of approaches 1 and 2 lie on one line; those of "
        "approach 3 on a flatter one, but for one point to its left; Kaplan's line is steeper than all.",
        panel(340, 256, pieces),
    )


DRAWINGS = {"terms": terms, "valleys": valleys, "floors": floors, "budgets": budgets, "approaches": approaches}
