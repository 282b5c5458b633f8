"""Drawings of chapter 03: views, dispatch routes, the autograd graph, versions, launches in time, graph capture.

Views and graphs are those of the installed torch; a test asks its dispatcher for the routes.
"""

from __future__ import annotations

import torch
from markupsafe import Markup

from book.drawings.kit import Panel, arrow, box, cells, drawing, line, panel, text

KEYS = ("Autocast", "Autograd", "ADInplaceOrView", "CPU")
ROUTES = {
    "a + b": ("Autograd", "CPU"),
    "a.view(…)": ("Autograd", "ADInplaceOrView", "CPU"),
    "autocast: a @ b": ("Autocast", "Autograd", "CPU"),
    "inference: a + b": ("CPU",),
}
"""Keys whose handlers a call runs, the highest first; the CPU's are written without their device."""


def views() -> Markup:
    """Four tensors on one storage of twelve elements, each by the cells that it reads."""
    t = torch.arange(12).reshape(3, 4)
    shown = {
        "t": t,
        "t.T": t.T,
        "t[1:, 1:3]": t[1:, 1:3],
        "t[:, :1].expand(3, 4)": t[:, :1].expand(3, 4),
    }
    return drawing(
        "Four tensors over one row of twelve cells: a matrix of all twelve, its transpose over the same cells in "
        "another order, a part with an offset, and a column of three cells that looks like four.",
        *(_view(name, view, t.numel()) for name, view in shown.items()),
    )


def _view(name: str, view: torch.Tensor, size: int) -> Panel:
    """A tensor as a table of the storage's cells that it reads, below the storage with those cells marked."""
    read = set(view.flatten().tolist())
    pieces = cells(2, 4, 1, size, lambda _, cell: "blue" if cell in read else "quiet", size=11, gap=2)
    rows, columns = view.shape
    pieces += [line(2, 26, 156, 26)]
    for i in range(rows):
        for j in range(columns):
            pieces.append(box(4 + 32 * j, 36 + 26 * i, 28, 22, int(view[i, j]), "blue"))
    at = ", ".join(str(stride) for stride in view.stride())
    pieces.append(text(4, 160, f"strides {at}", size="small", anchor="start"))
    pieces.append(text(4, 177, f"offset {view.storage_offset()}", "quiet", size="small", anchor="start"))
    return panel(158, 182, pieces, title=name)


def route() -> Markup:
    """Which handlers four calls run on their way from Python to the loop that computes."""
    pieces = []
    for number, key in enumerate(KEYS):
        y = 44 + 46 * number
        pieces.append(text(2, y + 19, key.replace("ADInplaceOrView", "ADInplace"), size="small", anchor="start"))
        pieces.append(line(84, y + 15, 336, y + 15))
    for number, (call, keys) in enumerate(ROUTES.items()):
        x = 114 + 62 * number
        context, _, words = call.rpartition(": ")
        pieces += [text(x, 14, context, "violet", size="small"), text(x, 30, words, size="small")]
        levels = [KEYS.index(key) for key in keys]
        tops = [34.0, *(44 + 46 * level + 28 for level in levels)]
        for level, top in zip(levels, tops, strict=False):
            y = 44 + 46 * level
            pieces += [arrow(x, top, x, y, "blue"), box(x - 24, y + 2, 48, 26, tone="green" if level == 3 else "blue")]
    return drawing(
        "Four calls as columns over four levels. A plain addition stops at autograd and the CPU, a view also between "
        "them, a product under autocast above them; in inference mode an addition goes straight to the CPU.",
        panel(340, 222, pieces),
    )


def graph() -> Markup:
    """Tensors of a small computation with their operations, and the nodes that autograd recorded for them."""
    leaf = torch.tensor([0.5], requires_grad=True)
    left, right = leaf.sin(), leaf.cos()
    right = right.exp()
    left = left.tanh()
    result = left * right
    node = result.grad_fn
    assert node is not None
    rows = [(162, 20), (82, 78), (242, 78), (82, 136), (242, 136), (162, 194)]
    above, below = node.next_functions[0][0], node.next_functions[1][0]
    nodes = [node, above, below, above.next_functions[0][0], below.next_functions[0][0]]
    nodes.append(nodes[3].next_functions[0][0])
    ways = ((0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 5))
    tensors = ["result", "tanh", "exp", "sin", "cos", "leaf"]
    forward = [
        arrow(rows[end][0], rows[end][1] - 15, rows[start][0], rows[start][1] + 15, "blue") for start, end in ways
    ]
    forward += [box(x - 36, y - 13, 72, 26, name, "blue") for (x, y), name in zip(rows, tensors, strict=True)]
    back = [
        arrow(rows[start][0], rows[start][1] + 22, rows[end][0], rows[end][1] - 22, "orange") for start, end in ways
    ]
    for (x, y), one in zip(rows, nodes, strict=True):
        kept = [name.removeprefix("_saved_") for name in dir(one) if name.startswith("_saved_")]
        words = "saves " + ", ".join(kept) if kept else "adds to .grad"
        name = one.name().removeprefix("torch::autograd::").removesuffix("Backward0")
        pieces = [box(x - 66, y - 20, 132, 42, tone="orange"), text(x, y - 3, name, size="small")]
        back += [*pieces, text(x, y + 14, words, "orange", size="small")]
    return drawing(
        "Left: a leaf leads up to a sine and a cosine, these to tanh and exp, and these to their product. Right: nodes "
        "of the same shape with arrows downwards, each with what it keeps; both ways end at one that adds to the "
        "gradient.",
        panel(320, 214, forward, title="tensors"),
        panel(320, 220, back, title="nodes"),
    )


