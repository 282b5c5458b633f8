"""Drawings of chapter 07: a token's widths in a block, einsums as loops, an order of products, bytes as areas.

Sizes are those of Llama 3 in `configs.presets`, axes those that `flops.einsum` reads, bytes those of `memory` and
`activations`.
"""

from __future__ import annotations

from markupsafe import Markup

from book.drawings.kit import Panel, arrow, box, cells, drawing, line, panel, text
from mlsys_lab.configs import preset
from mlsys_lab.flops import activations, memory, parameters
from mlsys_lab.flops.einsum import Einsum
from mlsys_lab.hardware import device

TOKENS = 8192


def block() -> Markup:
    """How many numbers one token is at each place of a block of Llama 3 70B, as lengths."""
    llama = preset("llama3-70b")
    D, F, N, K, H = llama.d_model, llama.d_ff, llama.n_heads, llama.n_kv_heads, llama.head_dim
    attention = (
        ("in and normed, D", D, "plain"),
        ("queries, N·H", N * H, "blue"),
        ("keys, K·H", K * H, "green"),
        ("values, K·H", K * H, "green"),
        ("scores, N·S", N * TOKENS, "orange"),
        ("weighted sum, N·H", N * H, "blue"),
        ("out and added, D", D, "plain"),
    )
    mlp = (
        ("in and normed, D", D, "plain"),
        ("gate, F", F, "violet"),
        ("up, F", F, "violet"),
        ("product, F", F, "violet"),
        ("out and added, D", D, "plain"),
    )
    return drawing(
        "Bars whose lengths are numbers a token. In attention: the width of the model, as many for queries, an eighth "
        "for keys and for values, far too many for scores. In the MLP: more than three times the width, three times.",
        _widths(attention, F, "attention"),
        _widths(mlp, F, "MLP"),
    )


def _widths(rows: tuple[tuple[str, int, str], ...], widest: int, title: str) -> Panel:
    """Bars one below the other, the widest of them 330 long; a longer one is cut off, and says so."""
    pieces = []
    for number, (name, size, tone) in enumerate(rows):
        y = 38 * number
        label = f"{name} = {size:,}"
        pieces.append(text(2, y + 13, label, tone, size="small", anchor="start"))
        pieces.append(box(2, y + 18, min(330 * size / widest, 330), 13, tone=tone))
        if size > widest:
            pieces.append(text(336, y + 13, f"{size / widest:.0f} × this", tone, size="small", anchor="end"))
    return panel(340, 38 * len(rows), pieces, title=title)


def loops() -> Markup:
    """Two einsums as tables of axes: which array has which, and what becomes of each axis."""
    return drawing(
        "Two tables with a column for each letter and a row for each array. Letters that the result lacks are summed "
        "over, letters of all three arrays go along as a batch, and the others are free.",
        _axes("BTD,DF->BTF", ("x", "W", "y")),
        _axes("BTKGH,BSKH->BTKGS", ("q", "k", "scores")),
    )


def _axes(subscripts: str, names: tuple[str, str, str]) -> Panel:
    """The axes of an einsum of two arrays: a column for each letter, marked where an array has it."""
    letters = "".join(dict.fromkeys(letter for letter in subscripts if letter.isalpha()))
    einsum = Einsum.parse(subscripts, dict.fromkeys(letters, 1))
    arrays = (*einsum.inputs, einsum.output)
    kinds = {}
    for letter in letters:
        if letter in einsum.summed_indices:
            kinds[letter] = ("orange", "summed")
        else:
            kinds[letter] = ("violet", "batch") if all(letter in array for array in arrays) else ("blue", "free")
    pieces = [text(2, 47 + 30 * row, name, size="small", anchor="start") for row, name in enumerate(names)]
    for column, letter in enumerate(letters):
        x = 62 + 36 * column
        tone, _ = kinds[letter]
        pieces.append(text(x + 12, 20, letter, tone, size="strong"))
        for row, array in enumerate(arrays):
            pieces += cells(
                x, 30 + 30 * row, 1, 1, lambda *_, on=letter in array, tone=tone: tone if on else "", size=24
            )
    pieces.append(line(2, 86, 62 + 36 * len(letters), 86))
    said = dict.fromkeys(kinds.values())
    for row, (tone, kind) in enumerate(said):
        own = ", ".join(letter for letter in letters if kinds[letter][1] == kind)
        pieces.append(text(2, 142 + 19 * row, f"{kind}: {own}", tone, size="small", anchor="start"))
    return panel(max(62 + 36 * len(letters), 200), 190, pieces, title=subscripts.replace("->", " → "))


def order() -> Markup:
    """What lies between the two products of attention, by the order in which they are done, as areas to scale."""
    tokens, width = TOKENS, 128
    attention = Einsum.parse("TH,SH,SV->TV", T=tokens, S=tokens, H=width, V=width)
    side = 150.0
    thin = side * width / tokens
    panels = []
    for title, ways, (high, wide) in (
        ("scores first", [(0, 1), (0, 1)], (side, side)),
        ("keys with values first", [(1, 2), (0, 1)], (thin, thin)),
    ):
        way = attention.contraction(ways)
        pieces = [box(4 + 10 * at, 6, thin, side, tone=tone) for at, tone in enumerate(("blue", "green", "green"))]
        pieces += [arrow(34, 80, 56, 80), box(62 + (side - wide) / 2, 6 + (side - high) / 2, wide, high, tone="orange")]
        pieces += [arrow(218, 80, 240, 80), box(248, 6, thin, side, tone="violet")]
        pieces.append(text(4, 180, f"{way.flops / 1e9:.1f} GFLOP", size="small", anchor="start"))
        panels.append(panel(256, 186, pieces, title=title))
    return drawing(
        "Three thin strips, something between, and a thin strip as the result. With the scores first there is a large "
        "square between; with keys and values first, a speck.",
        *panels,
    )


def bytes_kept() -> Markup:
    """What training Llama 3 8B keeps, a square for each GB, beside what an H100 holds."""
    llama = preset("llama3-8b")
    states = memory.states(parameters(llama).total, memory.RECIPES["mixed16"])
    kept = llama.n_layers * activations.layer(llama, TOKENS, fused_attention=True).total
    parts = (
        ("weights", states.weights, "blue"),
        ("gradients", states.gradients, "green"),
        ("copy", states.master, "orange"),
        ("moments", states.moments, "orange"),
        ("activations", kept, "violet"),
    )
    columns, tones, legend = 16, [], []
    for number, (name, size_bytes, tone) in enumerate(parts):
        squares = round(size_bytes / 1e9)
        tones += [tone] * squares
        legend.append(text(172, 14 + 25 * number, f"{name}, {squares} GB", tone, size="small", anchor="start"))
    held = round(device("H100").memory_bytes / 1e9)

    def squares(kinds: list[str]) -> list[str]:
        rows = -(-len(kinds) // columns)
        return cells(
            2, 4, rows, columns, lambda i, j: kinds[at] if (at := columns * i + j) < len(kinds) else "", size=8, gap=2
        )

    high = 8 + 10 * -(-len(tones) // columns)
    return drawing(
        "Squares of one GB: sixteen of weights, as many of gradients, twice and four times as many of the optimiser's, "
        "and activations in between. Beside them the squares that one H100 holds, half as many in all.",
        panel(330, high, squares(tones), legend, title="training keeps"),
        panel(164, high, squares(["quiet"] * held), title=f"an H100 has {held} GB"),
    )


DRAWINGS = {"block": block, "loops": loops, "order": order, "bytes_kept": bytes_kept}
