"""Drawings of chapter 06: passes over memory, offsets of a tile, online softmax, FlashAttention, pages, program order.

What is drawn is computed here: offsets, maxima and sums, pages of a table, tiles by the kernels' own order.
"""

from __future__ import annotations

import math

import torch
from markupsafe import Markup

from book.drawings.kit import Panel, arrow, box, cells, dashed, drawing, line, panel, text

PASSES = (("max", 1, 0), ("−", 1, 1), ("exp", 1, 1), ("sum", 1, 0), ("÷", 1, 1))
"""Operators of a softmax, and how often each reads and writes a whole matrix; a number a row is not counted."""


def fusion() -> Markup:
    """Five kernels of a softmax between chip and memory, and one."""
    (_, first, _), *_, (_, _, last) = PASSES
    return drawing(
        "Five kernels on the chip, each with arrows from memory and most with one back: eight passes over the matrix. "
        "One kernel with all five operators: one arrow each way.",
        _between(PASSES, "operator by operator"),
        _between((("max − exp sum ÷", first, last),), "fused"),
    )


def _between(kernels: tuple[tuple[str, int, int], ...], title: str) -> Panel:
    """Kernels above, memory below, and an arrow for each pass over the matrix."""
    wide = 336 / len(PASSES)
    width = max(wide * len(kernels), 180.0)
    pieces = [box(2, 108, width - 6, 30, "memory", "violet")]
    for number, (name, reads, writes) in enumerate(kernels):
        x, own = 2 + wide * number, width / len(kernels)
        pieces.append(box(x, 6, own - 6, 34, name, "blue"))
        middle = x + own / 2 - 3
        pieces += [arrow(middle - 10, 106, middle - 10, 42, "green")] * reads
        pieces += [arrow(middle + 10, 42, middle + 10, 106, "orange")] * writes
    passes = sum(reads + writes for _, reads, writes in kernels)
    pieces.append(text(2, 158, f"{passes} passes", size="small", anchor="start"))
    return panel(width, 164, pieces, title=title)


def tile() -> Markup:
    """Offsets of a 5 × 6 matrix, and two 4 × 4 tiles that cross its edges."""
    rows, columns, side, step = 5, 6, 4, 38
    left, top, size = 18, 22, step - 4
    tiles = ((0, 1), (1, 1))
    inside = {(i * side + r, j * side + c) for i, j in tiles for r in range(side) for c in range(side)}
    pieces: list[str] = []
    for r in range(rows + 3):
        for c in range(columns + 2):
            x, y, real = left + step * c, top + step * r, r < rows and c < columns
            if not real and (r, c) not in inside:
                continue
            tone = "orange" if not real else "blue" if (r, c) in inside else "quiet"
            pieces.append(box(x, y, size, size, "", tone) if real else "")
            pieces.append(text(x + size / 2, y + size / 2 + 5, r * columns + c, tone, size="small"))
    for i, j in tiles:
        wide = step * side - 2
        pieces.append(dashed(left - 1 + step * side * j, top - 1 + step * side * i, wide, wide, "violet"))
    pieces += [text(left + step * c + size / 2, 14, c, "quiet", size="small") for c in range(columns + 2)]
    pieces += [text(2, top + step * r + 22, r, "quiet", size="small", anchor="start") for r in range(rows + 3)]
    return drawing(
        "A matrix of 5 rows and 6 columns with offsets 0 to 29. Tile (0, 1) covers rows 0 to 3 and columns 4 to 7: "
        "columns 6 and 7 do not exist, and their offsets are those of the next row. Tile (1, 1) covers rows 4 to 7: "
        "only offsets 28 and 29 exist.",
        panel(328, top + step * (rows + 3) + 2, pieces),
    )


