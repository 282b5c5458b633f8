"""The table of contents, out of the syllabus: every chapter that is written, and behind it its released labs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from readings import Syllabus, load_syllabus
from sphinx.application import Sphinx
from sphinx.config import Config

from book.files import write_if_changed
from book.project import BOOK, BUILD

FIRST = ("syllabus", "milestones", "readings", "instructors", "lectures")
LAST = ("cheat-sheet", "estimator", "planner", "leaderboard", "references", "glossary", "changelog")
"""Pages that stand before all parts of the syllabus, and behind them."""


def contents(syllabus: Syllabus, book: Path = BOOK) -> dict[str, Any]:
    """What a _toc.yml holds: of the syllabus the chapters that have a page in `book`, and the labs staged there.

    Chapters have their number before their title, as labs have in their own titles.
    """
    titles = {one.page: f"{one.number} · {one.title}" for one in syllabus.chapters if one.number}
    parts = [("The course", FIRST)]
    for part in syllabus.parts:
        listed = [page for chapter in part.chapters for page in (chapter.page, *(lab.page for lab in chapter.labs))]
        if there := tuple(page for page in listed if page and list(book.glob(f"{page}.*"))):
            parts.append((part.title, there))
    parts.append(("Reference", LAST))
    return {
        "format": "jb-book",
        "root": "index",
        "parts": [
            {"caption": caption, "chapters": [_entry(page, titles) for page in pages]} for caption, pages in parts
        ],
    }


def _entry(page: str, titles: Mapping[str, str]) -> dict[str, str]:
    return {"file": page} | ({"title": titles[page]} if page in titles else {})


def write_contents(app: Sphinx, config: Config) -> None:
    """Write the table of contents below build/, and have it read from there."""
    path = BUILD / "book-toc.yml"
    write_if_changed(path, yaml.safe_dump(contents(load_syllabus()), sort_keys=False).encode())
    config.external_toc_path = path.as_posix()


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx, before the table of contents is read."""
    app.connect("config-inited", write_contents, priority=899)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