def versions() -> Markup:
    """What an in-place addition to a result does to a node that kept the result, and to one that kept its input."""
    return drawing(
        "Two rows in time: a function, an addition in place to its result, the way back. A node of exp kept the result "
        "at version 0 and finds version 1, so it refuses. A node of sin kept its input, still at version 0, and runs.",
        _version("exp", "result"),
        _version("sin", "input"),
    )


def _version(name: str, kept: str) -> Panel:
    """The versions of a function's input and result before and after `result.add_(1)`, and what its node compares."""
    source = torch.ones(3, requires_grad=True)
    result = getattr(torch, name)(source)
    held = {"input": source, "result": result}
    before = {what: tensor._version for what, tensor in held.items()}
    result.add_(1)
    after = {what: tensor._version for what, tensor in held.items()}
    pieces = [text(x, 14, words, "quiet", size="small") for x, words in ((122, f"{name}(input)"), (212, "add_(1)"))]
    pieces.append(text(296, 14, "backward", "quiet", size="small"))
    for number, what in enumerate(held):
        y = 26 + 40 * number
        tone = "green" if what == kept else "quiet"
        pieces += [text(2, y + 19, what, size="small", anchor="start")]
        pieces += [box(88, y, 68, 28, f"version {before[what]}", tone), line(156, y + 14, 178, y + 14)]
        pieces.append(box(178, y, 68, 28, f"version {after[what]}", "orange" if before[what] != after[what] else tone))
        if what == kept:
            fine = before[what] == after[what]
            pieces.append(line(246, y + 14, 262, y + 14))
            pieces.append(box(262, y, 70, 28, "runs" if fine else "refuses", "green" if fine else "orange"))
    return panel(340, 100, pieces, title=f"{name} saves its {kept}")


def queue() -> Markup:
    """Five launches and kernels in time: short kernels, long ones, a synchronisation after each, and a CUDA graph."""
    return drawing(
        "Four timelines of five kernels, the host above the device. Short kernels wait for their launches, with gaps. "
        "Long kernels follow each other without gaps. With a synchronisation after each, host and device take turns. "
        "As a graph, one launch starts all five kernels, back to back.",
        _timeline("short kernels: host-bound", kernel=14),
        _timeline("long kernels: device-bound", kernel=40),
        _timeline("long kernels, a sync after each", kernel=40, sync=True),
        _timeline("short kernels, one CUDA graph", kernel=14, graph=True),
    )


def _timeline(title: str, kernel: float, launch: float = 24, *, sync: bool = False, graph: bool = False) -> Panel:
    """Launches of five kernels by the host and their runs on the device, both in order."""
    host = device = left = 50.0
    pieces = [text(2, 28, "host", size="small", anchor="start"), text(2, 64, "GPU", size="small", anchor="start")]
    pieces += [line(left, 38, 336, 38), line(left, 74, 336, 74)]
    scale = 280 / (5 * (24 + 40))
    for number in range(1, 6):
        if number == 1 or not graph:
            label = "graph" if graph else number
            width = (2.4 if graph else 1) * launch * scale
            pieces.append(box(host, 12, width, 24, label, "orange"))
            host += width
        device = max(device, host)
        pieces.append(box(device, 48, kernel * scale, 24, number if kernel > 20 else "", "blue"))
        device += kernel * scale
        if sync:
            host = device
    return panel(340, 82, pieces, title=title)


def capture() -> Markup:
    """A function with a branch on a tensor's value, as two graphs with Python between them."""
    code = (
        ("y = F.gelu(x @ w)", "blue"),
        ("if y.sum() > 0:", "orange"),
        ("    y = 2 * y", "green"),
        ("return y.sum()", "green"),
    )
    pieces = [text(66, 16, "Python function", "quiet", size="small"), text(252, 16, "what runs", "quiet", size="small")]
    for number, (words, tone) in enumerate(code):
        pieces += [box(2, 26 + 42 * number, 136, 30, tone=tone)]
        pieces += [text(10, 46 + 42 * number, words.replace("    ", "\u2003"), size="small", anchor="start")]
    runs = (
        (26, 44, "graph 1", "guards: dtype, shape", "blue", 41),
        (82, 44, "Python: bool(…)", "waits for the value", "orange", 83),
        (138, 54, "graph 2", "guards on y", "green", 146),
    )
    for y, height, name, words, tone, source in runs:
        pieces += [arrow(140, source, 174, y + height / 2, tone), box(176, y, 160, height, tone=tone)]
        pieces += [
            text(256, y + height / 2 - 3, name, size="small"),
            text(256, y + height / 2 + 14, words, tone, size="small"),
        ]
    return drawing(
        "Left, four lines of a function. The first becomes graph 1, which has guards. The branch is evaluated by "
        "Python, which waits for the tensor's value. The lines after it become graph 2.",
        panel(340, 198, pieces),
    )


DRAWINGS = {
    "views": views,
    "route": route,
    "graph": graph,
    "versions": versions,
    "queue": queue,
    "capture": capture,
}