def online() -> Markup:
    """Twelve scores in three blocks, and the pair (m, s) that stands for all that have passed."""
    scores = torch.tensor([1.0, 2.2, 0.4, 1.5, 2.8, 1.1, 2.0, 0.6, 1.8, 3.6, 0.9, 2.4])
    size, unit, base = 4, 26, 118
    m, s, pieces = -math.inf, 0.0, [line(2, base, 338, base)]
    for number, block in enumerate(scores.split(size)):
        x, before = 4 + 114 * number, m
        pieces += [
            box(x + 25 * i, base - unit * score, 19, unit * score, tone="quiet")
            for i, score in enumerate(block.tolist())
        ]
        m = max(m, block.max().item())
        factor = math.exp(before - m)
        s = s * factor + torch.exp(block - m).sum().item()
        y = base - unit * m
        pieces += [
            line(x - 2, y, x + 100, y, "orange"),
            text(x + 2, y - 6, f"m = {m:.1f}", "orange", size="small", anchor="start"),
        ]
        pieces.append(box(x + 12, 152, 76, 30, f"s = {s:.2f}", "blue"))
        if number:
            pieces += [arrow(x - 24, 167, x + 10, 167), text(x - 12, 146, f"× {factor:.2f}", "violet", size="small")]
    return drawing(
        "Twelve scores as bars in three blocks. The maximum so far, a line, rises from block to block; each time the "
        "sum so far is multiplied by a factor below one before the block's own part is added.",
        panel(340, 186, pieces),
    )


def flash() -> Markup:
    """Causal attention in tiles: what one program walks over, what it keeps, and what is never computed."""
    n, row, at = 6, 4, 2
    left, top, size = 78, 44, 24

    def tone(i: int, j: int) -> str:
        if j > i:
            return ""
        return "orange" if (i, j) == (row, at) else "" if i == row and j < at else "quiet"

    pieces = cells(left, top, n, n, tone, size=size)
    pieces += [dashed(left + 26 * j, top + 26 * row, size, size, "blue") for j in range(at)]
    pieces += cells(left, 14, 1, n, lambda _, j: "orange" if j == at else "green", size=size)
    pieces += cells(left - 34, top, n, 1, lambda i, _: "blue" if i == row else "quiet", size=size)
    pieces += [text(left - 48, top + 80, "Q", size="strong"), text(left - 8, 31, "K, V", size="strong", anchor="end")]
    pieces.append(line(left, top + 26 * n, left + 26 * n, top + 26 * n))
    y = top + 26 * row + size / 2
    pieces += [arrow(left + 26 * (row + 1) + 2, y, 258, y, "blue")]
    pieces += [box(260, y - 46, 76, 60, tone="blue"), text(298, y - 26, "on chip", "blue", size="small")]
    pieces.append(text(298, y - 4, "u, m, s", size="strong"))
    pieces.append(text(left + 26 * n + 4, top + 20, "not computed", "quiet", size="small", anchor="start"))
    pieces.append(
        text(left, top + 26 * n + 18, "scores: never written to memory", "quiet", size="small", anchor="start")
    )
    return drawing(
        "A square of tiles of scores, queries by keys, of which those above the diagonal are missing. One program has "
        "a row of them and is at its third tile, for which it fetches the third block of keys and values. The two "
        "before it are dashed, since their scores are gone; the two after it are empty.",
        panel(340, top + 26 * n + 26, pieces),
    )


def pingpong() -> Markup:
    """Products and exponentials of two warpgroups, one after the other and overlapped, at head dimension 128."""
    product, exponential = 44, 22  # 4 · 128 / 4096 clocks per pair, and 1 / 16
    turn = product + exponential
    serial = [(turn * n, n % 2) for n in range(4)]
    overlapped = [(product * n, n % 2) for n in range(4)]
    return drawing(
        "Two timelines with two warpgroups. Without overlap each tile's products and exponentials follow those of the "
        "tile before. In ping-pong order the products of one group run during the exponentials of the other, and the "
        "four tiles end after three quarters of the time.",
        _timeline(serial, product, exponential, "without overlap"),
        _timeline(overlapped, product, exponential, "ping-pong"),
    )


