"""Directives for the reading list and the syllabus.

    {readings-table}      the whole list, one table that readings.js makes searchable
    {readings} 02         a chapter's "Read next"; takes a number or a topic
    {syllabus-map}        parts, chapters, labs and readings as a map
    {milestone-path}      the capstone's milestones by year

A page that uses one is rebuilt when the data or this code changes, one with a map also when a chapter or lab page comes
or goes.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import course_yaml
import milestone_path
import readings
import readings_html
import readings_map
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

from book.project import LABS
from mlsys_lab.errors import InputError

_MODULES = (course_yaml, milestone_path, readings, readings_html, readings_map)
_CODE = (__file__, *(module.__file__ for module in _MODULES))
# The pages' own assets; a builder that already adds everything in _static lists the same files once.
_MAP = "syllabus_map"  # marks a page with a map in the environment's metadata
_ASSETS = {"css": ("readings.css", "syllabus.css", "milestones.css"), "js": ("readings.js",)}


class _CourseDirective(SphinxDirective):
    """Base of the directives: loads the course data, notes what the page depends on, reports mistakes in one line."""

    def run(self) -> list[nodes.Node]:
        for path in (readings.READINGS, readings.SYLLABUS, *_descriptions(), *_CODE):
            self.env.note_dependency(str(path))
        try:
            html = self.html(_readings(), _syllabus())
        except InputError as error:
            raise self.severe(str(error)) from error
        return [nodes.raw("", html, format="html")]

    def html(self, listed: tuple[readings.Reading, ...], syllabus: readings.Syllabus) -> str:
        """HTML of the directive, from the readings and the syllabus; every subclass defines it."""
        raise NotImplementedError

    def uri(self, page: str) -> str | None:
        """Relative link to `page` from the current page; None where the book has no such page."""
        if page not in self.env.found_docs:
            return None
        return self.env.app.builder.get_relative_uri(self.env.docname, page)


class ReadingsTable(_CourseDirective):
    """Directive {readings-table}: the whole reading list."""

    def html(self, listed: tuple[readings.Reading, ...], syllabus: readings.Syllabus) -> str:
        """HTML of the whole list as a table."""
        return readings_html.table(listed, syllabus)


class ReadNext(_CourseDirective):
    """Directive {readings}: one chapter's readings, in order."""

    required_arguments: ClassVar[int] = 1

    def html(self, listed: tuple[readings.Reading, ...], syllabus: readings.Syllabus) -> str:
        """HTML of the chapter's list; InputError for a chapter that the syllabus does not have."""
        chapter = syllabus.chapter(self.arguments[0])
        if chapter is None:
            known = ", ".join(chapter.topic for chapter in syllabus.chapters)
            raise InputError(
                "unknown chapter in {readings}", got=self.arguments[0], expected=f"a number or one of {known}"
            )
        return readings_html.read_next(listed, chapter, self.uri("readings") or "")


class SyllabusMap(_CourseDirective):
    """Directive {syllabus-map}: the course as a map."""

    def html(self, listed: tuple[readings.Reading, ...], syllabus: readings.Syllabus) -> str:
        """HTML of the map, with links to the pages that the book has so far."""
        self.env.metadata[self.env.docname][_MAP] = True
        return readings_map.syllabus_map(listed, syllabus, self.uri)


class MilestonePath(_CourseDirective):
    """Directive {milestone-path}: the capstone's milestones by year."""

    def html(self, listed: tuple[readings.Reading, ...], syllabus: readings.Syllabus) -> str:
        """HTML of the path, with links to the pages that the book has so far."""
        self.env.metadata[self.env.docname][_MAP] = True
        return milestone_path.milestone_path(syllabus, self.uri)


def _descriptions() -> list[Path]:
    """The lab.toml of every released lab."""
    return sorted(LABS.glob("*/lab.toml"))


def _readings() -> tuple[readings.Reading, ...]:
    return _loaded(readings.load, readings.READINGS, _changed(readings.READINGS))


def _syllabus() -> readings.Syllabus:
    return _loaded(readings.load_syllabus, readings.SYLLABUS, _changed(readings.SYLLABUS, *_descriptions()))


@lru_cache(maxsize=8)
def _loaded(load: Any, path: Path, changed: tuple[int, ...]) -> Any:  # `changed` makes a saved edit be read again
    return load(path)


def _changed(*paths: Path) -> tuple[int, ...]:
    return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)  # `load` reports a missing file


def _outdated_maps(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Pages with a map, to be read again when chapters or labs were added or removed."""
    if not any(page.startswith(("chapters/", "labs/")) for page in added | removed):
        return []
    return [page for page in env.found_docs if env.metadata[page].get(_MAP)]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives and their assets with Sphinx."""
    app.add_directive("readings-table", ReadingsTable)
    app.add_directive("readings", ReadNext)
    app.add_directive("syllabus-map", SyllabusMap)
    app.add_directive("milestone-path", MilestonePath)
    app.connect("env-get-outdated", _outdated_maps)
    for name in _ASSETS["css"]:
        app.add_css_file(name, priority=800)
    for name in _ASSETS["js"]:
        app.add_js_file(name, priority=800)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
