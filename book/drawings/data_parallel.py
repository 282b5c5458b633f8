"""Drawings of chapter 10: replicas, overlap, buckets, ZeRO's stages, a layer's life under stage 3, hybrid sharding.

Times come from the simulator, buckets and shards from `parallel.buckets`, fractions from `flops.memory`.
"""

from __future__ import annotations

import torch
from markupsafe import Markup
from torch import nn

from book.drawings.kit import CHUNKS, Panel, arrow, box, chunk_row, drawing, line, panel, rank, text
from mlsys_lab.comm.collectives.chunks import chunk_lengths
from mlsys_lab.comm.simulate import Cluster, Timeline
from mlsys_lab.comm.simulate.steps import data_parallel_step
from mlsys_lab.flops.memory import RECIPES, states
from mlsys_lab.parallel.buckets import assign_buckets

RANKS = 4


def replicas() -> Markup:
    """Four ranks with the same weights, a part of the batch each, and one mean of their gradients."""
    pieces = [text(20, 126, "mean of all gradients", "green", size="small", anchor="start")]
    for r, tone in enumerate(CHUNKS):
        x = 42 + 85 * r
        pieces += [box(x - 36, 8, 72, 26, f"batch {r}", tone), arrow(x, 36, x, 52, "quiet")]
        pieces += [box(x - 36, 54, 72, 30, "weights"), arrow(x, 86, x, 106, tone), arrow(x, 136, x, 156, "green")]
        pieces.append(box(x - 36, 158, 72, 26, "update", "green"))
    pieces.insert(0, box(6, 108, 328, 26, tone="green"))
    return drawing(
        "Four ranks with equal weights. Each has its own part of the batch and works out gradients; the mean of all "
        "four goes back to each, which makes the same update.",
        panel(340, 190, pieces),
    )


def overlap() -> Markup:
    """A step of six layers: gradients sent behind the backward pass, and during it."""

    def row(overlapped: bool, title: str) -> Panel:
        cluster = Cluster(RANKS)
        data_parallel_step(cluster, 6, forward_s=1.0, all_reduce_s=1.8, overlap=overlapped)
        return _streams(cluster.timeline(), title, longest_s=30.0)

    return drawing(
        "Two steps in time, computing above, all-reduces below. Sent afterwards, six all-reduces follow the backward "
        "pass. Sent in between, all but the last are over when it ends.",
        row(False, "after the backward pass"),
        row(True, "while it goes on"),
    )


def buckets() -> Markup:
    """Parameters of two layers in the order in which their gradients come, in buckets, and a bucket in shards."""
    layers = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 5))
    names = {id(parameter): name for name, parameter in layers.named_parameters()}
    spelled = {"0.weight": "W₁", "0.bias": "b₁", "1.weight": "W₂", "1.bias": "b₂"}
    divided = assign_buckets(layers.parameters(), 60 * torch.float32.itemsize)
    unit = 330 / sum(parameter.numel() for parameter in layers.parameters())
    x, pieces = 4.0, [text(4, 14, "gradients, in order of arrival", "quiet", size="small", anchor="start")]
    for number, bucket in enumerate(divided):
        tone, left = CHUNKS[number], x
        for parameter in bucket.parameters:
            width = unit * parameter.numel()
            label = spelled[names[id(parameter)]] if width > 24 else ""
            pieces.append(box(x, 24, width - 1.5, 30, label, tone))
            x += width
        middle = (left + x) / 2
        pieces += [line(left + 2, 62, x - 4, 62, tone), text(middle, 78, f"bucket {number}", tone, size="small")]
        at = left
        for r, count in enumerate(chunk_lengths(sum(p.numel() for p in bucket.parameters), RANKS)):
            pieces.append(box(at, 106, unit * count - 1.5, 24, r, tone))
            at += unit * count
    pieces.append(text(4, 150, "shards: the rank that keeps them", "quiet", size="small", anchor="start"))
    return drawing(
        "Gradients of two layers side by side, those of the last layer first, cut into buckets at borders of "
        "parameters. Each bucket is cut into four equal shards, whose borders go through parameters.",
        panel(340, 158, pieces),
    )


def stages() -> Markup:
    """What each of four ranks keeps under ZeRO's stages; heights are bytes."""
    recipe = RECIPES["mixed16"]
    unit = 176 / recipe.bytes_per_parameter
    panels = []
    for stage in range(4):
        kept = states(1, recipe, data=RANKS, zero_stage=stage)
        pieces = []
        for r in range(RANKS):
            y = 186.0
            for size, whole, tone in (
                (kept.weights, recipe.weights, "blue"),
                (kept.gradients, recipe.gradients, "orange"),
                (kept.master + kept.moments, recipe.master + recipe.moments, "green"),
            ):
                y -= unit * whole
                pieces.append(box(4 + 38 * r, y, 34, unit * whole - 1.5, tone="quiet"))
                # A shard lies where it belongs in the whole: rank 0's at the bottom.
                place = r if size < whole else 0
                pieces.append(
                    box(4 + 38 * r, y + unit * (whole - (place + 1) * size), 34, unit * size - 1.5, tone=tone)
                )
            pieces.append(text(21 + 38 * r, 202, r, "quiet", size="small"))
        title = f"stage {stage}: {kept.total:g} bytes" if stage else f"whole: {kept.total:g} bytes"
        panels.append(panel(158, 208, pieces, title=title))
    return drawing(
        "Four ranks side by side, bytes of weights, gradients and optimiser states upwards. Whole: all have all. Under "
        "stage 1 each has a quarter of the optimiser's states, under stage 2 of the gradients too, under 3 of all.",
        *panels,
    )


