"""HTML of the reading list and of a chapter's "Read next": data in, text out, no Sphinx.

Both work as they stand without JavaScript. readings.js brings check-off, progress and filters to life, by the `data-*`
hooks; they are in the page from the beginning, so that nothing moves when it does, and hidden where no script runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from urllib.parse import quote, urlsplit

from readings import (
    LANGUAGES,
    LEVELS,
    LONG_MINUTES,
    YEARLESS,
    Chapter,
    Reading,
    Syllabus,
    choose_next,
    for_chapter,
    time_label,
)

KIND_LABELS = {
    "course": "Course",
    "book": "Book",
    "paper": "Paper",
    "blog": "Article",
    "video": "Video",
    "code": "Code",
    "slides": "Slides",
    "docs": "Documentation",
    "forum": "Discussion",
}
# Reading times that the filter offers, in minutes.
TIMES = (30, 60, 120, 600)
SCRIPTED = "pst-js-only"
"""The theme's class for what is hidden where no script runs."""
_STAR = ' <span class="readings-star" role="img" aria-label="singled out by a list">★</span>'
_OURS = ' <span class="readings-ours">our addition</span>'

_CAPITALS = {"cuda": "CUDA", "gpu": "GPU", "tpu": "TPU", "kv": "KV", "pytorch": "PyTorch", "triton": "Triton"}


def topic_label(topic: str) -> str:
    """Format a topic's slug as a person writes it.

    >>> topic_label("kv-cache"), topic_label("data-parallelism")
    ('KV cache', 'Data parallelism')
    """
    words = " ".join(_CAPITALS.get(word, word) for word in topic.split("-"))
    return words[0].upper() + words[1:]


def chapter_label(chapter: Chapter) -> str:
    """Number and title of a chapter; the title alone for one of a later edition."""
    return f"{chapter.number}. {chapter.title}" if chapter.number else chapter.title


def load_label(readings: Sequence[Reading]) -> str:
    """Amount of reading as text, "7 readings · 5 h", with long works counted apart."""
    short = [reading for reading in readings if reading.minutes < LONG_MINUTES]
    long = len(readings) - len(short)
    parts = []
    if short:
        parts.append(f"{count(len(short), 'reading')} · {time_label(sum(reading.minutes for reading in short))}")
    if long:
        parts.append(count(long, "course or book", "courses and books"))
    return " + ".join(parts)


def table(readings: Sequence[Reading], syllabus: Syllabus) -> str:
    """HTML of the whole list as one table, grouped by home chapter, with the filter form of readings.js."""
    groups = []
    for chapter in syllabus.chapters:
        own = [reading for reading in readings if reading.home == chapter.topic]
        rows = "\n".join(_row(reading, syllabus) for reading in own)
        heading = (
            f'<tr class="readings-group"><th colspan="4" scope="rowgroup">{escape(chapter_label(chapter))}</th></tr>'
        )
        if own:
            groups.append(f'<tbody id="chapter={chapter.topic}">\n{heading}\n{rows}\n</tbody>')
    return "\n".join(
        [
            '<div class="readings" data-readings>',
            _filters(readings, syllabus),
            _bar(len(readings)),
            '<table class="readings-table">',
            '<caption class="readings-hidden">The reading list, in the order of the course</caption>',
            '<thead><tr><th scope="col">Reading</th><th scope="col">Kind</th>'
            '<th scope="col">Level</th><th scope="col">Time</th></tr></thead>',
            *groups,
            "</table>",
            '<p class="readings-none" hidden>Nothing on the list fits these filters.</p>',
            "</div>",
        ]
    )


def read_next(readings: Sequence[Reading], chapter: Chapter, list_uri: str) -> str:
    """HTML of what the chapter sends its reader to, in order, and a link to all that the list has for it."""
    chosen = choose_next(readings, chapter)
    everything = len(for_chapter(readings, chapter.topic))
    return "\n".join(
        [
            f'<div class="read-next" data-readings-list data-chapter="{chapter.topic}">',
            progress(chosen),
            '<ol class="read-next-list">',
            *(_item(reading) for reading in chosen),
            "</ol>",
            f'<p class="read-next-all"><a href="{list_uri}#chapter={chapter.topic}">'
            f"All {everything} readings for this chapter</a></p>",
            "</div>",
        ]
    )


def _row(reading: Reading, syllabus: Syllabus) -> str:
    data = {
        "id": reading.id,
        "kind": reading.kind,
        "level": reading.level,
        "language": reading.language,
        "minutes": str(reading.minutes),
        "topics": " ".join(reading.topics),
        "chapters": " ".join(reading.chapters),
        "star": "1" if reading.star else "",
        "ours": "1" if reading.is_ours else "",
    }
    attributes = " ".join(f'data-{name}="{escape(value)}"' for name, value in data.items())
    chapters = ", ".join(_chapter_link(chapter) for chapter in syllabus.chapters if chapter.topic in reading.chapters)
    topics = ", ".join(f'<span data-topic="{topic}">{escape(topic_label(topic))}</span>' for topic in reading.topics)
    ours = _OURS if reading.is_ours else ""
    return (
        f'<tr id="reading-{reading.id}" {attributes}>'
        f'<td class="readings-what">{_title(reading)}{ours}<p class="readings-by">{_by(reading)}</p>'
        f'<p class="readings-why">{escape(reading.why)}</p>'
        f'<p class="readings-tags">Topics: {topics} · Chapters: {chapters}</p>{_note(reading)}</td>'
        f'<td class="readings-kind">{KIND_LABELS[reading.kind]}{_language(reading)}</td>'
        f'<td class="readings-level">{reading.level.capitalize()}</td>'
        f'<td class="readings-time">{time_label(reading.minutes)}</td></tr>'
    )


