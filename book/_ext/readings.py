"""The reading list and the syllabus as typed data, from readings.yml, syllabus.yml and the labs that are released.

The file keeps the order of the course. A reading's first chapter is its home; `for_chapter` puts a chapter's own
readings first, then those whose home is elsewhere, each group in the order of the file, and
`choose_next` takes from them what the chapter sends its reader to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path

from course_yaml import Record, part, records

from book.project import LABS
from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.stack.labinfo import LabInfo, released_labs

DATA = Path(__file__).parent.parent / "data"
READINGS = DATA / "readings.yml"
SYLLABUS = DATA / "syllabus.yml"

KINDS = ("course", "book", "paper", "blog", "video", "code", "slides", "docs", "forum")
LANGUAGES = {"en": "English", "zh": "Chinese"}
LEVELS = ("beginner", "intermediate", "advanced")
YEARLESS = {"current": "kept up to date", "unknown": "year not known"}
"""What stands in place of a year: the key in the file, and the words on the page."""
READ_NEXT = 6
"""How many readings a chapter sends its reader to at most."""
LONG_MINUTES = 600
"""From here on a work (a course, a book) is one to dip into: nobody's next reading, and its hours are not added up."""
# The five lists that the course was made from.
SEEDS = ("models-in-depth", "machine-learning-systems", "course-topics", "zh-mlsys", "ml-systems-engineering")

_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Reading:
    """One resource of the reading list.

    `url` is empty where no public address is known, and `look` then says where to look; `also` lists further addresses.
    `year` is a year or a key of YEARLESS; `seeds` are the lists that name the resource, none for our own additions.
    """

    id: str
    title: str
    authors: tuple[str, ...]
    year: int | str
    url: str
    look: str
    also: tuple[str, ...]
    kind: str
    language: str
    level: str
    minutes: int
    star: bool
    topics: tuple[str, ...]
    chapters: tuple[str, ...]
    seeds: tuple[str, ...]
    why: str
    note: str

    @property
    def home(self) -> str:
        """Topic of the chapter under which the full list shows this reading."""
        return self.chapters[0]

    @property
    def is_ours(self) -> bool:
        """Whether none of the five lists names it."""
        return not self.seeds


@dataclass(frozen=True)
class Lab:
    """A lab of the syllabus, written or planned; `number` is None for one of a later edition."""

    topic: str
    title: str
    number: int | None

    @property
    def page(self) -> str:
        """Path of the lab's page in the book, without suffix."""
        return f"labs/{self.number:02d}-{self.topic}" if self.number else ""


@dataclass(frozen=True)
class Chapter:
    """A chapter of the syllabus; `number` is None for one that is planned for a later edition.

    `subjects` are the topics of readings that the chapter is about, `after` those of the chapters that it builds on,
    and `able` is what its reader will be able to do.
    """

    topic: str
    title: str
    about: str
    subjects: tuple[str, ...]
    number: int | None
    labs: tuple[Lab, ...]
    after: tuple[str, ...] = ()
    able: tuple[str, ...] = ()

    @property
    def page(self) -> str:
        """Path of the chapter's page in the book, without suffix."""
        return f"chapters/{self.number:02d}-{self.topic}" if self.number else ""


@dataclass(frozen=True)
class Part:
    """A named part of the course and its chapters, in order."""

    title: str
    chapters: tuple[Chapter, ...]


@dataclass(frozen=True)
class Syllabus:
    """All parts of the course, in order."""

    parts: tuple[Part, ...]

    @property
    def chapters(self) -> tuple[Chapter, ...]:
        """Every chapter of the syllabus in order, those of later editions included."""
        return tuple(chapter for part in self.parts for chapter in part.chapters)

    def chapter(self, name: str) -> Chapter | None:
        """The chapter with the number ("02") or topic ("automatic-differentiation") `name`, or None."""
        return next((c for c in self.chapters if name == c.topic or (c.number and name == f"{c.number:02d}")), None)


def load(path: Path = READINGS) -> tuple[Reading, ...]:
    """Read every reading of the list at `path`, in order.

    Raises InputError, one line naming file, line, entry and field, for anything that a reading may not hold.
    """
    readings: list[Reading] = []
    seen: dict[str, str] = {}
    for record in records(path, name="id"):
        reading = _reading(record)
        for key in filter(None, (reading.id, reading.url, *reading.also)):
            if key in seen:
                raise record.wrong(
                    "id" if key == reading.id else "url", key, f"one entry for it; {seen[key]} has it already"
                )
            seen[key] = record.where
        readings.append(reading)
    return tuple(readings)


def load_syllabus(path: Path = SYLLABUS, labs: Iterable[LabInfo] | None = None) -> Syllabus:
    """The syllabus at `path`, with `labs` (the released ones if None) in place of the labs that it plans.

    Raises InputError as `load` does, and for a lab that belongs to no chapter of the syllabus.
    """
    parts: list[Part] = []
    seen: set[str] = set()
    for record in records(path, name="part"):
        record.only(("part", "chapters"))
        listed = record.values.get("chapters")
        if not isinstance(listed, list) or not listed:
            raise record.wrong("chapters", listed, "a list of chapters")
        inner = [part(record, "chapter", entry, "topic") for entry in listed]
        chapters = tuple(_chapter(entry) for entry in inner)
        for entry, chapter in zip(inner, chapters, strict=True):
            for key in filter(None, (chapter.topic, chapter.page, *(lab.page for lab in chapter.labs))):
                if key in seen:
                    raise entry.wrong("topic", key, "each topic and number once")
                seen.add(key)
            for topic in chapter.after:
                if topic not in seen:
                    raise entry.wrong("after", topic, "topics of chapters before it")
        parts.append(Part(record.text("part"), chapters))
    return _with_labs(Syllabus(tuple(parts)), tuple(released_labs(LABS) if labs is None else labs))


