"""Drawings of chapter 11: what can be sharded, a tensor-parallel MLP, sequence parallelism, ring attention, Ulysses,
the causal mask, pipeline schedules, token dispatch and combine, process groups, and memory by layout.

Schedules are played by the simulator, scores counted and choices routed by `mlsys_lab.parallel`, bytes counted by
`mlsys_lab.flops`.
"""

from __future__ import annotations

import torch
from markupsafe import Markup

from book.drawings.kit import CHUNKS, Panel, arrow, box, cells, drawing, line, on_circle, panel, rank, text
from mlsys_lab import hardware
from mlsys_lab.comm.simulate import Cluster
from mlsys_lab.configs import preset
from mlsys_lab.flops.bounds import machine
from mlsys_lab.flops.defaults import RECIPE
from mlsys_lab.flops.estimate import training_memory
from mlsys_lab.flops.layout import Layout
from mlsys_lab.flops.memory import RECIPES
from mlsys_lab.parallel.context import contiguous_positions, count_scores, zigzag_positions
from mlsys_lab.parallel.expert import route
from mlsys_lab.parallel.mesh import mesh_coordinates
from mlsys_lab.parallel.pipeline import gpipe, issue_schedule, one_forward_one_backward, zb_h1
from mlsys_lab.parallel.pipeline.schedules import Schedule, has_weight_passes, max_in_flight

P = 4


def cuts() -> Markup:
    """A batch above four layers, sharded in five ways among four ranks."""

    def batch(tones: list[str], across: bool = False) -> list[str]:
        """Four sequences as rows of tokens: rows in the given tones, or columns."""
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
        "Four sequences above four layers, one colour per rank. Data: one sequence each. Context: a part of every "
        "sequence each. Tensor: a shard of every matrix each. Pipeline: one layer each. Expert: one sequence each, and "
        "some experts of every expert layer.",
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
        "Both ranks hold all of X. Each multiplies it by half of the columns of the first matrix, then by the matching "
        "rows of the second matrix. Only the two partial sums have to be added, by an all-reduce.",
        panel(340, 196, pieces),
    )


def sequence() -> Markup:
    """What two ranks hold on the way through a layer with sequence parallelism, to the last reduce-scatter."""
    parts = (("norm", True), ("attention", False), ("norm", True), ("MLP", False), ("add", True))
    pieces, x = [], 54.0
    for r, tone in enumerate(("blue", "orange")):
        pieces.append(text(4, 46 + 60 * r, f"rank {r}", tone, size="small", anchor="start"))
    for number, (name, is_slice) in enumerate(parts):
        width = 32 if is_slice else 62
        for r, tone in enumerate(("blue", "orange")):
            y = 20 + 60 * r
            pieces.append(box(x, y, width, 44, tone="quiet"))
            if is_slice:
                pieces.append(box(x, y + 22 * r, width, 22, tone=tone))
            else:
                pieces.append(box(x + width / 2 * r, y, width / 2, 44, tone=tone))
        pieces.append(text(x + width / 2, 14, name, size="small"))
        x += width
        if number < len(parts) - 1:
            pieces.append(text(x + 7.5, 76, "g" if is_slice else "s", "green", size="strong"))
            x += 15
    pieces.append(text(336, 150, "g: all-gather, s: reduce-scatter", "green", size="small", anchor="end"))
    pieces.append(text(4, 150, "tokens ↓", "quiet", size="small", anchor="start"))
    return drawing(
        "Two ranks through a layer. For the norms and for the residual add each rank holds half of the tokens at full "
        "width; inside attention and the MLP each holds all tokens and half of the width. An all-gather before each "
        "wide part collects the tokens, and a reduce-scatter after it sums and splits them again.",
        panel(340, 158, pieces),
    )


