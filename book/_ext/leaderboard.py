"""Directive {leaderboard}: the capstone's entries as three tables, each ranked by one figure.

The page is complete without a script; leaderboard.js sorts a table by the column whose heading is clicked.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import date
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from book.project import BOOK
from mlsys_lab.errors import InputError

ENTRIES, BUNDLES = BOOK / "data" / "leaderboard.toml", BOOK / "data" / "bundles"


@dataclass(frozen=True)
class Entry:
    """What `mlsys-grader leaderboard` prints of a bundle, with a link to who made it, or ""."""

    name: str
    link: str
    date: date
    sha256: str
    text: str
    own_layers: int
    machine: str
    bits_per_byte: float
    fraction_of_bound: float
    prediction_error: float


@dataclass(frozen=True)
class Ranking:
    """A table: its title, the field that ranks, its heading, how its values are shown, and whether most comes first.

    `depends_on` is the field that two entries must share to be compared.
    """

    title: str
    field: str
    heading: str
    shown: str
    depends_on: str
    most_first: bool = False


RANKINGS = (
    Ranking("Bits per byte", "bits_per_byte", "bits per byte", "{:.4g}", "text"),
    Ranking("Fraction of the bound", "fraction_of_bound", "fraction", "{:.1%}", "machine", most_first=True),
    Ranking("Prediction error", "prediction_error", "error", "{:.1%}", "machine"),
)


def load(path: Path = ENTRIES, bundles: Path = BUNDLES) -> list[Entry]:
    """Entries of a file; InputError for other fields, types and links, and for a bundle that is not the entry's."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))["entries"]
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        raise InputError(f"{path.name} has no entries", got=error) from None
    return [_read(path.name, number, values, bundles) for number, values in enumerate(found, start=1)]


def _read(file: str, number: int, values: dict[str, Any], bundles: Path) -> Entry:
    where = f"{file}, entry {number}"
    types = {field.name: str(field.type) for field in fields(Entry)}
    if values.keys() != types.keys():
        raise InputError(where, got=", ".join(values), expected=", ".join(types))
    for name, value in values.items():
        if type(value).__name__ != types[name]:
            raise InputError(f"{where}: {name}", got=repr(value), expected=types[name])
    entry = Entry(**values)
    if entry.link and not entry.link.startswith("https://"):
        raise InputError(f"{where}: link", got=entry.link, expected="https://…")
    bundle = bundles / f"{entry.name}.json"
    if not bundle.is_file() or (digest := hashlib.sha256(bundle.read_bytes()).hexdigest()) != entry.sha256:
        got = digest if bundle.is_file() else f"no file {bundle.name}"
        raise InputError(f"{where}: the bundle is not the one that was run again", got=got, expected=entry.sha256)
    return entry


def table(entries: Sequence[Entry], ranking: Ranking) -> str:
    """HTML of the entries, best first."""
    ranked = sorted(entries, key=lambda one: getattr(one, ranking.field), reverse=ranking.most_first)
    headings = ("rank", "entry", ranking.heading, "own layers", "date", ranking.depends_on)
    head = "".join(f'<th scope="col">{heading}</th>' for heading in headings)
    rows = (_row(rank, entry, ranking) for rank, entry in enumerate(ranked, start=1))
    label = f'aria-label="{ranking.title}"'
    return (
        f'<div class="pst-scrollable-table-container"><table class="table leaderboard" {label}>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _row(rank: int, entry: Entry, ranking: Ranking) -> str:
    name, value = escape(entry.name), getattr(entry, ranking.field)
    linked = f'<a href="{escape(entry.link)}">{name}</a>' if entry.link else name
    numbers = (rank, value, entry.own_layers)
    shown = (str(rank), ranking.shown.format(value), str(entry.own_layers))
    first, figure, layers = (
        f'<td data-value="{number}">{text}</td>' for number, text in zip(numbers, shown, strict=True)
    )
    others = "".join(f"<td>{escape(str(text))}</td>" for text in (entry.date, getattr(entry, ranking.depends_on)))
    return f"<tr>{first}<td>{linked}</td>{figure}{layers}{others}</tr>"


class Leaderboard(SphinxDirective):
    """The three tables under their titles; no arguments."""

    def run(self) -> list[nodes.Node]:
        """Read the entries, and return a section for each ranking."""
        for path in (ENTRIES, *BUNDLES.glob("*.json"), Path(__file__)):
            self.env.note_dependency(str(path))
        try:
            entries = load()
        except InputError as error:
            raise self.severe(str(error)) from error
        sections: list[nodes.Node] = []
        for ranking in RANKINGS:
            section = nodes.section(ids=[nodes.make_id(ranking.title)], names=[ranking.title.lower()])
            section += nodes.title("", ranking.title)
            section += nodes.raw("", table(entries, ranking), format="html")
            sections.append(section)
        return sections


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("leaderboard", Leaderboard)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
