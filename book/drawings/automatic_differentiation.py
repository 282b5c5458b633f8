"""Drawings of chapter 02: a graph with shares, products of Jacobians in both orders, what a tape keeps, checkpoints.

Numbers of the graph come from the scalar engine; lifetimes from following a pass over the layers, step by step.
"""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from book.drawings.kit import Panel, arrow, box, drawing, line, panel, text
from mlsys_lab.autograd import Value
from mlsys_lab.autograd.checkpointing import split_segments


def graph() -> Markup:
    """The graph of f = (x + y)·x with values, local derivatives on its edges, and the two shares of x."""
    x, y = Value(3.0), Value(-1.0)
    total = x + y
    f = total * x
    f.backward()
    at = {"x": (44, 62), "y": (44, 172), "+": (150, 172), "×": (256, 118)}
    pieces = [
        box(x0 - 32, y0 - 19, 64, 38, f"{name} = {value.data:g}".replace("-", "−"), tone)
        for (name, (x0, y0)), value, tone in zip(
            at.items(), (x, y, total, f), ("blue", "plain", "plain", "green"), strict=True
        )
    ]
    edges = (("x", "+", 1.0, (106, 104)), ("y", "+", 1.0, (98, 190)), ("x", "×", total.data, (150, 64)))
    for start, end, slope, where in (*edges, ("+", "×", x.data, (222, 166))):
        (x0, y0), (x1, y1) = at[start], at[end]
        drop = 20 if (start, end) == ("x", "+") else 0
        left, right = (x0 + 12 if drop else x0 + 33), x1 - 33
        pieces.append(arrow(left, y0 + drop, right, y1 - drop * 0.5, "quiet"))
        pieces.append(text(*where, f"{slope:g}", "violet", size="strong"))
    shares = (total.grad * 1.0, f.grad * total.data)
    words = f"x̄ = {shares[1]:g} · 1 + {shares[0]:g} · 1 = {x.grad:g}"
    pieces.append(text(12, 30, words, "blue", size="small", anchor="start"))
    pieces += [
        text(256, 90, f"f̄ = {f.grad:g}", "green", size="small"),
        text(150, 212, f"{total.grad:g}", "green", size="small"),
    ]
    pieces.append(text(44, 212, f"ȳ = {y.grad:g}", "green", size="small"))
    return drawing(
        "A graph of four boxes: x and y lead to a sum, x and the sum to a product. Edges carry local derivatives. Two "
        "ways lead back to x, and their shares are added.",
        panel(300, 220, pieces),
    )


def modes() -> Markup:
    """The product of three Jacobians and what each mode keeps of it, from the right and from the left."""
    return drawing(
        "Three Jacobians: a flat one with one row, a square, and a wide one. Forward mode multiplies a column into "
        "them from the right and ends at one number. Reverse mode multiplies from the left, a row at a time, and ends "
        "at a row as wide as the widest.",
        _mode("forward: from the right", forward=True),
        _mode("reverse: from the left", forward=False),
    )


def _mode(title: str, *, forward: bool) -> Panel:
    """Sizes of the factors of J₃ J₂ J₁, and of what is left after each product."""
    hidden, inputs, thin, middle = 46, 96, 10, 66
    x, pieces = 4.0, []
    shapes = [("J₃", hidden, thin), ("J₂", hidden, hidden), ("J₁", inputs, hidden)]
    shapes = [*shapes, ("v", thin, inputs)] if forward else [("u", thin, thin), *shapes]
    for name, width, height in shapes:
        tone = "orange" if name in "uv" else "quiet"
        pieces.append(box(x, middle - height / 2, width, height, tone=tone))
        above = middle - height / 2 - 6 if height <= thin else middle + 5
        pieces.append(text(x + width / 2, above, name, size="small") if name != "v" else text(x + 22, middle + 5, name))
        x += width + 12
    x, left = 4.0, []
    steps = (
        [(thin, hidden), (thin, hidden), (thin, thin)] if forward else [(hidden, thin), (hidden, thin), (inputs, thin)]
    )
    for number, (width, height) in enumerate(steps):
        tone = "green" if number == len(steps) - 1 else "orange"
        left += [box(x + 16, 156 - height / 2, width, height, tone=tone)]
        if number:
            left.append(arrow(x - 18, 156, x + 10, 156, "quiet"))
        x += width + 50
    words = "one number: a slope along v" if forward else "one row: the whole gradient"
    left.append(text(4, 204, words, "green", size="small", anchor="start"))
    return panel(300, 210, pieces, left, title=title)