def life() -> Markup:
    """When the weights of each of four layers are whole under stage 3: gathered, used, freed."""
    layers, gather_s, compute_s = 4, 0.8, 1.0
    passes = [*((layer, "forward", compute_s) for layer in range(layers))]
    passes += [(layer, "backward", 2 * compute_s) for layer in reversed(range(layers))]
    cluster = Cluster(1)
    gathers: list[int] = []
    uses: list[int] = []
    for number, (_, kind, time_s) in enumerate(passes):
        # A gather is issued when the pass before begins. The last layer's weights stay whole: backward begins with it.
        if number != layers:
            gathers.append(cluster.collective([0], gather_s, "gather", uses[number - 2 : number - 1]))
        uses.append(cluster.compute(0, time_s, kind, gathers[-1:]))
    timeline = cluster.timeline()
    unit = 296 / timeline.end_s
    span = [(40 + unit * start, 40 + unit * end) for start, end in zip(timeline.start, timeline.end, strict=True)]
    pieces = []
    for gather in gathers:
        (start, ready), (begins, _) = span[gather], span[gather + 1]
        y = 24 + 34 * passes[uses.index(gather + 1)][0]
        pieces += [box(start, y + 7, ready - start - 1, 12, tone="quiet"), line(ready, y + 13, begins, y + 13, "blue")]
    for use, (layer, kind, _) in zip(uses, passes, strict=True):
        start, end = span[use]
        tone = "blue" if kind == "forward" else "orange"
        pieces.append(box(start, 24 + 34 * layer, end - start - 1, 26, tone=tone))
    pieces += [text(18, 42 + 34 * i, i, size="strong") for i in range(layers)]
    pieces.append(text(4, 12, "layer", "quiet", size="small", anchor="start"))
    pieces.append(text(336, 176, "time", "quiet", size="small", anchor="end"))
    pieces += [text(40, 176, "forward", "blue", size="small", anchor="start")]
    pieces.append(text(span[uses[layers]][0], 176, "backward", "orange", size="small", anchor="start"))
    return drawing(
        "Four layers as rows over time. A thin bar gathers a layer's weights while the layer before computes; then the "
        "layer computes, forward in rising order, backward in falling order. Two layers at most are whole at once.",
        panel(340, 182, pieces),
    )


def hybrid() -> Markup:
    """Two nodes of four ranks: shards inside each node, copies of them across."""
    pieces = []
    for node in range(2):
        y = 30 + 96 * node
        pieces += [
            box(52, y - 22, 284, 58, tone="quiet"),
            text(4, y + 12, f"node {node}", size="small", anchor="start"),
        ]
        for r, tone in enumerate(CHUNKS):
            x = 90 + 68 * r
            pieces.append(rank(x, y + 6, RANKS * node + r, tone))
            pieces.append(chunk_row(x - 13, y + 22, [float(i == r) for i in range(RANKS)], width=5, height=8))
    for r, tone in enumerate(CHUNKS):
        x = 90 + 68 * r
        pieces += [arrow(x - 3, 68, x - 3, 102, tone), arrow(x + 3, 102, x + 3, 68, tone)]
    pieces.append(text(336, 186, "across: all-reduce of a shard", "quiet", size="small", anchor="end"))
    return drawing(
        "Two nodes of four ranks. In each node every rank keeps a quarter of the states, another one each; ranks that "
        "keep the same quarter stand one below the other and exchange its gradients.",
        panel(340, 194, pieces),
    )


def _streams(timeline: Timeline, title: str, longest_s: float) -> Panel:
    """Rank 0's computing (forward blue, backward orange) above its collectives (green), to scale."""
    unit = 330 / longest_s
    pieces = []
    for start, end, name in zip(timeline.start, timeline.end, timeline.names, strict=True):
        kind, _, number = name.partition(" ")
        tone = {"forward": "blue", "backward": "orange", "all-reduce": "green"}.get(kind)
        if tone is None or end == start:
            continue
        y = 38 if kind == "all-reduce" else 6
        pieces.append(box(4 + unit * start, y, unit * (end - start) - 1, 26, number, tone))
    seen = dict.fromkeys(pieces)  # all ranks do the same at the same time
    end = 4 + unit * timeline.end_s
    words = text(min(end, 336), 84, f"{timeline.end_s:.1f} ms", size="small", anchor="end")
    return panel(340, 90, list(seen), line(end, 4, end, 70), words, title=title)


DRAWINGS = {
    "replicas": replicas,
    "overlap": overlap,
    "buckets": buckets,
    "stages": stages,
    "life": life,
    "hybrid": hybrid,
}
