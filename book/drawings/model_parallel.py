"""Drawings of chapter 11: what can be cut, two products, sequence parallelism, who sees which keys, schedules, experts,
and a mesh.

Schedules are played by the simulator, scores counted and choices routed by `mlsys_lab.parallel`.
"""

from __future__ import annotations

import torch
from markupsafe import Markup

from book.drawings.kit import CHUNKS, Panel, arrow, box, drawing, line, panel, rank, text
from mlsys_lab.comm.simulate import Cluster
from mlsys_lab.flops.layout import Layout
from mlsys_lab.parallel.context import contiguous_positions, count_scores, zigzag_positions
from mlsys_lab.parallel.expert import route
from mlsys_lab.parallel.mesh import mesh_coordinates
from mlsys_lab.parallel.pipeline import gpipe, one_forward_one_backward, simulate, zero_bubble
from mlsys_lab.parallel.pipeline.schedules import Schedule, max_in_flight

P = 4


def cuts() -> Markup:
    """A batch above four layers, cut in five ways among four ranks."""

    def batch(tones: list[str], across: bool = False) -> list[str]:
        """Four texts as rows of tokens: rows in the given tones, or columns."""
        if across:
            return [box(8 + 24 * i, 6, 22, 38, tone=tone) for i, tone in enumerate(tones)]
        return [box(8, 6 + 10 * i, 94, 8, tone=tone) for i, tone in enumerate(tones)]

    def layers(tones: list[str]) -> list[str]:
        return [box(8, 58 + 22 * i, 94, 18, tone=tone) for i, tone in enumerate(tones)]

    plain, ranks = ["quiet"] * P, list(CHUNKS)
    columns = [box(8 + 24 * r, 58 + 22 * i, 22, 18, tone=tone) for i in range(P) for r, tone in enumerate(ranks)]
    experts = []
    for i in range(2):
        experts.append(box(8, 58 + 44 * i, 94, 18, tone="quiet"))
        experts += [box(8 + 24 * r, 80 + 44 * i, 22, 18, tone=tone) for r, tone in enumerate(ranks)]
    shown = {
        "data": [batch(ranks), layers(plain)],
        "context": [batch(ranks, across=True), layers(plain)],
        "tensor": [batch(plain), columns],
        "pipeline": [batch(plain), layers(ranks)],
        "expert": [batch(ranks), experts],
    }
    return drawing(
        "Four texts above four layers, a colour a rank. Data: a text each. Context: a part of every text each. Tensor: "
        "a part of every matrix each. Pipeline: a layer each. Expert: a text each, and some experts of every layer.",
        *(panel(110, 148, *pieces, title=title) for title, pieces in shown.items()),
    )


def pair() -> Markup:
    """An MLP's two products on two ranks: columns of the first matrix, rows of the second, one sum."""
    pieces = [text(30, 14, "X", size="strong"), text(100, 14, "W₁", size="strong"), text(206, 14, "W₂", size="strong")]
    pieces += [box(8, 24, 44, 70, "all"), box(286, 132, 46, 44, "+", "green")]
    for r, tone in enumerate(("blue", "orange")):
        y = 118 + 44 * r
        pieces += [box(62 + 38 * r, 24, 36, 70, tone=tone), box(176, 24 + 36 * r, 60, 34, tone=tone)]
        pieces.append(text(8, y + 18, f"rank {r}", tone, size="small", anchor="start"))
        pieces += [box(56, y, 92, 28, "half of XW₁", tone), arrow(150, y + 14, 164, y + 14, tone)]
        pieces += [box(166, y, 88, 28, "partial sum", tone), arrow(256, y + 14, 284, 151 + 6 * r, tone)]
    return drawing(
        "X is whole on both ranks. Each multiplies by half of the columns of the first matrix, then by the rows of the "
        "second that belong to them. Only the two partial results have to be added up.",
        panel(340, 196, pieces),
    )


