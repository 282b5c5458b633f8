"""HTML of the syllabus map: the course at a glance, a band per part, a card per chapter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from readings import Chapter, Lab, Part, Reading, Syllabus
from readings_html import count, load_label, progress

Uri = Callable[[str], str | None]  # page -> relative address, None where the book has no such page


def syllabus_map(readings: Sequence[Reading], syllabus: Syllabus, uri: Uri) -> str:
    """HTML of the course as a map: a band per part, a card per chapter, with its lab, readings and progress."""
    chapters = syllabus.chapters
    labs = [lab for chapter in chapters for lab in chapter.labs]
    ready = sum(1 for chapter in chapters if chapter.page and uri(chapter.page))
    labs_ready = sum(1 for lab in labs if lab.page and uri(lab.page))
    done = f"{ready} of {len(chapters)} chapters, {labs_ready} of {len(labs)} labs"
    totals = f"Ready: {done} · {count(len(readings), 'reading')}"
    bands = "\n".join(_band(part, readings, uri) for part in syllabus.parts)
    head = f'<div class="syllabus-totals"><p>{totals}</p>{progress(readings)}</div>'
    return f'<div class="syllabus">\n{head}\n{bands}\n</div>'


def _band(part: Part, readings: Sequence[Reading], uri: Uri) -> str:
    cards = "\n".join(_card(chapter, readings, uri) for chapter in part.chapters)
    heading = f"<h2>{escape(part.title)}</h2>"
    return f'<section class="syllabus-part">{heading}\n<ol class="syllabus-cards">\n{cards}\n</ol></section>'


def _card(chapter: Chapter, readings: Sequence[Reading], uri: Uri) -> str:
    page = uri(chapter.page) if chapter.page else None
    title = escape(chapter.title)
    if page:
        state, title = "ready", f'<a href="{page}">{title}</a>'
    else:
        state = "soon" if chapter.number else "later"
    badge = {"ready": "", "soon": "In preparation", "later": "Later edition"}[state]
    own = [reading for reading in readings if reading.home == chapter.topic]
    lines = [
        f'<li class="syllabus-card syllabus-{state}" data-topic="{chapter.topic}">',
        '<p class="syllabus-top">'
        + (f'<span class="syllabus-number">{chapter.number:02d}</span>' if chapter.number else "")
        + (f'<span class="syllabus-badge">{badge}</span>' if badge else "")
        + "</p>",
        f"<h3>{title}</h3>",
        f'<p class="syllabus-about">{escape(chapter.about)}</p>',
        *(_lab_line(lab, uri) for lab in chapter.labs),
    ]
    if own:
        lines.append(
            f'<p class="syllabus-line"><span class="syllabus-key">Read</span>'
            f'<a href="{uri("readings")}#chapter={chapter.topic}">{load_label(own)}</a></p>'
        )
        lines.append(progress(own))
    return "\n".join(filter(None, lines)) + "\n</li>"


def _lab_line(lab: Lab, uri: Uri) -> str:
    name = escape(f"{lab.number}. {lab.title}" if lab.number else lab.title)
    page = uri(lab.page) if lab.page else None
    shown = f'<a href="{page}">{name}</a>' if page else name
    return f'<p class="syllabus-line"><span class="syllabus-key">Lab</span><span>{shown}</span></p>'
