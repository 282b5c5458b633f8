"""HTML of the milestones as a path by year; milestones.js lets a reader tick what is reproduced."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from readings import Syllabus

from mlsys_lab.capstone import LAYERS
from mlsys_lab.capstone.milestones import MILESTONES, Milestone


def milestone_path(syllabus: Syllabus, uri: Callable[[str], str | None]) -> str:
    """HTML of all milestones in the order of their years, with links to the pages that the book has so far."""
    items = "\n".join(_item(one, syllabus, uri) for one in MILESTONES)
    return f'<ol class="milestones">\n{items}\n</ol>'


def _item(milestone: Milestone, syllabus: Syllabus, uri: Callable[[str], str | None]) -> str:
    links = "".join(f'<a href="{page}">{escape(name)}</a>' for name, page in _pages(milestone, syllabus, uri))
    return f"""<li class="milestone" id="{milestone.name}" data-milestone="{milestone.name}">
<p class="milestone-year">{milestone.year}</p>
<h2>{escape(milestone.title)}</h2>
<p class="milestone-source">{escape(milestone.source)}</p>
<p>{escape(milestone.scope)}</p>
<p class="milestone-do"><code>mlsys-lab milestones {milestone.name}</code>{links}</p>
</li>"""


def _pages(milestone: Milestone, syllabus: Syllabus, uri: Callable[[str], str | None]) -> list[tuple[str, str]]:
    """Name and address of the lab whose code a milestone runs first, and of its chapter."""
    (topic,) = (spec.topic for spec in LAYERS if spec.field == next(iter(milestone.needs)))
    chapter, lab = next((c, lab) for c in syllabus.chapters for lab in c.labs if lab.topic == topic)
    named = ((f"Lab {lab.number}", lab.page), (f"Chapter {chapter.number}", chapter.page))
    return [(name, page) for name, one in named if (page := uri(one))]