def sequence() -> Markup:
    """What two ranks have on their way through a layer with sequence parallelism."""
    parts = (("norm", True), ("attention", False), ("norm", True), ("MLP", False))
    pieces, x = [], 48.0
    for r, tone in enumerate(("blue", "orange")):
        pieces.append(text(6, 46 + 60 * r, f"rank {r}", tone, size="small", anchor="start"))
    for number, (name, is_slice) in enumerate(parts):
        width = 40 if is_slice else 74
        for r, tone in enumerate(("blue", "orange")):
            y = 20 + 60 * r
            if is_slice:
                pieces += [box(x, y, width, 44, tone="quiet"), box(x, y + 22 * r, width, 22, tone=tone)]
            else:
                pieces += [box(x, y, width, 44, tone="quiet")]
                pieces += [box(x + width / 2 * r, y, width / 2, 44, tone=tone)]
        pieces.append(text(x + width / 2, 14, name, size="small"))
        x += width
        if number < len(parts) - 1:
            pieces.append(text(x + 8, 78, "g" if is_slice else "s", "green", size="strong"))
            x += 16
    pieces.append(text(336, 150, "g: all-gather, s: reduce-scatter", "green", size="small", anchor="end"))
    pieces.append(text(6, 150, "tokens ↓", "quiet", size="small", anchor="start"))
    return drawing(
        "Two ranks through a layer. For norms each has half of the tokens, whole; for attention and MLP each has all "
        "tokens and half of the width. Before the wide parts tokens are gathered, behind them sums are scattered.",
        panel(340, 158, pieces),
    )


def zigzag() -> Markup:
    """Scores under a causal mask by the rank that has the query: stretches in order, and dealt out in a zigzag."""
    n, cell = 8, 18

    def triangle(owner: list[int], title: str, tokens: list[torch.Tensor]) -> Panel:
        cells = [
            box(24 + cell * key, 4 + cell * row, cell - 2, cell - 2, tone=CHUNKS[owner[row]])
            for row in range(n)
            for key in range(row + 1)
        ]
        labels = [text(12, 17 + cell * row, owner[row], CHUNKS[owner[row]], size="small") for row in range(n)]
        counts = ", ".join(map(str, count_scores(tokens)))
        return panel(172, 14 + cell * n + 16, cells, labels, text(96, cell * n + 22, counts, size="small"), title=title)

    panels = []
    for title, divide in (("one stretch each", contiguous_positions), ("zigzag", zigzag_positions)):
        tokens = divide(n, P)
        owner = [next(r for r in range(P) if at in tokens[r]) for at in range(n)]
        panels.append(triangle(owner, title, tokens))
    return drawing(
        "Two triangles of scores, eight queries by eight keys, rows coloured by the rank that has the query. With one "
        "stretch each the last rank has five times as many scores as the first; in a zigzag all have nine.",
        *panels,
    )