def ring_attention() -> Markup:
    """Four ranks passing blocks of keys and values around a ring, and which block each holds at every step."""
    places = on_circle(P, 90, 92, 54)
    ring = [rank(x, y, r, CHUNKS[r]) for r, (x, y) in enumerate(places)]
    ring += [arrow(*places[r], *places[(r + 1) % P], "quiet", short=18, bend=18) for r in range(P)]
    ring.append(text(90, 97, "K, V", size="small"))
    grid = [text(94 + 58 * step, 14, f"step {step}", size="small") for step in range(P)]
    for r in range(P):
        y = 22 + 34 * r
        grid.append(text(4, y + 19, f"rank {r}", CHUNKS[r], size="small", anchor="start"))
        for step in range(P):
            block = (r - step) % P
            grid.append(box(68 + 58 * step, y, 54, 28, f"KV {block}", CHUNKS[block] if block <= r else "quiet"))
    grid.append(text(4, 174, "no colour: future keys, skipped", "quiet", size="small", anchor="start"))
    return drawing(
        "Four ranks in a ring. At step 0 every rank attends to its own block of keys and values; then each block moves "
        "to the next rank, so that after four steps every rank has held every block. Blocks that come later in the "
        "sequence than a rank's queries are skipped: rank 0 computes one block, rank 3 all four.",
        panel(180, 180, ring, title="one step: send and receive"),
        panel(340, 182, grid, title="the block each rank holds"),
    )


def ulysses() -> Markup:
    """Four tokens' blocks by four groups of heads: by tokens, by heads for attention, by tokens again."""
    pieces = []
    for number, (name, by_tokens) in enumerate((("Q, K, V", True), ("attention", False), ("output", True))):
        x = 24 + 116 * number
        pieces.append(text(x + 39, 14, name, size="small"))
        pieces += cells(x, 22, P, P, lambda i, j, rows=by_tokens: CHUNKS[i if rows else j], size=18)
        if number < 2:
            pieces.append(arrow(x + 84, 62, x + 112, 62, "green"))
    pieces.append(text(20, 122, "tokens ↓ heads →", "quiet", size="small", anchor="start"))
    pieces.append(text(336, 122, "arrows: all-to-all", "green", size="small", anchor="end"))
    return drawing(
        "Three grids of four token blocks by four groups of heads, one colour per rank. Queries, keys and values are "
        "sharded by tokens; an all-to-all shards them by heads instead, so that each rank attends to the full sequence "
        "with a quarter of the heads; a second all-to-all returns the output to shards by tokens.",
        panel(340, 130, pieces),
    )


def zigzag() -> Markup:
    """Scores under a causal mask by the rank that holds the query: contiguous chunks, and zigzag order."""
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
    for title, divide in (("contiguous", contiguous_positions), ("zigzag", zigzag_positions)):
        tokens = divide(n, P)
        owner = [next(r for r in range(P) if at in tokens[r]) for at in range(n)]
        panels.append(triangle(owner, title, tokens))
    return drawing(
        "Two triangles of scores, eight queries by eight keys, rows coloured by the rank that holds the query. With "
        "contiguous chunks the last rank computes five times as many scores as the first; in zigzag order all compute "
        "nine.",
        *panels,
    )


