"""Drawings of chapter 09: rings, trees, reduction in the switch, islands, shared uplinks, NCCL's protocols, deadlock.

What they show is computed: places in trees by `comm.trees`, chunks of a ring by running it,
others by following an algorithm's steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from book.drawings.kit import CHUNKS, Panel, arrow, box, chunk_row, drawing, line, on_circle, panel, rank, text
from mlsys_lab.comm.collectives.ring_states import ring_states
from mlsys_lab.comm.cost.nccl import payload_fraction
from mlsys_lab.comm.trees import TreeNode, binomial_tree_node, double_tree_nodes

Held = list[list[int]]
"""By rank and chunk: how many ranks' numbers are in the sum that this rank has of it."""


def ring() -> Markup:
    """All-reduce of four ranks on a ring, step by step."""
    p = 4
    places = on_circle(p, 69, 60, 42)
    circle = [arrow(*places[r], *places[(r + 1) % p], "quiet", short=16) for r in range(p)]
    circle += [rank(x, y, r) for r, (x, y) in enumerate(places)]
    panels = [panel(138, 120, circle, title="the ring")]
    for number, state in enumerate(ring_states(p)):
        words = f"{'add' if state.adds else 'copy'}, step {(number - 1) % (p - 1) + 1}" if number else "start"
        held = [[len(ranks) for ranks in row] for row in state.held]
        received = [[one.chunk for one in state.arrivals if one.destination == r] for r in range(p)]
        panels.append(_state(held, p, received, title=words))
    return drawing(
        "Four ranks, four chunks each. In three steps sums travel to the right until each rank has the sum of one "
        "chunk; in three more the finished chunks travel on until every rank has all.",
        *panels,
    )


