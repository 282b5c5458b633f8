"""Drawings of chapter 05: a grid, sectors, barriers, a reduction tree, banks, tiles, buffers, a tensor-core tile.

What a warp touches is read from launches of the package's kernels; tiles and times come from its ladder and devices.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from markupsafe import Markup

from book.drawings.kit import Panel, arrow, box, cells, drawing, line, panel, text
from mlsys_lab.hardware import device
from mlsys_lab.kernels.grey import numba_steps as greys
from mlsys_lab.kernels.matmul import cost
from mlsys_lab.kernels.matmul import numba_steps as products
from mlsys_lab.kernels.matmul.cuda_steps import WARP_TILE
from mlsys_lab.kernels.numba_launch import Recorder
from mlsys_lab.kernels.trace.events import WARP
from mlsys_lab.kernels.trace.sectors import SECTOR_BYTES

BANKS = 8
"""Banks of the drawn shared memory, a quarter of the real one's: rows of eight are legible."""


def grid() -> Markup:
    """Two blocks of 64 threads over an array of 100 numbers: which thread has which, and which have none."""
    numbers, threads, blocks = 100, 64, 2
    unit = 332 / (blocks * threads)
    block, thread = 1, 5
    own = block * threads + thread
    pieces = []
    for b in range(blocks):
        left = 4 + unit * threads * b
        pieces += [
            box(left - 2, 22, unit * threads - 2, 46),
            text(left, 14, f"block {b}", size="strong", anchor="start"),
        ]
        for warp in range(threads // WARP):
            first = b * threads + warp * WARP
            inside = min(WARP, numbers - first)
            x = 4 + unit * first
            if inside < WARP:
                pieces.append(box(x + unit * inside, 30, unit * (WARP - inside) - 7, 30, tone="orange"))
            pieces.append(box(x + 1, 30, unit * inside - (8 if inside == WARP else 1), 30, tone="blue"))
            pieces.append(text(x + unit * WARP / 2, 50, f"warp {warp}", size="small"))
    end = 4 + unit * numbers
    pieces += [box(4, 132, end - 4, 28, f"{numbers} numbers", "blue")]
    words = f"{blocks * threads - numbers} threads beyond the end"
    pieces += [box(end, 132, 336 - end, 28, tone="orange"), text(336, 178, words, "orange", size="small", anchor="end")]
    x = 4 + unit * (own + 0.5)
    pieces += [arrow(x, 70, x, 130, "blue")]
    words = f"i = {block} · {threads} + {thread} = {own}"
    pieces.append(text(x - 8, 104, words, "blue", size="small", anchor="end"))
    return drawing(
        "Two blocks of 64 threads, two warps each, above an array of 100 numbers. Thread 5 of block 1 has number 69. "
        "The first four threads of the last warp have a number, the other 28 lie beyond the end.",
        panel(340, 184, pieces),
    )


def coalescing() -> Markup:
    """Eight lanes load the red values of an image: interleaved with other colours, and in a plane."""
    pixels = 8
    return drawing(
        "Eight lanes load eight red values. Interleaved with green and blue they lie in three sectors of 32 bytes; "
        "in a plane of their own, in one.",
        _reds("interleaved", torch.ones(1, pixels, 3), "rgb" * pixels),
        _reds("planar", torch.ones(3, 1, pixels), "".join(colour * pixels for colour in "rgb")),
    )


def _reds(step: str, picture: torch.Tensor, colours: str) -> Panel:
    """What the first request of a step's warp touches, with the sectors around it."""
    recorder = Recorder()
    greys.run(step, picture, launch=recorder)
    rows = recorder.traces[0].of(buffer="picture")
    first = rows[rows["request"] == rows["request"].min()]
    itemsize = picture.element_size()
    wanted = {int(one["thread"]): int(one["offset"]) // itemsize for one in first}
    in_sector = SECTOR_BYTES // itemsize
    touched = sorted({number // in_sector for number in wanted.values()})
    pitch = 14
    pieces = [text(4, 17, "lanes", "quiet", size="small", anchor="start")]
    for lane, number in wanted.items():
        x = 64 + 36 * lane
        pieces += [box(x, 4, 20, 18, lane), line(x + 10, 22, 9 + pitch * number, 66, "orange")]
    tones = {"r": "orange", "g": "green", "b": "blue"}
    wide = in_sector * pitch
    for sector in range(len(colours) // in_sector):
        tone = "orange" if sector in touched else "quiet"
        pieces.append(box(2 + wide * sector, 66, wide - 1, 26, tone=tone))
    kinds = [tones[colour] if j in wanted.values() else "quiet" for j, colour in enumerate(colours)]
    pieces += cells(4, 72, 1, len(colours), lambda _, j: kinds[j], size=12)
    pieces += [text(10 + pitch * j, 107, one, tones[one], size="small") for j, one in enumerate(colours)]
    moved = f"{len(touched)} sector{'s' * (len(touched) > 1)}: {len(touched) * SECTOR_BYTES} bytes"
    pieces.append(text(4, 128, f"{moved} for {len(wanted) * itemsize}", size="small", anchor="start"))
    return panel(340, 134, pieces, title=step)


def barrier() -> Markup:
    """Two warps that reverse 64 elements in shared memory, without and with a barrier."""
    return drawing(
        "Two warps in time. Without a barrier warp 0 reads numbers 32 to 63 before warp 1 has written them. With one, "
        "both write, wait for each other, and then read.",
        _warps({0: (0, 1), 1: (2, 3)}, None),
        _warps({0: (0, 2), 1: (0, 2)}, 2),
    )


def _warps(at: dict[int, tuple[int, int]], meeting: int | None) -> Panel:
    """When each warp writes its own half and reads the other's, in columns of time."""
    pieces, wide = [], 70
    for warp, times in at.items():
        y = 10 + 44 * warp
        pieces.append(text(2, y + 20, f"warp {warp}", size="small", anchor="start"))
        own = f"{warp * WARP}–{(warp + 1) * WARP - 1}"
        other = f"{(1 - warp) * WARP}–{(2 - warp) * WARP - 1}"
        early = times[1] < at[1 - warp][0]
        for verb, numbers, column, tone in (("write", own, times[0], "blue"), ("read", other, times[1], "green")):
            kind = "orange" if verb == "read" and early else tone
            x = 58 + wide * column
            pieces += [box(x, y - 6, wide - 4, 38, tone=kind), text(x + 33, y + 9, verb, size="small")]
            pieces.append(text(x + 33, y + 24, numbers, kind, size="small"))
    if meeting is not None:
        x = 58 + wide * (meeting - 1) + 33
        pieces += [line(x, 0, x, 92, "violet"), text(x, 108, "barrier", "violet", size="small")]
    else:
        x = 58 + wide * at[0][1] + 33
        pieces += [text(x, 108, "not yet written", "orange", size="small"), arrow(x, 94, x, 46, "orange")]
    return panel(340, 114, pieces, title="without a barrier" if meeting is None else "with one")


THREADS, LANES = 8, 4
"""Threads of the drawn block, and of its warps; it has as many banks as a warp has lanes."""
OF_WARP = ("blue", "green")


def tree() -> Markup:
    """Eight numbers added up by eight threads: partners that drift apart, that come together, and in registers."""
    return drawing(
        "Four ways to add eight numbers in three levels, by two warps of four. Interleaved, both warps have a thread "
        "at work at two levels. Strided, one warp does all, but its words lie in one or two of the four banks. "
        "Sequential, one warp does all in one pass. With shuffles each warp adds in registers, and one exchange joins "
        "both sums.",
        _tree(lambda t, apart: t if t % (2 * apart) == 0 else None, (1, 2, 4), "interleaved"),
        _tree(lambda t, apart: 2 * apart * t if 2 * apart * t < THREADS else None, (1, 2, 4), "strided"),
        _tree(lambda t, apart: t if t < apart else None, (4, 2, 1), "sequential"),
        _shuffles(),
    )


def _across(t: int) -> float:
    """Where the middle of thread t's box, or of word t's, lies."""
    return 12 + 19 * t + 8 * (t // LANES)


def _tree(adds: Callable[[int, int], int | None], distances: tuple[int, ...], title: str) -> Panel:
    """Levels of a tree in shared memory: `adds` gives the word to which a thread adds the one `apart` further on."""
    held = [1] * THREADS
    pieces = [text(_across(t), 13, t % LANES, "quiet", size="small") for t in range(THREADS)]
    pieces.append(text(178, 13, "bank", "quiet", size="small", anchor="start"))
    pieces += [box(_across(t) - 8, 22, 16, 18, 1, OF_WARP[t // LANES]) for t in range(THREADS)]
    for level, apart in enumerate(distances):
        y = 78 + 56 * level
        words = {word: t // LANES for t in range(THREADS) if (word := adds(t, apart)) is not None}
        passes = max(
            sum(word % LANES == bank and owner == warp for word, owner in words.items())
            for bank in range(LANES)
            for warp in range(2)
        )
        pieces.append(line(2, y - 29, 170, y - 29, "violet"))
        for word, warp in words.items():
            held[word] += held[word + apart]
            pieces.append(arrow(_across(word + apart), y - 37, _across(word) + 3, y - 1, "plain"))
            pieces.append(line(_across(word), y - 37, _across(word), y, OF_WARP[warp]))
        for word in range(THREADS):
            tone = OF_WARP[words[word]] if word in words else "quiet"
            pieces.append(box(_across(word) - 8, y, 16, 18, held[word] if word in words else "", tone))
        busy = len(set(words.values()))
        pieces.append(text(178, y + 5, f"{busy} warp{'s' * (busy > 1)}", size="small", anchor="start"))
        count = f"{passes} pass{'es' * (passes > 1)}"
        pieces.append(text(178, y + 21, count, "orange" if passes > 1 else "plain", size="small", anchor="start"))
    pieces.append(line(2, 217, 170, 217, "violet"))
    pieces.append(text(2, 236, f"{len(distances) + 1} barriers", "violet", size="small", anchor="start"))
    return panel(244, 242, pieces, title=title)


def _shuffles() -> Panel:
    """The same sum: inside a warp from register to register, between the warps once through shared memory."""
    warps = range(0, THREADS, LANES)
    rows: tuple[tuple[float, int, dict[int, int]], ...] = (  # y, how far the partner is, and numbers by lane or word
        (22, 0, dict.fromkeys(range(THREADS), 1)),
        (62, 2, {first + lane: 2 for first in warps for lane in range(2)}),
        (102, 1, dict.fromkeys(warps, LANES)),
        (150, 0, dict.fromkeys(range(len(warps)), LANES)),
        (190, 1, {0: THREADS}),
    )
    shared = 3  # the row that is no lane's own
    pieces = [text(_across(t), 13, t % LANES, "quiet", size="small") for t in range(THREADS)]
    pieces.append(text(178, 13, "lane", "quiet", size="small", anchor="start"))
    top = 0.0
    for number, (y, apart, held) in enumerate(rows):
        for t in held if number else ():
            source = t * LANES if number == shared else t + apart
            tone = "violet" if number == shared else "plain"
            pieces.append(arrow(_across(source), top, _across(t) + (3 if apart else 0), y - 1, tone))
            if apart:
                pieces.append(line(_across(t), top, _across(t), y, OF_WARP[t // LANES]))
        for t in held if number == shared else range(THREADS):
            tone = "violet" if number == shared else OF_WARP[t // LANES] if t in held else "quiet"
            pieces.append(box(_across(t) - 8, y, 16, 18, held.get(t, ""), tone))
        top = y + 19
    pieces.append(line(2, 176, 170, 176, "violet"))
    for y, words in ((76, "2 warps"), (116, "2 warps"), (164, "shared"), (204, "1 warp")):
        pieces.append(text(178, y, words, "violet" if words == "shared" else "plain", size="small", anchor="start"))
    pieces.append(text(2, 236, "1 barrier", "violet", size="small", anchor="start"))
    return panel(244, 242, pieces, title="shuffles")


def banks() -> Markup:
    """A column of a tile in shared memory: plain, with a padding word per row, and swizzled."""
    return drawing(
        "A shared memory of eight banks, words counted along the rows. With rows of eight words, all elements of a "
        "column lie in one bank and take eight passes. With one padding word after each row, or with columns "
        "permuted by an exclusive or with the row, they lie in eight banks.",
        _column(lambda row, column: BANKS * row + column, "plain"),
        _column(lambda row, column: (BANKS + 1) * row + column, "padded"),
        _column(lambda row, column: BANKS * row + (column ^ row), "swizzled"),
    )


def _column(place: Callable[[int, int], int], title: str, column: int = 2) -> Panel:
    """Words of a tile by bank; those of one column carry the number of the lane that reads them."""
    held = {place(row, other) for row in range(BANKS) for other in range(BANKS)}
    wanted = {place(row, column): row for row in range(BANKS)}
    passes = max(sum(word % BANKS == bank for word in wanted) for bank in range(BANKS))
    tone = "orange" if passes > 1 else "blue"

    def kind(row: int, bank: int) -> str:
        word = BANKS * row + bank
        if word in wanted:
            return tone
        return "quiet" if word in held else ""

    rows, size = max(held) // BANKS + 1, 16
    pieces = [text(14 + 18 * bank, 13, bank, "quiet", size="small") for bank in range(BANKS)]
    pieces += cells(6, 20, rows, BANKS, kind, size=size)
    for word, lane in wanted.items():
        pieces.append(text(14 + 18 * (word % BANKS), 33 + 18 * (word // BANKS), lane, size="small"))
    words = f"{passes} passes" if passes > 1 else "1 pass"
    pieces.append(text(6, 200, words, tone, size="small", anchor="start"))
    return panel(162, 206, pieces, title=title)


def tiles() -> Markup:
    """Which values of both matrices a thread loads at one step along k, in three steps of the ladder."""
    side = products.SIDE
    return drawing(
        "Three products, a on the left, b above, c in the corner. A naive thread takes a number of each from memory "
        "for one multiply-add. With a shared tile it takes them from tiles of a and b that its block holds. With a "
        "register tile it takes four of each for sixteen, which lie among those of the block's other threads.",
        _factors("naive", 1, 0),
        _factors("shared tile", 1, 6),
        _factors("register tile", side, 3),
    )


def _factors(title: str, side: int, threads: int) -> Panel:
    """Factors and result of a product: a block of `threads` × `threads`, each with side × side elements of c.

    A thread's numbers stand `threads` apart, as the kernels have it; without a block's tiles `threads` is 0.
    """
    whole, depth, left, top, pitch = 116, 48, 62, 62, 8
    pieces = [box(left, 8, whole, depth), box(8, top, depth, whole), box(left, top, whole, whole)]
    pieces += [text(8 + depth / 2, top - 6, "a"), text(left - 9, 8 + depth / 2 + 5, "b")]
    pieces.append(text(left + whole - 6, top + whole - 5, "c"))
    k, across = 24, threads * side
    wide = pitch * across + 3
    if threads:
        pieces += [box(left + 6, k - 2, wide, 20, tone="violet"), box(k - 2, top + 6, 20, wide, tone="violet")]
        pieces.append(box(left + 6, top + 6, wide, wide))
    mine = {threads // 2 + threads * i for i in range(side)} if threads else {5}

    def tone(*place: int, own: str) -> str:
        return own if mine.issuperset(place) else "quiet" if threads else ""

    many, corner = across or 6, (left + 8, top + 8)
    pieces += cells(corner[0], k + 4.5, 1, many, lambda _, j: "orange" if j in mine else "", size=7, gap=1)
    pieces += cells(k + 4.5, corner[1], many, 1, lambda i, _: "blue" if i in mine else "", size=7, gap=1)
    pieces += cells(*corner, many, many, lambda i, j: tone(i, j, own="green"), size=7, gap=1)
    if side == 1:
        (at,) = mine
        x, y = (start + pitch * at + 3.5 for start in corner)
        pieces += [arrow(x, k + 13, x, y - 5, "orange"), arrow(k + 13, y, x - 5, y, "blue")]
    place = "the tiles" if threads else "memory"
    sums = f"{side * side} multiply-add{'s' * (side > 1)}"
    pieces += [text(8, 198, f"{2 * side} from {place}", size="small", anchor="start")]
    pieces.append(text(8, 215, sums, size="small", anchor="start"))
    return panel(184, 222, pieces, title=title)


def buffers() -> Markup:
    """Tiles that are fetched and multiplied in turns, and in two buffers at the same time."""
    tile, h100 = WARP_TILE, device("H100")
    size_bytes = (tile.rows + tile.columns) * tile.depth * 4
    copy_s = size_bytes / (h100.memory_bandwidth_bytes_per_s / h100.units)
    multiply_s = cost.flops(tile.rows, tile.columns, tile.depth) / (h100.peak("fp32") / h100.units)
    turns = 4
    scale = 274 / (turns * (copy_s + multiply_s))

    def row(count: int, title: str) -> Panel:
        pieces = [text(2, y, word, size="small", anchor="start") for y, word in ((24, "copy"), (62, "multiply"))]
        copied, free = [0.0] * turns, [0.0] * turns
        for turn in range(turns):
            # A copy waits for the copy before it, and for the product that last used its buffer.
            start = max(copied[turn - 1] if turn else 0.0, free[turn - count] if turn >= count else 0.0)
            copied[turn] = start + copy_s
            begins = max(copied[turn], free[turn - 1] if turn else 0.0)
            free[turn] = begins + multiply_s
            tone = ("blue", "orange")[turn % count]
            pieces.append(box(60 + scale * start, 6, scale * copy_s - 1, 28, turn, tone))
            pieces.append(box(60 + scale * begins, 44, scale * multiply_s - 1, 28, turn, tone))
        end = 60 + scale * free[-1]
        words = f"{1e6 * free[-1]:.1f} µs"
        pieces += [line(end, 2, end, 76), text(end, 92, words, size="small", anchor="end")]
        return panel(340, 98, pieces, title=title)

    return drawing(
        "Two rows of copies above products, in time. With one buffer the SM multiplies only between two "
        "copies. With two, the next tiles arrive in the other buffer meanwhile.",
        row(1, "one buffer"),
        row(2, "two buffers"),
    )


def fragments() -> Markup:
    """The elements of a 16 × 8 × 16 tensor-core tile that one lane of a warp holds."""
    lane = 5
    group, pair = divmod(lane, 4)
    along_k = {2 * pair, 2 * pair + 1, 2 * pair + 8, 2 * pair + 9}
    rows, columns = {group, group + 8}, {2 * pair, 2 * pair + 1}
    left, right, top, low, pitch = 24, 216, 26, 226, 11

    def matrix(x: float, y: float, down: int, across: int, tone: str, mine: Callable[[int, int], bool]) -> list[str]:
        return cells(x, y, down, across, lambda i, j: tone if mine(i, j) else "quiet", size=pitch - 1, gap=1)

    pieces = matrix(left, low, 16, 16, "blue", lambda i, j: i in rows and j in along_k)
    pieces += matrix(right, top, 16, 8, "orange", lambda i, j: i in along_k and j == group)
    pieces += matrix(right, low, 16, 8, "green", lambda i, j: i in rows and j in columns)
    for i in sorted(rows):
        pieces.append(text(left - 5, low + pitch * i + 9, i, size="small", anchor="end"))
    for j in sorted(along_k - {3, 11}):
        pieces.append(text(left + pitch * (j + 1), low + pitch * 16 + 14, f"{j}, {j + 1}", size="small"))
        pieces.append(text(right - 5, top + pitch * (j + 1) + 4, f"{j}, {j + 1}", size="small", anchor="end"))
    pieces.append(text(right + pitch * (group + 0.5), top - 6, group, size="small"))
    pieces.append(text(right + pitch * (2 * pair + 1), low + pitch * 16 + 14, "2, 3", size="small"))
    pieces += [
        text(left, low - 10, "a, 16 × 16: 8 values", "blue", size="small", anchor="start"),
        text(left, top + 40, "lane 5", size="strong", anchor="start"),
        text(left, top + 60, "b, 16 × 8: 4 values", "orange", size="small", anchor="start"),
        text(left, top + 80, "d, 16 × 8: 4 values", "green", size="small", anchor="start"),
    ]
    return drawing(
        "A tile of a with 16 by 16 elements, of b with 16 by 8, and of d with 16 by 8. Lane 5 holds rows 1 and 9 of a "
        "in columns 2, 3, 10 and 11, the same numbers as rows of b in column 1, and rows 1 and 9 of d in columns 2 "
        "and 3.",
        panel(340, low + pitch * 16 + 20, pieces),
    )


DRAWINGS = {
    "grid": grid,
    "coalescing": coalescing,
    "barrier": barrier,
    "tree": tree,
    "banks": banks,
    "tiles": tiles,
    "buffers": buffers,
    "fragments": fragments,
}
