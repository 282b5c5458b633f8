"""Plotly's description of a figure as series, axes and lines across; what charts cannot draw is an error."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlsys_lab.errors import InputError

TONES = ("blue", "orange", "green", "violet", "yellow", "quiet")
"""Colours of the series, in the order in which a figure first uses one."""
NEUTRAL = "gray"  # Plotly's name for the colour of what belongs to no series: drawn in the colour of text

Value = float | str

_ONLY_HOVER = {"hovertemplate", "hoverinfo", "customdata", "text"}
_TRACE = {"type", "name", "x", "y", "mode", "line", "marker", "orientation", "base", "xaxis", "yaxis", "showlegend"}
_LAYOUT = {"title", "barmode", "shapes", "annotations"}
_PLACED_HERE = {"legend", "height", "margin"}  # the book puts its keys above every chart
_AXIS = {"type", "title", "range", "rangemode", "dtick", "tickvals", "ticktext", "autorange", "matches", "domain"}
_FORMAT = {"anchor", "showticklabels", "tickformat", "exponentformat"}  # the book writes all numbers one way


@dataclass(frozen=True)
class Series:
    """One trace: values by place, how they are drawn, and the axes that they belong to ("x", "y2")."""

    name: str
    x: list[Value]
    y: list[Value]
    tone: str
    xaxis: str
    yaxis: str
    bar: bool = False
    horizontal: bool = False
    base: list[float] | None = None
    line: bool = False
    dash: str = ""
    marker: str = ""
    in_key: bool = True


@dataclass(frozen=True)
class Across:
    """A line across the whole height of a chart at a value of its horizontal axis."""

    x: float
    dash: str
    label: str = ""


@dataclass(frozen=True)
class Figure:
    """What a chart draws: series, settings of the axes by name, lines across, how bars share a place."""

    title: str
    series: list[Series]
    axes: dict[str, dict[str, Any]]
    across: list[Across] = field(default_factory=list)
    barmode: str = "group"

    def axis(self, name: str) -> dict[str, Any]:
        """Settings of an axis; empty where the figure has none."""
        return self.axes.get(name, {})


def read_figure(spec: dict[str, Any]) -> Figure:
    """Read Plotly's JSON. InputError for a kind of trace or a setting that charts do not know."""
    layout = spec["layout"]
    axes = {
        name.replace("axis", ""): _known("an axis", setting, _AXIS | _FORMAT)
        for name, setting in layout.items()
        if name.startswith(("xaxis", "yaxis"))
    }
    _known("the layout", {k: 0 for k in layout if not k.startswith(("xaxis", "yaxis"))}, _LAYOUT | _PLACED_HERE)
    tones: dict[object, str] = {}
    series = [_series(trace, place, tones) for place, trace in enumerate(spec["data"])]
    across = [_across(shape) for shape in layout.get("shapes", [])]
    for note in layout.get("annotations", []):
        across = [Across(one.x, one.dash, note["text"]) if one.x == note["x"] else one for one in across]
    return Figure(_text(layout.get("title")), series, axes, across, layout.get("barmode", "group"))


def _series(trace: dict[str, Any], place: int, tones: dict[object, str]) -> Series:
    _known("a trace", trace, _TRACE | _ONLY_HOVER)
    if trace["type"] not in ("scatter", "bar"):
        raise InputError("no such trace in a chart", got=trace["type"], expected="scatter or bar")
    line = _known("a line", trace.get("line", {}), {"color", "dash"})
    marker = _known("a marker", trace.get("marker", {}), {"color", "size", "symbol", "line"})
    colour = line.get("color", marker.get("color", place))
    if colour != NEUTRAL and colour not in tones:
        if len(tones) == len(TONES):
            raise InputError("a chart has too many colours", got=len(tones) + 1, expected=f"at most {len(TONES)}")
        tones[colour] = TONES[len(tones)]
    bar, mode = trace["type"] == "bar", trace.get("mode", "lines+markers")
    base = trace.get("base")
    return Series(
        trace.get("name", ""),
        _values(trace["x"]),
        _values(trace["y"]),
        tones.get(colour, "plain"),
        trace.get("xaxis", "x"),
        trace.get("yaxis", "y"),
        bar=bar,
        horizontal=trace.get("orientation") == "h",
        base=None if base is None else [float(one) for one in _values(base)],
        line=not bar and "lines" in mode,
        dash=_dash(line),
        marker=marker.get("symbol", "circle") if not bar and "markers" in mode else "",
        in_key=trace.get("showlegend", True),
    )


def _values(given: Any) -> list[Value]:
    """Values as Plotly's JSON has them: a list, or an array's bytes in base 64 with its type."""
    if isinstance(given, dict):
        return list(np.frombuffer(base64.b64decode(given["bdata"]), dtype=given["dtype"]).tolist())
    return list(given)


def _across(shape: dict[str, Any]) -> Across:
    if shape["type"] != "line" or shape["x0"] != shape["x1"] or not shape["yref"].endswith("domain"):
        raise InputError("no such shape in a chart", got=shape, expected="a line across at one x (add_vline)")
    return Across(float(shape["x0"]), _dash(shape.get("line", {})))


def _dash(line: dict[str, Any]) -> str:
    dash = line.get("dash", "")
    if dash not in ("", "solid", "dash", "dot"):
        raise InputError("no such dash in a chart", got=dash, expected="solid, dash or dot")
    return "" if dash == "solid" else str(dash)


def _text(title: Any) -> str:
    return str(title.get("text", "") if isinstance(title, dict) else title or "")


def _known(what: str, given: dict[str, Any], known: Iterable[str]) -> dict[str, Any]:
    if unknown := set(given) - set(known):
        raise InputError(
            f"charts do not know this about {what}", got=", ".join(sorted(unknown)), expected=", ".join(sorted(known))
        )
    return given