def schedules() -> Markup:
    """GPipe, 1F1B and ZB-H1 over four ranks and six micro-batches, in time."""
    tones = {"forward": "blue", "backward": "orange", "weight": "green"}
    micro_batches = 6
    longest_s = 3.0 * (micro_batches + P - 1)

    def row(schedule: Schedule, title: str) -> Panel:
        cluster = Cluster(P)
        issue_schedule(cluster, schedule, forward_s=1.0, backward_s=2.0)
        timeline = cluster.timeline()
        unit = 320 / longest_s
        pieces = [text(8, 36 + 26 * r, r, size="small") for r in range(P)]
        for start, end, streams, name in zip(
            timeline.start, timeline.end, timeline.streams, timeline.names, strict=True
        ):
            kind, micro_batch = name.split()
            at, width = 18 + unit * start, unit * (end - start) - 0.8
            y, label = 21 + 26 * (streams[0] // 4), int(micro_batch)
            shape = f'x="{at:.1f}" y="{y}" width="{width:.1f}" height="22" rx="2"'
            pieces.append(f'<rect class="{tones[kind]}" {shape}/>' + text(at + width / 2, y + 16, label, size="small"))
        legend = [("forward", "blue", 18), ("backward", "orange", 82)]
        if has_weight_passes(schedule):
            legend.append(("weights", "green", 154))
        pieces += [text(x, 14, word, tone, size="small", anchor="start") for word, tone, x in legend]
        in_flight = f"{max_in_flight(schedule[0])} in flight"
        pieces.append(text(338, 14, in_flight, "quiet", size="small", anchor="end"))
        return panel(340, 24 + 26 * P, pieces, title=title)

    return drawing(
        "Three timelines of four ranks and six numbered micro-batches, forward passes blue, backward passes orange. "
        "GPipe and 1F1B take equally long and idle equally; GPipe runs all forward passes first and has six "
        "micro-batches in flight on rank 0, 1F1B alternates and has four. In ZB-H1 the weight gradients, green, run "
        "later as passes of their own, and the step ends sooner with four in flight.",
        row(gpipe(P, micro_batches), "GPipe"),
        row(one_forward_one_backward(P, micro_batches), "1F1B"),
        row(zb_h1(P, micro_batches), "ZB-H1"),
    )


def experts() -> Markup:
    """Tokens of one rank dispatched to four experts, each with a capacity of two per rank, and combined again."""
    chosen = torch.tensor([[0], [1], [2], [2], [2], [3]])
    plan = route(chosen, num_experts=4, capacity_factor=1.25)
    assert plan.num_dropped == 1
    kept = set(plan.token_indices.tolist())
    pieces = [
        text(34, 16, "rank 0", "blue", size="small"),
        text(94, 16, "dispatch", "quiet", size="small"),
        text(248, 16, "combine", "quiet", size="small"),
        text(308, 16, "rank 0", "blue", size="small"),
    ]
    for e in range(4):
        tone, y = "blue" if e < 2 else "orange", 26 + 42 * e
        pieces += [box(126, y, 90, 36, tone=tone), text(171, y + 15, f"expert {e}", size="small")]
        pieces.append(text(171, y + 30, f"on rank {e // 2}", tone, size="small"))
    for token, (e,) in enumerate(chosen.tolist()):
        y, expert_y = 27 + 28 * token, 44 + 42 * e
        is_kept = token in kept
        tone = "blue" if e < 2 else "orange"
        pieces.append(box(4, y, 60, 23, f"token {token}", "blue" if is_kept else "quiet"))
        pieces.append(box(278, y, 60, 23, f"out {token}" if is_kept else "zero", "blue" if is_kept else "quiet"))
        if is_kept:
            spread = 9 * (token - 2.5) if e == 2 else 0
            pieces.append(arrow(66, y + 11.5, 124, expert_y + spread, tone))
            pieces.append(arrow(218, expert_y + spread, 276, y + 11.5, tone))
        else:
            pieces.append(text(68, y + 16, "dropped", "quiet", size="small", anchor="start"))
    return drawing(
        "Six tokens of rank 0, each with one expert. Experts 0 and 1 are on rank 0, experts 2 and 3 on rank 1: tokens "
        "are dispatched to their expert, and the results return to rank 0 to be combined. Three tokens choose expert "
        "2, which has capacity for two: the third is dropped and its expert output is zero.",
        panel(340, 204, pieces),
    )


def mesh() -> Markup:
    """Eight ranks in two nodes of four, and the process groups of each axis of a layout of two by two by two."""
    layout = Layout(data=2, tensor=2, pipeline=2)

    def groups(axis: str) -> Panel:
        others = [name for name in ("tensor", "data", "pipeline") if name != axis]
        members: dict[tuple[int, ...], list[int]] = {}
        for r in range(8):
            coordinates = mesh_coordinates(layout, r)
            members.setdefault(tuple(coordinates[name] for name in others), []).append(r)
        at = {r: (74.0 + 38 * (r % 4), 36.0 + 68 * (r // 4)) for r in range(8)}
        pieces = [text(4, 41 + 68 * node, f"node {node}", "quiet", size="small", anchor="start") for node in range(2)]
        for number, (a, b) in enumerate(members.values()):
            tone, ((x1, y1), (x2, y2)) = CHUNKS[number], (at[a], at[b])
            if axis == "tensor":
                pieces.append(line(x1 + 14, y1, x2 - 14, y2, tone))
            elif axis == "pipeline":
                pieces.append(line(x1, y1 + 14, x2, y2 - 14, tone))
            else:  # around the rank between them: above for even ranks, below for odd ones
                side = -1 if a % 2 == 0 else 1
                pieces += [line(x, y1 + 14 * side, x, y1 + 24 * side, tone) for x in (x1, x2)]
                pieces.append(line(x1, y1 + 24 * side, x2, y1 + 24 * side, tone))
            pieces += [rank(*at[r], r, tone) for r in (a, b)]
        return panel(210, 140, pieces, title=f"{axis} groups")

    return drawing(
        "Three pictures of eight ranks in two nodes of four; ranks of one group have one colour. Tensor groups are "
        "neighbours: 0 and 1, 2 and 3, 4 and 5, 6 and 7. Data groups are 0 and 2, 1 and 3, 4 and 6, 5 and 7. Pipeline "
        "groups join the nodes: 0 and 4, 1 and 5, 2 and 6, 3 and 7.",
        *map(groups, ("tensor", "data", "pipeline")),
    )


def memory() -> Markup:
    """Bytes on the fullest GPU of Llama 3 70B on 512 H100s, by kind, for five layouts."""
    model, on, recipe = preset("llama3-70b"), machine(hardware.device("H100"), "bf16"), RECIPES[RECIPE]
    base = Layout(data=32, tensor=4, pipeline=4, zero_stage=1, sequence_parallel=True)
    layouts = {
        "tensor 8 × data 64": Layout(data=64, tensor=8, zero_stage=1, sequence_parallel=True),
        "tensor 4 × pipeline 4 × data 32": base,
        "the same, without sequence parallelism": base.replace(sequence_parallel=False),
        "the same, 4 chunks per stage": base.replace(interleave=4),
        "4 chunks, context 2 × data 16": base.replace(data=16, context=2, interleave=4),
        "ZeRO-3 on 512, full recomputation": Layout(data=512, zero_stage=3, recomputation="full"),
    }
    tones = (("weights", "blue"), ("gradients", "orange"), ("optimizer", "green"), ("activations", "violet"))
    unit, left = 268 / 110e9, 4.0
    full = left + unit * on.memory_bytes
    pieces, x = [], left
    for name, tone in tones:
        pieces.append(text(x, 14, name, tone, size="small", anchor="start"))
        x += 8.3 * len(name) + 6
    for number, (name, layout) in enumerate(layouts.items()):
        y = 42 + 46 * number
        use = training_memory(model, layout, recipe, batch=512, tokens=8192)
        parts = (use.weights + use.gathered, use.gradients, use.master + use.moments, use.activations)
        pieces.append(text(left, y, name, size="small", anchor="start"))
        x = left
        for size, (_, tone) in zip(parts, tones, strict=True):
            pieces.append(box(x, y + 6, max(unit * size, 1.0), 18, tone=tone))
            x += unit * size
        pieces.append(text(336, y + 20, f"{use.total / 1e9:.0f} GB", size="small", anchor="end"))
        pieces.append(line(full, y + 3, full, y + 27, "plain"))
    bottom = 42 + 46 * len(layouts)
    pieces.append(text(full, bottom + 2, f"an H100: {on.memory_bytes / 1e9:.0f} GB", size="small"))
    return drawing(
        "Bars of bytes on the fullest GPU, by weights, gradients, optimizer states and activations, against the memory "
        "of an H100. Tensor parallelism of 8 and the pipelined layout just fit; without sequence parallelism the "
        "pipelined layout does not fit; four chunks per stage nearly fill the GPU, and context parallelism halves "
        "the activations; ZeRO-3 with full recomputation needs least.",
        panel(340, bottom + 12, pieces),
    )


DRAWINGS = {
    "cuts": cuts,
    "pair": pair,
    "sequence": sequence,
    "ring_attention": ring_attention,
    "ulysses": ulysses,
    "zigzag": zigzag,
    "schedules": schedules,
    "experts": experts,
    "mesh": mesh,
    "memory": memory,
}
