"""HTML of a figure on a page of the site, with a table for pages without JavaScript."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from mlsys_lab.errors import InputError
from mlsys_lab.widgets.modules import FIGURES

NUMBER = re.compile(r"[-−+±]?\.?\d")
"""Start of a cell that holds a number, with any unit."""


def script_json(data: Any) -> str:
    """JSON for a `<script>` element: it contains no `<`, so it cannot end the element.

    InputError for values that JSON cannot represent (NaN, infinity, other objects).
    """
    try:
        text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InputError("a figure's data must be plain JSON", got=str(error)) from error
    return text.replace("<", "\\u003c")


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table with a head and rows; every cell is escaped."""
    return _write_table(head, rows, [""] * len(head))


def _write_table(head: Sequence[object], rows: Iterable[Sequence[object]], kinds: Sequence[str]) -> str:
    """Table whose columns' cells have these attributes; long names may break after underscores."""

    def write_row(cells: Sequence[object], tag: str) -> str:
        texts = (html.escape(str(cell)).replace("_", "_<wbr>") for cell in cells)
        return f"<tr>{''.join(f'<{tag}{kind}>{text}</{tag}>' for text, kind in zip(texts, kinds, strict=True))}</tr>"

    body = "".join(write_row(row, "td") for row in rows)
    return f"<table><thead>{write_row(head, 'th')}</thead><tbody>{body}</tbody></table>"


class Table:
    """Table as the value of a notebook cell, from the names of its columns and its rows.

    Except for the first, columns of numbers, with or without units, have the class `number`, which the site aligns
    right. ValueError for a row whose length differs from the head's.

    >>> print(Table(("GPU", "GB"), [("T4", 16)])._repr_html_().split("<tbody>")[1])
    <tr><td>T4</td><td class="number">16</td></tr></tbody></table>
    """

    def __init__(self, head: Sequence[object], rows: Iterable[Sequence[object]]) -> None:
        rows = list(rows)
        columns = zip(*rows, strict=True) if rows else [()] * len(head)
        numbers = [all(NUMBER.match(str(cell)) for cell in column if cell != "") for column in columns]
        kinds = ["", *(' class="number"' if number else "" for number in numbers[1:])]
        self._html = _write_table(head, rows, kinds)

    def _repr_html_(self) -> str:
        return self._html


class Element:
    """Figure on a page of the site: a custom element with JSON data, and HTML for pages without JavaScript."""

    def __init__(self, name: str, data: dict[str, Any], fallback: str) -> None:
        self._html = (
            f'<mlsys-{name}><script type="application/json">{script_json(data)}</script>{fallback}</mlsys-{name}>'
        )

    def _repr_html_(self) -> str:
        return self._html


def element(name: str, *, fallback: str = "", **data: Any) -> Element:
    """Make the figure `name` for a page of the site; `data` are the traits of its anywidget.

    fallback: HTML that is shown until the figure runs; by default a table of the data for `backward` and `roofline`.

    >>> print(element("strides", cells=4, fallback="<p>none</p>")._repr_html_())
    <mlsys-strides><script type="application/json">{"cells":4}</script><p>none</p></mlsys-strides>
    """
    if name not in FIGURES:
        raise InputError("no such figure", got=repr(name), expected="one of " + ", ".join(FIGURES))
    if not fallback and name in _TABLES:
        fallback = _TABLES[name](data)
    return Element(name, data, fallback)


def _graph_table(data: dict[str, Any]) -> str:
    labels = {node["id"]: node["label"] or node["id"] for node in data["graph"]}
    rows = (
        (
            labels[node["id"]],
            f"{node['op']}({', '.join(labels[parent] for parent in node['parents'])})" if node["parents"] else "input",
            f"{node['data']:.4g}",
            "" if node["grad"] is None else f"{node['grad']:.4g}",
        )
        for node in data["graph"]
    )
    return table(("node", "computed as", "value", "gradient"), rows)


def _device_table(data: dict[str, Any]) -> str:
    rows = []
    for one in data["devices"]:
        peaks = one["peaks"].items()
        limits = (f"{precision} {peak / 1e12:,.0f} ({peak / one['bandwidth']:,.0f})" for precision, peak in peaks)
        rows.append((one["name"], f"{one['bandwidth'] / 1e9:,.0f}", ", ".join(limits)))
    return table(("device", "bandwidth, GB/s", "peak, TFLOP/s (ridge point, FLOPs per byte)"), rows)


_TABLES = {"backward": _graph_table, "roofline": _device_table}