def schedules() -> Markup:
    """GPipe, 1F1B and ZB-H1 over four ranks and eight micro-batches, in time."""
    tones = {"forward": "blue", "backward": "orange", "weight": "green"}
    longest_s = 3.0 * (8 + P - 1)

    def row(schedule: Schedule, title: str) -> Panel:
        cluster = Cluster(P)
        simulate(cluster, schedule, forward_s=1.0, backward_s=2.0)
        timeline = cluster.timeline()
        unit = 316 / longest_s
        pieces = [text(10, 34 + 24 * r, r, size="small") for r in range(P)]
        for start, end, streams, name in zip(
            timeline.start, timeline.end, timeline.streams, timeline.names, strict=True
        ):
            kind = name.split()[0]
            at, width = 20 + unit * start, unit * (end - start) - 1
            pieces.append(box(at, 20 + 24 * (streams[0] // 4), width, 20, tone=tones[kind]))
        pieces.append(text(20, 14, "forward", "blue", size="small", anchor="start"))
        words = f"rank 0 keeps {max_in_flight(schedule[0])}"
        pieces.append(text(336, 14, words, "quiet", size="small", anchor="end"))
        return panel(340, 24 + 24 * P, pieces, title=title)

    return drawing(
        "Three timelines of four ranks, forward passes blue, backward passes orange. GPipe and 1F1B take as long and "
        "idle as much; GPipe does all forward passes first and keeps eight micro-batches, 1F1B turns back early and "
        "keeps four. In ZB-H1 gradients of weights, green, come apart and late, and it ends sooner, keeping four.",
        row(gpipe(P, 8), "GPipe"),
        row(one_forward_one_backward(P, 8), "1F1B"),
        row(zero_bubble(P, 8), "ZB-H1"),
    )


def experts() -> Markup:
    """Tokens of two ranks on their way to four experts, of which each has room for two from each rank."""
    chosen = torch.tensor([[0], [1], [2], [2], [2], [3]])
    routing = route(chosen, num_experts=4, capacity_factor=1.25)
    assert routing.num_dropped == 1
    kept = set(routing.token_indices.tolist())
    pieces = [
        text(4, 16, "tokens of rank 0", "blue", size="small", anchor="start"),
        text(244, 16, "experts", size="small"),
    ]
    for e in range(4):
        tone = "blue" if e < 2 else "orange"
        y = 28 + 40 * e
        pieces += [box(208, y, 72, 30, f"expert {e}", tone), text(310, y + 20, f"rank {e // 2}", tone, size="small")]
    for token, (e,) in enumerate(chosen.tolist()):
        y = 28 + 26 * token
        is_kept = token in kept
        pieces.append(box(20, y, 64, 22, f"token {token}", "blue" if is_kept else "quiet"))
        if is_kept:
            pieces.append(arrow(86, y + 11, 206, 43 + 40 * e, "blue" if e < 2 else "orange"))
        else:
            pieces.append(text(92, y + 16, "no room", "quiet", size="small", anchor="start"))
    return drawing(
        "Six tokens of rank 0, each with one expert. Experts 0 and 1 are on rank 0, experts 2 and 3 on rank 1, where "
        "their tokens are sent. Three tokens want expert 2, which has room for two: the third is dropped.",
        panel(340, 192, pieces),
    )


def mesh() -> Markup:
    """Eight ranks in a layout of two by two by two, and who talks with whom."""
    layout = Layout(data=2, tensor=2, pipeline=2)
    pieces: list[str] = []
    at: dict[int, tuple[float, float]] = {}
    for r in range(8):
        place = mesh_coordinates(layout, r)
        at[r] = (86.0 + 72 * place["tensor"] + 146 * place["data"], 54.0 + 92 * place["pipeline"])
    for stage in range(2):
        pieces.append(box(56, 26 + 92 * stage, 280, 56, tone="quiet"))
        pieces.append(text(4, 58 + 92 * stage, f"stage {stage}", size="small", anchor="start"))
    for a in range(8):
        for b in range(a + 1, 8):
            differs = [
                axis
                for axis, number in mesh_coordinates(layout, a).items()
                if mesh_coordinates(layout, b)[axis] != number
            ]
            if differs == ["tensor"]:
                pieces.append(line(at[a][0] + 14, at[a][1], at[b][0] - 14, at[b][1], "blue"))
            if differs == ["pipeline"]:
                pieces.append(line(at[a][0], at[a][1] + 14, at[b][0], at[b][1] - 14, "green"))
            if differs == ["data"]:
                lift = -24 if a % 2 == 0 else 24
                middle = at[a][1] + lift
                pieces.append(line(at[a][0], at[a][1] + lift / 1.7, at[a][0], middle, "orange"))
                pieces.append(line(at[a][0], middle, at[b][0], middle, "orange"))
                pieces.append(line(at[b][0], middle, at[b][0], at[b][1] + lift / 1.7, "orange"))
    pieces += [rank(*at[r], r) for r in range(8)]
    pieces += [text(64, 196, "tensor", "blue", size="small"), text(180, 196, "data", "orange", size="small")]
    pieces.append(text(300, 196, "pipeline", "green", size="small"))
    return drawing(
        "Eight ranks in two stages of four. Neighbours 0 and 1 divide matrices; 0 and 2 have the same part and other "
        "texts; 0 and 4 have other layers of the same part.",
        panel(340, 204, pieces),
    )


DRAWINGS = {
    "cuts": cuts,
    "pair": pair,
    "sequence": sequence,
    "zigzag": zigzag,
    "schedules": schedules,
    "experts": experts,
    "mesh": mesh,
}