def _title(reading: Reading) -> str:
    language = f' lang="{reading.language}"' if reading.language != "en" else ""
    title = escape(reading.title)
    linked = (
        f'<a class="readings-link" href="{escape(reading.url)}"{language}>{title}</a>'
        if reading.url
        else f"<span{language}>{title}</span>"
    )
    check = (
        f'<input type="checkbox" class="readings-check {SCRIPTED}" aria-label="I have read: {escape(reading.title)}">'
    )
    return f'{check}<span class="readings-title">{linked}{_STAR if reading.star else ""}</span>'


def _by(reading: Reading) -> str:
    year = YEARLESS[reading.year] if isinstance(reading.year, str) else reading.year
    return f"{escape(', '.join(reading.authors))}\u00a0· {year}"


def _note(reading: Reading) -> str:
    if reading.look:
        where = f'<a href="{escape(reading.look)}">{escape(urlsplit(reading.look).netloc)}</a>'
        return f'<p class="readings-look">{escape(reading.note)} Where to look: the list itself, {where}.</p>'
    return f"<details><summary>About this entry</summary>{escape(reading.note)}</details>" if reading.note else ""


def _language(reading: Reading) -> str:
    if reading.language == "en":
        return ""
    return f' <span class="readings-language">in {LANGUAGES[reading.language]}</span>'


def _item(reading: Reading) -> str:
    kind = KIND_LABELS[reading.kind] + _language(reading)
    return (
        f'<li data-id="{reading.id}">{_title(reading)} '
        f'<span class="read-next-by">{_by(reading)}</span>'
        f'<p class="read-next-meta">{kind} · {time_label(reading.minutes)} · {reading.level}</p>'
        f'<p class="readings-why">{escape(reading.why)}</p></li>'
    )


def _chapter_link(chapter: Chapter) -> str:
    shown = str(chapter.number) if chapter.number else escape(chapter.title)
    return f'<a href="#chapter={chapter.topic}" title="{escape(chapter.title)}">{shown}</a>'


def progress(readings: Sequence[Reading]) -> str:
    """HTML of the bar of how many of `readings` the reader has read, none before readings.js counts."""
    ids = " ".join(reading.id for reading in readings)
    return (
        f'<p class="readings-progress {SCRIPTED}" data-progress="{ids}">'
        f'<progress max="{len(readings)}" value="0" aria-label="Read so far"></progress> '
        f"<span>0 of {len(readings)} read</span></p>"
    )


def _filters(readings: Sequence[Reading], syllabus: Syllabus) -> str:
    topics = sorted({topic for reading in readings for topic in reading.topics}, key=topic_label)
    chapters = [chapter for chapter in syllabus.chapters if for_chapter(readings, chapter.topic)]
    kinds = [kind for kind in KIND_LABELS if any(reading.kind == kind for reading in readings)]
    languages = [code for code in LANGUAGES if any(reading.language == code for reading in readings)]
    return "\n".join(
        [
            f'<form class="readings-filters {SCRIPTED}" role="search" aria-label="Filter the reading list">',
            '<label class="readings-search">Search the list<input type="search" name="find" autocomplete="off" '
            'placeholder="Title, author, topic …"></label>',
            _select("chapter", "Chapter", "All chapters", [(c.topic, chapter_label(c)) for c in chapters]),
            _select("topic", "Topic", "All topics", [(topic, topic_label(topic)) for topic in topics]),
            _select("kind", "Kind", "All kinds", [(kind, KIND_LABELS[kind]) for kind in kinds]),
            _select("level", "Level", "All levels", [(level, level.capitalize()) for level in LEVELS]),
            _select("language", "Language", "All languages", [(code, LANGUAGES[code]) for code in languages]),
            _select("time", "Time", "Any length", [(str(m), f"Up to {time_label(m)}") for m in TIMES]),
            _select(
                "show",
                "Show",
                "All",
                [
                    ("unread", "Not read yet"),
                    ("read", "Read"),
                    ("star", "★ Singled out by a list"),
                    ("seeds", "Named by the five lists"),
                    ("ours", "Our additions"),
                ],
            ),
            '<button type="reset">Clear filters</button>',
            "</form>",
        ]
    )


def _select(name: str, label: str, everything: str, options: Sequence[tuple[str, str]]) -> str:
    listed = "".join(f'<option value="{quote(value)}">{escape(text)}</option>' for value, text in options)
    return f'<label>{label}<select name="{name}"><option value="">{everything}</option>{listed}</select></label>'


def _bar(readings: int) -> str:
    return (
        f'<div class="readings-bar {SCRIPTED}">'
        f'<p class="readings-count" role="status" aria-live="polite">All {count(readings, "reading")}</p>'
        '<p class="readings-mine"><span data-mine>You have read 0.</span> '
        '<button type="button" data-export>Export</button> '
        '<button type="button" data-import>Import</button>'
        '<input type="file" accept="application/json,.json" aria-label="File with exported progress" hidden></p>'
        '<p class="readings-message" role="status" aria-live="polite"></p></div>'
    )


def count(number: int, one: str, many: str = "") -> str:
    """Format a number and its noun: `count(1, "lab")` is "1 lab"."""
    return f"{number} {one if number == 1 else many or one + 's'}"
