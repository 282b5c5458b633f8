"""Drawings of chapter 12: the two phases, attention, KV heads, windows, experts, blocks, chunks, a speculative step.

Blocks and rings are read from caches of the package, times of steps from its bounds.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from markupsafe import Markup

from book.drawings.kit import Panel, arrow, box, cells, drawing, line, panel, text
from mlsys_lab.configs import preset
from mlsys_lab.flops import cache
from mlsys_lab.flops.roofline import bound_on
from mlsys_lab.flops.step import step_cost
from mlsys_lab.hardware import device
from mlsys_lab.widgets.cache_fill import cache_fill_data

CELL = 18


def phases() -> Markup:
    """What is multiplied in each phase, and both in time."""
    shapes = []
    for title, rows, words in (("prefill", 84, "T rows"), ("decode", 12, "1 row")):
        top = 60 - rows / 2
        pieces = [box(8, top, 30, rows, tone="blue"), text(23, 118, words, "blue", size="small")]
        pieces += [text(50, 65, "·"), box(62, 30, 60, 60, "weights"), text(134, 65, "=")]
        pieces.append(box(146, top, 16, rows, tone="green"))
        shapes.append(panel(170, 124, pieces, title=title))
    pieces, x = [box(4, 30, 110, 34, "prompt at once", "blue")], 118
    for number in range(2, 7):
        pieces += [box(x, 30, 38, 34, number, "green"), arrow(x - 2, 64, x - 2, 92, "green")]
        x += 42
    pieces.append(arrow(x - 2, 64, x - 2, 92, "green"))
    pieces += [line(4, 10, 116, 10, "blue"), text(60, 24, "first token", "blue", size="small")]
    pieces += [line(158, 10, 200, 10, "green"), text(206, 15, "between tokens", "green", size="small", anchor="start")]
    pieces.append(text(116, 108, "tokens come out", "quiet", size="small", anchor="start"))
    return drawing(
        "Prefill multiplies the weights with many rows at once, decode with one. In time: one long step over the whole "
        "prompt gives the first token, then short steps give one token each.",
        *shapes,
        panel(336, 114, pieces, title="in time"),
    )


def attention_rows() -> Markup:
    """Which scores token 5 costs, without and with a cache."""
    n = 6
    return drawing(
        "Two triangles of scores, six queries by six keys. Without a cache all 21 are computed once more for token 5. "
        "With one only the last row is, of 6, over keys that were kept.",
        _mask(n, lambda row, _: "orange", title="token 5, without a cache"),
        _mask(n, lambda row, _: "blue" if row == n - 1 else "quiet", title="with a cache"),
    )


def heads() -> Markup:
    """Eight query heads, and how many keys and values they share."""
    deepseek = preset("deepseek-v3")
    assert deepseek.latent is not None
    width = cache.elements_per_token(deepseek) / deepseek.latent.nope_dim
    panels = [
        _heads(8 // k, title) for k, title in ((8, "multi-head: 16 H"), (2, "grouped: 4 H"), (1, "multi-query: 2 H"))
    ]
    latent = _heads(8, f"latent: {width:g} H", "one vector")
    return drawing(
        "Eight query heads above. Multi-head attention has a key and a value for each; grouped attention two pairs for "
        "four heads each; multi-query one pair for all; latent attention one compressed vector.",
        *panels,
        latent,
    )


def window() -> Markup:
    """What a query sees with a window, and the ring of slots that is enough for it."""
    n, reach = 9, 4
    kept = {position % reach: position for position in range(n)}
    ring = [box(6 + 40 * slot, 8, 36, 30, kept[slot], "blue") for slot in range(reach)]
    ring.append(arrow(24 + 40 * ((n - 1) % reach), 74, 24 + 40 * ((n - 1) % reach), 42, "blue"))
    ring.append(text(86, 92, f"{n - 1} took the place of {n - 1 - reach}", "blue", size="small"))
    return drawing(
        "Nine queries by nine keys: each query sees itself and the three keys before it. A ring of four slots holds "
        "positions 8, 5, 6 and 7.",
        _mask(n, lambda row, key: "blue" if key > row - reach else "quiet", title="a window of 4"),
        panel(172, 100, ring, title="slots of token 8"),
    )


def experts() -> Markup:
    """Experts of one layer that a decode step reads, for batches of three sizes; the routing is drawn with a seed."""
    moe = preset("deepseek-v3").experts
    assert moe is not None
    draw, side = random.Random(0), 16
    panels = []
    for batch in (1, 8, 64):
        chosen = {expert for _ in range(batch) for expert in draw.sample(range(moe.count), moe.active)}
        tone = lambda i, j, chosen=chosen: "blue" if side * i + j in chosen else "quiet"  # noqa: E731
        title = f"{batch} sequence{'s' * (batch > 1)}: {len(chosen)} of {moe.count}"
        panels.append(panel(168, 168, cells(4, 4, side, side, tone, size=8), title=title))
    return drawing(
        "Three squares of 256 experts. With one sequence 8 are read, with 8 sequences about 60, with 64 nearly all.",
        *panels,
    )


def pages() -> Markup:
    """Block tables of three texts and the pool that their pages lie in, as the figure's paged cache has them."""
    paged = next(one for one in cache_fill_data()["layouts"] if one["name"] == "paged")
    slots, size = paged["steps"][8]["slots"], paged["group_size"]
    tones = {"A": "blue", "B": "orange", "C": "green"}
    pool = [slots[first : first + size] for first in range(0, len(slots), size)]
    owners = ["".join(page[0][1]) for page in pool]
    tables, rows = [], []
    for number, (name, tone) in enumerate(tones.items()):
        y = 8 + 40 * number
        mine = sorted((page[0][0], at) for at, page in enumerate(pool) if name in owners[at])
        tables.append(text(12, y + 20, name, tone, size="strong"))
        tables += [box(28 + 34 * place, y, 30, 28, at, tone) for place, (_, at) in enumerate(mine)]
    for at, page in enumerate(pool):
        x, y = 6 + 82 * (at % 4), 22 + 50 * (at // 4)
        tone = "violet" if len(owners[at]) > 1 else tones.get(owners[at], "quiet")
        written = [position for position, *_ in page if position >= 0]
        words = f"{written[0]}–{written[-1]}" if len(written) > 1 else "".join(map(str, written))
        rows += [text(x + 4, y - 4, at, "quiet", size="small", anchor="start"), box(x, y, 76, 24, words, tone)]
    return drawing(
        "Three texts with tables of page numbers, and a pool of twelve pages. The first two pages are in the tables of "
        "A and of B; the others belong to one text each, in no order.",
        panel(170, 124, tables, title="block tables"),
        panel(336, 150, rows, title="pool: tokens in each page"),
    )


def chunks() -> Markup:
    """Steps while a prompt joins texts that are being written: whole, and in chunks."""
    prompt, chunk = 8192, 512
    alone, whole = _step_s(0, 0), _step_s(prompt, 0)
    pieces = [_step_s(chunk, past) for past in range(0, prompt, chunk)]
    scale = 334 / (whole + 3 * alone)

    def row(steps: list[tuple[float, str]], title: str) -> Panel:
        x, drawn = 2.0, []
        for time_s, tone in steps:
            if x + scale * time_s > 338:
                break
            drawn += [
                box(x, 26, scale * time_s - 1, 30, tone=tone),
                line(x + scale * time_s, 56, x + scale * time_s, 70, "green"),
            ]
            x += scale * time_s
        longest = f"longest wait for a token {1e3 * max(time_s for time_s, _ in steps):.0f} ms"
        return panel(340, 74, drawn, text(2, 16, longest, "quiet", size="small", anchor="start"), title=title)

    return drawing(
        "Two rows of steps in time. With the whole prompt in one step, those who wait for a token wait for all of it. "
        "In chunks every step is a little longer, and each still gives its tokens.",
        row([(alone, "green"), (whole, "orange"), *[(alone, "green")] * 9], "the prompt in one step"),
        row(
            [(alone, "green"), *((time_s, "orange") for time_s in pieces), *[(alone, "green")] * 9],
            f"in chunks of {chunk}",
        ),
    )


def speculation() -> Markup:
    """One step with four drafts, of which two stay."""
    tokens = ("is", "bound", "by", "the")
    marks = (("green", "stays"), ("green", "stays"), ("orange", "goes"), ("quiet", "cut off"))
    pieces = [text(4, 30, "drafts", size="small", anchor="start")]
    pieces += [box(62 + 68 * i, 10, 62, 30, word, "blue") for i, word in enumerate(tokens)]
    pieces.append(box(62, 62, 272, 30, "the model checks all in one step"))
    for i, (tone, word) in enumerate(marks):
        x = 93 + 68 * i
        pieces += [arrow(x, 42, x, 60, "quiet"), arrow(x, 94, x, 112, "quiet"), text(x, 128, word, tone, size="small")]
    pieces.append(text(4, 160, "written", size="small", anchor="start"))
    pieces += [
        box(62 + 68 * i, 140, 62, 30, word, tone)
        for i, (word, tone) in enumerate((("is", "green"), ("bound", "green"), ("on", "violet")))
    ]
    return drawing(
        "Four drafted tokens are checked in one step of the model. Two stay, the third goes and the fourth is cut off; "
        "in the third's place comes a token of the model's own. Three tokens are written.",
        panel(340, 176, pieces),
    )


def _step_s(new: int, past: int, sequences: int = 32, context: int = 2048) -> float:
    """Least seconds of a step on an H100: a token for each sequence, and `new` tokens of a prompt after `past`."""
    prompt = [(new, past)] if new else []
    cost = step_cost(preset("llama3-8b"), [(1, context - 1)] * sequences + prompt)
    return bound_on(device("H100"), "bf16", cost.flops, cost.memory_bytes).time_s


def _mask(n: int, tone: Callable[[int, int], str], title: str) -> Panel:
    """Scores of n queries (rows) by n keys up to each query's own, in tones by row and key."""
    cells = [
        box(24 + CELL * key, 4 + CELL * row, CELL - 2, CELL - 2, tone=tone(row, key))
        for row in range(n)
        for key in range(row + 1)
    ]
    labels = [text(12, 17 + CELL * row, row, "quiet", size="small") for row in range(n)]
    return panel(28 + CELL * n, 8 + CELL * n, cells, labels, title=title)


def _heads(group: int, title: str, shared: str = "") -> Panel:
    """Eight query heads and the keys and values that each `group` of them shares."""
    at = [9 + 18 * i for i in range(8)]
    pieces = [box(x - 7, 8, 14, 20, tone="blue") for x in at]
    for first in range(0, 8, group):
        middle = (at[first] + at[first + group - 1]) / 2
        pieces += [line(x, 28, middle, 58) for x in at[first : first + group]]
        if shared:
            pieces.append(box(middle - 46, 58, 92, 26, shared, "violet"))
        else:
            pieces += [box(middle - 8, 58, 7, 26, tone="orange"), box(middle + 1, 58, 7, 26, tone="green")]
    return panel(144, 90, pieces, title=title)


DRAWINGS = {
    "phases": phases,
    "attention_rows": attention_rows,
    "heads": heads,
    "window": window,
    "experts": experts,
    "pages": pages,
    "chunks": chunks,
    "speculation": speculation,
}