def tree() -> Markup:
    """Broadcast by a binomial tree of eight ranks, as arrows in time."""
    p = 8
    across = [22 + 42 * r for r in range(p)]
    rounds = (p - 1).bit_length()
    heard, pieces = {0: 46.0}, []
    for number in range(rounds):
        y, distance = 52 + 50 * number, 1 << (rounds - 1 - number)
        for sender in sorted(heard):
            receiver = sender + distance
            pieces.append(arrow(across[sender], y, across[receiver], y + 38, "blue"))
        heard |= {sender + distance: y + 38.0 for sender in heard}
        assert all(binomial_tree_node(r + distance, p).parent == r for r in list(heard)[: len(heard) // 2])
    bottom = 52 + 50 * rounds
    lives = [line(across[r], 36, across[r], heard[r]) for r in range(1, p)]
    lives += [line(across[r], heard[r], across[r], bottom, "blue") for r in range(p)]
    heads = [rank(x, 20, r, "blue" if r == 0 else "plain") for r, x in enumerate(across)]
    return drawing(
        "Eight ranks side by side, time downwards. Rank 0 sends to 4; then 0 and 4 send to 2 and 6; then these four to "
        "the others.",
        panel(across[-1] + 22, bottom + 4, lives, pieces, heads),
    )


def double_tree() -> Markup:
    """Two binary trees over eight ranks, in which the leaves of one are inside the other."""
    p = 8
    places = [double_tree_nodes(r, p) for r in range(p)]
    first, second = ([pair[i] for pair in places] for i in (0, 1))
    return drawing(
        "Two trees over ranks 0 to 7. In the first the odd ranks are leaves, in the second the even ranks are.",
        _tree(first, "blue", "first half of the array"),
        _tree(second, "orange", "second half"),
    )


def halving_doubling() -> Markup:
    """All-reduce of four ranks by recursive halving and doubling, step by step."""
    p = 4
    held = [[1] * p for _ in range(p)]
    panels = [_state(held, p, [], title="start")]
    distances = [1 << k for k in reversed(range((p - 1).bit_length()))]
    for distance in distances:
        # What a rank goes on with: chunks whose numbers are its own in the binary places from this distance up.
        got = [[chunk for chunk in range(p) if chunk // distance == r // distance] for r in range(p)]
        held = [[2 * one if chunk in got[r] else one for chunk, one in enumerate(row)] for r, row in enumerate(held)]
        panels.append(_state(held, p, got, title=f"halve: {distance} away"))
    for distance in reversed(distances):
        got = [[chunk for chunk in range(p) if chunk // distance == (r ^ distance) // distance] for r in range(p)]
        held = [[p if chunk in got[r] else one for chunk, one in enumerate(row)] for r, row in enumerate(held)]
        panels.append(_state(held, p, got, title=f"double: {distance} away"))
    return drawing(
        "Four ranks, four chunks each. Ranks two apart exchange halves and add, so that each goes on with two chunks; "
        "then neighbours, so that each has the sum of one. Then finished chunks go back the same way, one and two.",
        *panels,
    )


def rails() -> Markup:
    """Two nodes of four GPUs: a switch inside each, and a rail between GPUs of one number."""
    pieces = []
    for i, tone in enumerate(CHUNKS):
        y = 44 + 44 * i
        pieces += [line(104, y, 236, y, tone), text(170, y - 6, f"rail {i}", tone, size="small")]
        for node, x in enumerate((84, 256)):
            pieces.append(line(36 if node == 0 else 304, y, x, y))
            pieces.append(rank(x, y, 4 * node + i, tone))
    for node, x in enumerate((14, 304)):
        pieces.append(box(x, 26, 22, 168, tone="quiet"))
        pieces.append(text((4, 336)[node], 14, f"node {node}", "quiet", size="small", anchor=("start", "end")[node]))
    pieces.append(text(4, 212, "NVSwitch", "quiet", size="small", anchor="start"))
    pieces.append(text(336, 212, "NVSwitch", "quiet", size="small", anchor="end"))
    return drawing(
        "Two nodes of four GPUs. In each, all GPUs are connected to an NVSwitch; GPU i of one node and GPU i of the "
        "other share rail i.",
        panel(340, 218, pieces),
    )


def uplink() -> Markup:
    """One leaf switch of a fat tree, from which messages of two rings leave at once."""
    across = [30 + 40 * r for r in range(8)]
    tones = ["blue"] * 4 + ["orange"] * 4
    pieces = [box(30, 4, 280, 28, "spine"), box(10, 104, 320, 28, "leaf switch")]
    leaving = range(3, 8)
    for place, r in enumerate(leaving):
        x = 130 + 20 * place
        pieces += [arrow(x, 104, x, 34, tones[r]), arrow(across[r], 172, across[r], 134, tones[r])]
    pieces += [text(58, 66, "uplink:", "quiet", size="small"), text(58, 82, "2 ports wide", "quiet", size="small")]
    pieces += [arrow(across[r], 186, across[r + 1], 186, "blue", short=15, bend=-26) for r in range(3)]
    pieces += [rank(x, 186, r, tone) for r, (x, tone) in enumerate(zip(across, tones, strict=True))]
    return drawing(
        "A leaf switch with eight ranks. Ranks 0 to 2 send to their neighbour under the leaf; rank 3 and all of ranks "
        "4 to 7 send up to the spine, through an uplink that is as wide as two ports.",
        panel(340, 218, pieces),
    )


def hierarchical() -> Markup:
    """All-reduce over two islands of four ranks, in three phases."""
    p, island = 8, 4
    held = [[1] * island for _ in range(p)]
    panels = [_state(held, p, [], title="start", gap=island)]
    for words, count in (("1. scatter inside", island), ("2. across", p)):
        own = [r % island for r in range(p)]
        held = [[count if chunk == own[r] else one for chunk, one in enumerate(row)] for r, row in enumerate(held)]
        panels.append(_state(held, p, [[chunk] for chunk in own], title=words, gap=island))
    got = [[chunk for chunk in range(island) if chunk != r % island] for r in range(p)]
    panels.append(_state([[p] * island for _ in range(p)], p, got, title="3. gather inside", gap=island))
    return drawing(
        "Two islands of four ranks. First each rank gets its island's sum of one chunk, then that chunk's sum over "
        "both islands, then the other three chunks from its own island.",
        *panels,
    )


def protocols() -> Markup:
    """What a receiver waits for in NCCL's three protocols: flags among the data, or one behind it."""
    left, wide = 8, 320
    rows = [text(left, 16, "data", "blue", size="small", anchor="start"), text(328, 16, "flag", "orange", anchor="end")]
    units = (("LL: a line of 16 bytes", 2), ("LL128: a line of 128 bytes", 1), ("Simple: a whole chunk", 1))
    for number, (title, pairs) in enumerate(units):
        y = 44 + 62 * number
        rows.append(text(left, y - 7, title, size="small", anchor="start"))
        flag = wide * (1 - payload_fraction(title.split(":")[0])) / pairs or 3.0
        for pair in range(pairs):
            x, data = left + wide / pairs * pair, wide / pairs - flag
            rows += [box(x, y, data, 28, tone="blue"), box(x + data, y, flag, 28, tone="orange")]
    return drawing(
        "Three rows. LL: 4 bytes of data, 4 of flag, 4 of data, 4 of flag. LL128: 120 bytes of data, 8 of flag. "
        "Simple: a whole chunk of data, and one flag after it.",
        panel(340, 204, rows),
    )


def shots() -> Markup:
    """What rank 0 reads in a one-shot all-reduce, and in the two steps of a two-shot one."""
    p = 4
    start = [[1] * p for _ in range(p)]
    halfway = [[p if chunk == r else 1 for chunk in range(p)] for r in range(p)]
    peers = range(1, p)
    return drawing(
        "Four ranks with four chunks each. One-shot: rank 0 reads all chunks of ranks 1 to 3. Two-shot: it first reads "
        "chunk 0 of each of them, and then the finished chunk of each.",
        _state(start, p, [range(p) if r in peers else [] for r in range(p)], title="one-shot"),
        _state(start, p, [[0] if r in peers else [] for r in range(p)], title="two-shot, step 1"),
        _state(halfway, p, [[r] if r in peers else [] for r in range(p)], title="two-shot, step 2"),
    )


def in_switch() -> Markup:
    """One chunk of an all-reduce by NVLink SHARP: summed on its way to its owner, then copied to all."""
    p, top, bottom = 4, 40, 112
    across = [24 + 40 * r for r in range(p)]
    heads = [box(8, 8, 152, 30, "NVSwitch"), *(rank(x, 128, r) for r, x in enumerate(across))]
    up = [arrow(x - 6, bottom, x - 6, top, "blue") for x in across]
    down = [arrow(x + 6, top, x + 6, bottom, "green") for x in across]
    return drawing(
        "Four GPUs under an NVSwitch, twice. First all four send their part of a chunk up, and the switch sends the "
        "sum down to GPU 0. Then GPU 0 sends the sum up, and the switch sends a copy down to all four.",
        panel(168, 166, heads, up, down[:1], text(84, 162, "4 send, 1 receives", size="small"), title="1. reduce"),
        panel(168, 166, heads, up[:1], down, text(84, 162, "1 sends, 4 receive", size="small"), title="2. multicast"),
    )


def all_to_all() -> Markup:
    """Chunks of four ranks before and after an all-to-all: rows become columns."""
    p = 4

    def rows(title: str, ends: Callable[[int, int], tuple[int, int]]) -> Panel:
        pieces = []
        for r in range(p):
            pieces.append(text(8, 22 + 34 * r, r, "quiet", size="small"))
            for i in range(p):
                source, target = ends(r, i)
                pieces.append(box(22 + 38 * i, 4 + 34 * r, 34, 26, f"{source}→{target}", CHUNKS[target]))
        return panel(176, 138, pieces, title=title)

    return drawing(
        "Four ranks, one row each. Before, rank r has a chunk for each rank; after, it has the chunk that each rank "
        "had for it: rows have become columns.",
        rows("before", lambda r, i: (r, i)),
        rows("after", lambda r, i: (i, r)),
    )


def deadlock() -> Markup:
    """Three ranks that all send before they receive, and three that do not wait for their sends."""
    stuck = _programs(("send to {right}", "receive"), ("orange", "quiet"), 0)
    running = _programs(("isend to {right}", "receive", "wait"), ("green", "green", "green"), 1)
    return drawing(
        "First: three ranks wait in their sends, since none has come to its receive. Second: each starts its send, "
        "receives, and then waits for its send.",
        panel(320, 132, stuck, title="every rank waits to send"),
        panel(320, 176, running, title="sends in the background"),
    )


def _programs(lines: Sequence[str], tones: Sequence[str], busy: int) -> list[str]:
    """Three ranks' programs as columns of boxes, and each send's way to the receive of the next rank."""
    pieces = []
    for r in range(3):
        x = 8 + 106 * r
        pieces.append(text(x + 46, 16, f"rank {r}", size="strong"))
        for row, (words, tone) in enumerate(zip(lines, tones, strict=True)):
            pieces.append(box(x, 28 + 46 * row, 92, 30, words.format(right=(r + 1) % 3), tone))
        if r < 2:
            pieces.append(arrow(x + 84, 58, x + 116, 74, tones[busy]))
    pieces.append(text(312, 70, "→ 0", tones[busy], size="small", anchor="end"))
    pieces.append(text(8, 70, "2 →", tones[busy], size="small", anchor="start"))
    return pieces


def _tree(places: Sequence[TreeNode], tone: str, title: str) -> Panel:
    depth = [0] * len(places)
    for r in range(len(places)):
        parent = places[r].parent
        while parent is not None:
            depth[r], parent = depth[r] + 1, places[parent].parent
    at = [(20 + 40 * r, 20 + 52 * level) for r, level in enumerate(depth)]
    edges = [line(*at[r], *at[one.parent]) for r, one in enumerate(places) if one.parent is not None]
    heads = [rank(*at[r], r, tone if one.children else "plain") for r, one in enumerate(places)]
    return panel(40 * len(places), 40 + 52 * max(depth), edges, heads, title=title)


def _state(held: Held, p: int, marked: Sequence[Sequence[int]], *, title: str, gap: int = 0) -> Panel:
    """A row of chunks for each rank, filled by how much of the sum it has; a space after every `gap` ranks."""
    rows, y = [], 0.0
    for r, row in enumerate(held):
        y = 4 + 26 * r + (12 * (r // gap) if gap else 0)
        rows.append(text(8, y + 15, r, "quiet", size="small"))
        rows.append(chunk_row(24, y, [count / p for count in row], marked=marked[r] if marked else ()))
    return panel(138, y + 24, rows, title=title)


DRAWINGS = {
    "ring": ring,
    "tree": tree,
    "double_tree": double_tree,
    "halving_doubling": halving_doubling,
    "rails": rails,
    "uplink": uplink,
    "hierarchical": hierarchical,
    "all_to_all": all_to_all,
    "shots": shots,
    "in_switch": in_switch,
    "protocols": protocols,
    "deadlock": deadlock,
}
