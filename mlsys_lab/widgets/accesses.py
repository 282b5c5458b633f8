"""Interactive figure of a kernel's memory accesses: the element that each thread of a request accesses."""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import anywidget
import numpy as np
import traitlets

from mlsys_lab.errors import InputError
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table

if TYPE_CHECKING:
    from mlsys_lab.kernels.trace.events import Buffer, Trace

_MAX_ELEMENTS = 33 * 32  # of an array, such as a padded tile; the cells of a larger one would be too small
_MAX_REQUESTS = 400
_COLUMNS = 32  # the most that fit into 390 px
KINDS = ("reads", "writes", "updates")


def access_data(trace: Trace, *, block: int | None = None) -> dict[str, Any]:
    """The data of the figure: a trace's arrays, its source lines, and one step for each request of a warp.

    block: show only the requests of this block. InputError for a trace that is too large to draw.
    """
    from mlsys_lab.kernels.trace.banks import passes
    from mlsys_lab.kernels.trace.sectors import sectors

    local = [number for number, buffer in enumerate(trace.buffers) if buffer.space == "local"]
    rows = trace.accesses[~np.isin(trace.accesses["buffer"], local)]
    if block is not None:
        rows = rows[rows["block"] == block]
    numbers, starts = np.unique(rows["request"], return_index=True)
    drawn = [buffer for buffer in trace.buffers if buffer.space != "local"]
    largest = max(drawn, key=lambda buffer: buffer.elements, default=None)
    if not len(numbers) or largest is None:
        raise InputError(f"{trace.kernel} has no access that could be drawn", got=f"block {block}")
    if largest.elements > _MAX_ELEMENTS:
        got, limit = f"{largest.elements} elements", f"at most {_MAX_ELEMENTS}"
        help_ = "launch it on smaller arrays"
        raise InputError(f"{largest.name} is too large to draw", got=got, expected=limit, help=help_)
    if len(numbers) > _MAX_REQUESTS:
        help_ = "launch it on smaller arrays, or show one block"
        raise InputError(
            f"{trace.kernel} makes too many requests to draw", got=len(numbers), expected=_MAX_REQUESTS, help=help_
        )
    cost: dict[int, tuple[int, int]] = {}
    for counted in (sectors, passes):
        heads, first, taken, least = counted(trace)
        cost.update(
            zip(heads["request"][first].tolist(), zip(taken.tolist(), least.tolist(), strict=True), strict=True)
        )
    steps = []
    for number, lanes in zip(numbers.tolist(), np.split(rows, starts[1:]), strict=True):
        head, buffer = lanes[0], trace.buffers[lanes[0]["buffer"]]
        steps.append(
            {
                "kind": KINDS[head["kind"]],
                "buffer": drawn.index(buffer),
                "line": trace.sites[head["site"]].line,
                "block": int(head["block"]),
                "phase": int(head["phase"]),
                "threads": lanes["thread"].tolist(),
                "elements": _elements(buffer, lanes["offset"]),
                "taken": cost[number][0],
                "least": cost[number][1],
            }
        )
    return {
        "kernel": trace.kernel,
        "words": list(trace.unit_names),
        "buffers": [_shape(buffer) for buffer in drawn],
        "source": _source(trace),
        "steps": steps,
    }


def _elements(buffer: Buffer, offsets: np.ndarray) -> list[int]:
    """For each lane, its element's position in reading order; −1 if it is outside the array."""
    rest, position = offsets.copy(), np.zeros(len(offsets), dtype=np.int64)
    inside = np.ones(len(offsets), dtype=bool)
    for side, stride in sorted(zip(buffer.shape, buffer.strides, strict=True), key=lambda one: -one[1]):
        index = rest // stride if stride else np.zeros_like(rest)
        inside &= (index >= 0) & (index < side)
        rest = rest - index * stride
        position = position * side + index
    found: list[int] = np.where(inside, position, -1).tolist()
    return found


def _shape(buffer: Buffer) -> dict[str, Any]:
    """Layout of an array as rows and columns of cells: matrices as they are if they fit, else lines of 32."""
    matrix = len(buffer.shape) == 2 and buffer.shape[1] <= _COLUMNS + 1  # a padded tile as well
    columns = buffer.shape[1] if matrix else min(_COLUMNS, buffer.elements)
    return {
        "name": buffer.name,
        "space": buffer.space,
        "elements": buffer.elements,
        "columns": columns,
        "matrix": matrix,
        "itemsize": buffer.itemsize,
        "start": buffer.start,
    }


def _source(trace: Trace) -> list[list[Any]]:
    """The kernel's source lines, from its definition (where found) to its last access, as [number, text]."""
    texts = {site.line: site.text for site in trace.sites}
    file, first, last = trace.sites[0].file, min(texts), max(texts)
    defined = [n for n in range(1, first) if linecache.getline(file, n).lstrip().startswith(f"def {trace.kernel}(")]
    first = max(defined, default=first)
    listing = [(n, linecache.getline(file, n).rstrip() or texts.get(n, "")) for n in range(first, last + 1)]
    margin = min((len(text) - len(text.lstrip()) for _, text in listing if text.strip()), default=0)
    return [[n, text[margin:]] for n, text in listing]


def access_table(data: Mapping[str, Any]) -> str:
    """HTML table of the steps of `access_data` by source line."""
    texts = {line: text for line, text in data["source"]}
    found: dict[tuple[int, str, str, str], list[int]] = {}
    for step in data["steps"]:
        buffer = data["buffers"][step["buffer"]]
        sums = found.setdefault((step["line"], step["kind"], buffer["name"], buffer["space"]), [0, 0, 0])
        for column, amount in enumerate((1, step["taken"], step["least"])):
            sums[column] += amount
    rows = (
        (
            texts[line].strip(),
            f"{kind} {name}",
            requests,
            f"{taken} {'sectors' if space == 'global' else 'passes'}",
            least,
        )
        for (line, kind, name, space), (requests, taken, least) in sorted(found.items())
    )
    return table(("line", "access", "requests of warps", "taken", "at least"), rows)


class Accesses(anywidget.AnyWidget):
    """Notebook figure of a kernel's memory accesses, request by request: `Accesses.from_trace(record(…))`."""

    _esm = esm("accesses")
    kernel = traitlets.Unicode().tag(sync=True)
    words: traitlets.List[Any] = traitlets.List().tag(sync=True)
    buffers: traitlets.List[Any] = traitlets.List().tag(sync=True)
    source: traitlets.List[Any] = traitlets.List().tag(sync=True)
    steps: traitlets.List[Any] = traitlets.List().tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)

    @classmethod
    def from_trace(cls, trace: Trace, *, block: int | None = None) -> Self:
        """Figure of a trace, or of one block of it; raises InputError as `access_data` does."""
        return cls(**access_data(trace, block=block))