def _timeline(starts: list[tuple[int, int]], product: int, exponential: int, title: str) -> Panel:
    """A row for each warpgroup; each start is a time and the group that computes a tile from then on."""
    left, height = 62, 26
    pieces = [text(2, 20 + 34 * group, f"group {group + 1}", size="small", anchor="start") for group in range(2)]
    for start, group in starts:
        x, y = left + start, 2 + 34 * group
        pieces += [
            box(x, y, product - 1, height, "MMA", "blue"),
            box(x + product, y, exponential - 1, height, "", "orange"),
        ]
    end = left + starts[-1][0] + product + exponential
    pieces += [
        line(left, 74, end, 74),
        text(
            end,
            92,
            f"{100 * (end - left) / (4 * (product + exponential)):.0f} % of the time",
            size="small",
            anchor="end",
        ),
    ]
    return panel(332, 98, pieces, title=title)


def pages() -> Markup:
    """A sequence's table of pages, the pool that they lie in, and two programs that share the sequence."""
    held, size, pool, parts = 90, 16, 12, 2
    table = torch.randperm(pool, generator=torch.Generator().manual_seed(2))[: -(-held // size)].tolist()
    each = -(-len(table) // parts)
    tones = ["blue" if place < each else "orange" for place in range(len(table))]
    wide, across = 38, [60 + 23 * number for number in range(pool)]
    pieces = [box(128, 4, 140, 30, "combined: u ÷ s", "green")]
    pieces += [
        text(2, y, words, size="small", anchor="start") for y, words in ((129, "block"), (144, "table"), (217, "pool"))
    ]
    for part, tone in enumerate(("blue", "orange")):
        x, width = 82 + wide * each * part, wide * each - 4
        pieces.append(box(x, 62, width, 30, f"program {part}", tone))
        pieces.append(arrow(x + width / 2, 60, 178 + 40 * part, 36, tone))
        pieces += [line(x + wide * place + 17, 92, x + wide * place + 17, 110, tone) for place in range(each)]
    for place, (page, tone) in enumerate(zip(table, tones, strict=True)):
        x = 82 + wide * place
        pieces += [box(x, 110, 34, 28, page, tone), line(x + 17, 138, across[page] + 10, 198, tone)]
    owner = dict(zip(table, tones, strict=True))
    for page, x in enumerate(across):
        pieces += [box(x, 198, 20, 28, tone=owner.get(page, "quiet")), text(x + 10, 242, page, "quiet", size="small")]
    return drawing(
        "A table lists six pages, which lie scattered in a pool of twelve. One program stands above the table's first "
        "three entries, a second above the others; each makes its u, m and s, and both are joined.",
        panel(340, 248, pieces),
    )


def order() -> Markup:
    """The first 32 programs of 16 × 16 tiles, row after row and in groups of four rows."""
    return drawing(
        "A grid of 16 by 16 tiles, of which the first 32 are marked. Row after row they fill two rows and want two "
        "rows of A and all 16 columns of B. In groups of four they fill a patch of four by eight.",
        _wave(1, "row after row"),
        _wave(4, "groups of 4 rows"),
    )


def _wave(group: int, title: str, side: int = 16, programs: int = 32) -> Panel:
    """Tiles of the programs that run at once, with the rows of A and the columns of B that they want."""
    at = {_tile_of(program, side, group) for program in range(programs)}
    rows, columns = {row for row, _ in at}, {column for _, column in at}
    left, size, gap = 22, 6.5, 1.5
    pieces = cells(left, 22, side, side, lambda *tile: "blue" if tile in at else "quiet", size=size, gap=gap)
    pieces += cells(8, 22, side, 1, lambda i, _: "orange" if i in rows else "quiet", size=size, gap=gap)
    pieces += cells(left, 8, 1, side, lambda _, j: "green" if j in columns else "quiet", size=size, gap=gap)
    pieces.append(text(8, 170, f"{len(rows)} of A", "orange", size="small", anchor="start"))
    pieces.append(text(150, 170, f"{len(columns)} of B", "green", size="small", anchor="end"))
    return panel(158, 176, pieces, title=title)


def _tile_of(program: int, side: int, group: int) -> tuple[int, int]:
    """Row and column of a program's tile, as the kernels' `tile_index` has it, in a square grid that groups divide."""
    first, within = divmod(program, group * side)
    return first * group + within % group, within // group


DRAWINGS = {
    "fusion": fusion,
    "tile": tile,
    "online": online,
    "flash": flash,
    "pingpong": pingpong,
    "pages": pages,
    "order": order,
}