def for_chapter(readings: Iterable[Reading], topic: str) -> tuple[Reading, ...]:
    """A chapter's readings in the order to read them: first its own, then those whose home is another chapter."""
    listed = [reading for reading in readings if topic in reading.chapters]
    return tuple(sorted(listed, key=lambda reading: reading.home != topic))


def choose_next(readings: Iterable[Reading], chapter: Chapter) -> tuple[Reading, ...]:
    """Readings that a chapter sends its reader to, at most READ_NEXT, in order.

    They are the first of `for_chapter` that carry a subject of the chapter, have an address and are not long.
    """
    subjects = set(chapter.subjects)
    fitting = (
        reading
        for reading in for_chapter(readings, chapter.topic)
        if subjects & set(reading.topics) and reading.url and reading.minutes < LONG_MINUTES
    )
    return tuple(islice(fitting, READ_NEXT))


def time_label(minutes: int) -> str:
    """Format a reading time in minutes as a person says it.

    >>> [time_label(m) for m in (20, 60, 75, 241, 960, 3000)]
    ['20 min', '1 h', '1 h 15', '4 h', '16 h', '50 h']
    """
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest:02d}" if rest and hours < 4 else f"{round(minutes / 60)} h"


def _reading(record: Record) -> Reading:
    record.only(tuple(field.name for field in fields(Reading)))
    for field in ("id", "topics", "chapters"):
        for slug in (record.text(field),) if field == "id" else record.texts(field):
            if not _SLUG.fullmatch(slug):
                raise record.wrong(field, slug, "lower-case words joined by hyphens")
    url = record.text("url", optional=True)
    look = record.text("look", optional=True)
    note = record.text("note", optional=True)
    if not url and not (look and note):
        raise record.wrong("url", None, "an address, or a note on what it is and under 'look' an address to look at")
    also = record.texts("also", optional=True)
    for address in filter(None, (url, look, *also)):
        if not re.fullmatch(r"https?://[^\s\\]+", address):
            raise record.wrong("url", address, "http:// or https://, without spaces or backslashes")
    seeds = record.texts("seeds", optional=True)
    for seed in seeds:
        if seed not in SEEDS:
            raise record.wrong("seeds", seed, "one of " + ", ".join(SEEDS))
    return Reading(
        id=record.text("id"),
        title=record.text("title"),
        authors=record.texts("authors"),
        year=_year(record),
        url=url,
        look=look,
        also=also,
        kind=record.text("kind", one_of=KINDS),
        language=record.text("language", one_of=tuple(LANGUAGES)),
        level=record.text("level", one_of=LEVELS),
        minutes=record.number("minutes"),
        star=record.flag("star"),
        topics=record.texts("topics"),
        chapters=record.texts("chapters"),
        seeds=seeds,
        why=record.text("why"),
        note=note,
    )


def _year(record: Record) -> int | str:
    if isinstance(record.values.get("year"), str):
        return record.text("year", one_of=tuple(YEARLESS))
    return record.number("year")


def _chapter(record: Record) -> Chapter:
    record.only(("topic", "number", "title", "about", "subjects", "lab", "after", "able"))
    planned: tuple[Lab, ...] = ()
    if "lab" in record.values:
        entry = part(record, "lab", record.values["lab"], "topic")
        entry.only(("topic", "number", "title"))
        planned = (Lab(entry.text("topic"), entry.text("title"), _optional(entry, "number")),)
    number = _optional(record, "number")
    subjects = record.texts("subjects")
    after, able = record.texts("after", optional=True), record.texts("able", optional=True)
    title, about = record.text("title"), record.text("about")
    return Chapter(record.text("topic"), title, about, subjects, number, planned, after, able)


def _with_labs(syllabus: Syllabus, labs: Sequence[LabInfo]) -> Syllabus:
    pages = {chapter.page.removeprefix("chapters/") for chapter in syllabus.chapters if chapter.page}
    for lab in labs:
        if lab.chapter not in pages:
            raise InputError(
                f"{lab.folder / 'lab.toml'}: the lab's chapter is not in the syllabus",
                got=lab.chapter or "none",
                expected="a chapter NN-topic of syllabus.yml, first under [prerequisites]",
                help=did_you_mean(lab.chapter, pages),
            )
    written = {lab.topic for lab in labs}

    def labs_of(chapter: Chapter) -> tuple[Lab, ...]:
        own = [Lab(lab.topic, lab.title, lab.number) for lab in labs if f"chapters/{lab.chapter}" == chapter.page]
        return (*own, *(lab for lab in chapter.labs if lab.topic not in written))

    return Syllabus(
        tuple(
            replace(part, chapters=tuple(replace(chapter, labs=labs_of(chapter)) for chapter in part.chapters))
            for part in syllabus.parts
        )
    )


def _optional(record: Record, field: str) -> int | None:
    return record.number(field) if field in record.values else None