@dataclass(frozen=True)
class Life:
    """An array in memory: whose output it is, and the first and the last step that it is there."""

    layer: int
    start: int
    end: int


def follow(layers: int, segments: int | None) -> tuple[list[tuple[str, int]], list[Life]]:
    """Steps ("f" or "b", layer) of a pass over layers 1 … n, and the life of every array; None drops all, as inference.

    A layer needs its input on the way forward, and its input and its output on the way back; array 0 is the input.
    """
    if segments is None:
        steps = [("f", layer) for layer in range(1, layers + 1)]
        return steps, [Life(layer, max(layer - 1, 0), min(layer, layers - 1)) for layer in range(layers + 1)]
    parts = [[layer + 1 for layer in part] for part in split_segments(layers, segments)]
    steps = [("f", layer) for part in parts for layer in part]
    lives, made = [], {0: 0} | {layer: at for at, (_, layer) in enumerate(steps)}
    inside = {layer for part in parts[:-1] for layer in part[:-1]}
    lives += [Life(layer, made[layer], made[layer] + 1) for layer in sorted(inside)]
    for part in reversed(parts):
        if part is not parts[-1]:
            made |= {layer: len(steps) + at for at, layer in enumerate(part)}
            steps += [("f", layer) for layer in part]
        for layer in reversed(part):
            lives.append(Life(layer, made[layer], len(steps)))
            steps.append(("b", layer))
        first = part[0] - 1
        lives.append(Life(first, made[first], len(steps) - 1))
    return steps, lives


def most_alive(lives: list[Life], steps: int) -> int:
    """The largest number of arrays of layers' outputs that are in memory during one step."""
    return max(len({life.layer for life in lives if life.start <= step <= life.end}) for step in range(steps))


def tape() -> Markup:
    """When the outputs of six layers are in memory: running forward only, and training."""
    return drawing(
        "Layers as rows over time. Forward only, an output lives until the next layer has read it, two at a time. "
        "In training each lives until the way back comes to its layer: the first are kept longest, and all are there "
        "at the turn.",
        _lives(6, None, "inference"),
        _lives(6, 1, "training"),
    )


def checkpoints() -> Markup:
    """When the outputs of nine layers are in memory with three segments."""
    return drawing(
        "Nine layers as rows over time in three segments. Of the first two segments only inputs are kept; each is run "
        "forward once more just before the way back goes through it.",
        _lives(9, 1, "kept"),
        _lives(9, 3, "in 3 segments"),
    )


def _lives(layers: int, segments: int | None, title: str, slots: int = 24) -> Panel:
    """Lives of outputs as thin bars, with steps forward (blue) and back (orange) on them."""
    steps, lives = follow(layers, segments)
    unit, row = 306 / max(slots, len(steps)), 16
    pieces = [
        box(30 + unit * life.start, 8 + row * life.layer, unit * (life.end + 1 - life.start) - 1, 7, tone="green")
        for life in lives
    ]
    for at, (kind, layer) in enumerate(steps):
        pieces.append(box(30 + unit * at, 5 + row * layer, unit - 1, 13, tone="blue" if kind == "f" else "orange"))
    pieces += [text(14, 17 + row * layer, layer, "quiet", size="small") for layer in range(layers + 1)]
    most = most_alive(lives, len(steps))
    pieces.append(line(30, 10 + row * (layers + 1), 336, 10 + row * (layers + 1)))
    words = f"{len(steps)} steps, at most {most} arrays"
    pieces.append(text(30, 28 + row * (layers + 1), words, size="small", anchor="start"))
    return panel(340, 34 + row * (layers + 1), pieces, title=title)


DRAWINGS = {"graph": graph, "modes": modes, "tape": tape, "checkpoints": checkpoints}
