"""The figures' JavaScript as text, and the HTML that places a figure on a page of the site."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from mlsys_lab.errors import InputError

_FOLDER = files("mlsys_lab.widgets")
_SHARED = {"common", "graph"}
_SITE_ONLY = {"load", "plots"}
_NAMES = {Path(part.name).stem for part in _FOLDER.iterdir() if part.name.endswith(".js")} - _SHARED
_BEFORE = {"backward": ("common", "graph"), "load": ()}
FIGURES = tuple(sorted(_NAMES - _SITE_ONLY))
"""Each has a file `<name>.js` that ends by registering `<mlsys-name>` and exporting `{ render }`."""


def esm(name: str) -> str:
    """The ES module `name` as one text without imports."""
    if name not in _NAMES:
        raise InputError("no such figure module", got=repr(name), expected="one of " + ", ".join(sorted(_NAMES)))
    parts = (*_BEFORE.get(name, ("common",)), name)
    return "".join((_FOLDER / f"{part}.js").read_text(encoding="utf-8") for part in parts)


def write_modules(folder: Path) -> list[Path]:
    """Write every module into `folder` (the site's `_static/widgets`); `load.js` is the one that pages load."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in sorted(_NAMES):
        path = folder / f"{name}.js"
        path.write_text(esm(name), encoding="utf-8")
        paths.append(path)
    return paths


def script_json(data: Any) -> str:
    """JSON that may stand inside a `<script>` element: no `<`, so that nothing in it can end the element.

    Raises `InputError` for values that JSON does not have (NaN, infinity, foreign objects).
    """
    try:
        text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InputError("a figure's data must be plain JSON", got=str(error)) from error
    return text.replace("<", "\\u003c")


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table with escaped cells."""
    lines = "".join("<tr>" + "".join(f"<td>{html.escape(str(c))}</td>" for c in row) + "</tr>" for row in rows)
    return "<table><tr>" + "".join(f"<th>{html.escape(str(c))}</th>" for c in head) + f"</tr>{lines}</table>"


class Element:
    """A figure on a page: a custom element around its data, and a table where no script runs."""

    def __init__(self, name: str, data: dict[str, Any], fallback: str) -> None:
        self._html = (
            f'<mlsys-{name}><script type="application/json">{script_json(data)}</script>{fallback}</mlsys-{name}>'
        )

    def _repr_html_(self) -> str:
        return self._html


def element(name: str, *, fallback: str = "", **data: Any) -> Element:
    """The figure `name` with its data, for a page of the site; `fallback` is HTML shown until the figure runs.

    >>> element("roofline", devices=[])._repr_html_()
    '<mlsys-roofline><script type="application/json">{"devices":[]}</script></mlsys-roofline>'
    """
    if name not in FIGURES:
        raise InputError("no such figure", got=repr(name), expected="one of " + ", ".join(FIGURES))
    return Element(name, data, fallback)
