"""A new lab that releases, proves and shows on the site at once: one example task, for its author to replace."""

from __future__ import annotations

import json
import keyword
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mlsys_grader.course.files import write_atomically
from mlsys_lab.errors import InputError
from mlsys_lab.stack.labinfo import FOLDER

TEMPLATES = Path(__file__).parent / "templates"
CHANGELOG, SYLLABUS = Path("book/changelog.md"), Path("book/data/syllabus.yml")
NEEDED = (
    Path("solutions"),
    Path("grader/mlsys_checks"),
    Path("tests/labs"),
    Path("book/chapters"),
    CHANGELOG,
    SYLLABUS,
)
"""What a checkout of the course has."""
ENTRY = "- Lab "
"""How the changelog's line of a lab begins."""


@dataclass(frozen=True)
class NewLab:
    """A lab to be written: its number, its topic as in `paged-cache`, its title, and the chapter that it belongs to."""

    number: int
    topic: str
    title: str
    chapter: str

    @property
    def name(self) -> str:
        """The folder's name, number included."""
        return f"{self.number:02d}-{self.topic}"

    @property
    def files(self) -> dict[Path, str]:
        """The template of each file, by the file's place in the checkout."""
        module = self.topic.replace("-", "_")
        checks, tests = Path("grader/mlsys_checks"), Path("tests/labs", module)
        return {
            Path("solutions", self.name, f"{self.name}.py"): "notebook.py",
            Path("solutions", self.name, "lab.toml"): "lab.toml",
            checks / "sandboxed" / f"{module}.py": "sandboxed.py",
            checks / "trusted" / f"{module}.py": "trusted.py",
            tests / "variants.diff": "variants.diff",
            tests / "alternatives" / "plain_python.py": "alternative.py",
            tests / f"test_{module}.py": "test_lab.py",
        }


def plan_lab(checkout: Path, topic: str, title: str | None = None, chapter: str | None = None) -> NewLab:
    """The lab of this topic that would come next in a checkout.

    Number, title and chapter are those that the syllabus plans for the topic. Where it plans none, the number comes
    after all labs written and planned, the title is the topic's words, and the chapter the one that the book has on the
    topic, else the last one. Raises `InputError` where the topic is no name or is taken, or the folder is no checkout.
    """
    if missing := [path for path in NEEDED if not (checkout / path).exists()]:
        raise InputError("no checkout of the course", got=f"{checkout} without {missing[0]}", help="--project DIR")
    if not FOLDER.fullmatch(f"00-{topic}") or keyword.iskeyword(topic):
        raise InputError("not a name for a topic", got=repr(topic), expected="lower-case words as in paged-cache")
    if title is not None and not (title.strip() and title.isprintable()):
        raise InputError("not a title", got=repr(title), expected="one line of text")
    taken = [match for path in (checkout / "solutions").iterdir() if (match := FOLDER.fullmatch(path.name))]
    planned = read_plans(checkout)
    last = max((*(int(match[1]) for match in taken), *(lab.number for lab in planned.values())), default=0)
    lab = planned.get(topic) or NewLab(
        last + 1, topic, topic.replace("-", " ").capitalize(), _find_chapter(checkout, topic)
    )
    if chapter is not None and not FOLDER.fullmatch(chapter):
        raise InputError("not a chapter", got=chapter, expected="NN-topic, as in 06-triton")
    lab = replace(lab, title=title or lab.title, chapter=chapter or lab.chapter)
    if existing := [match[0] for match in taken if match[2] == topic]:
        raise InputError("there is a lab of this topic", got=existing[0], help="edit it, or choose another topic")
    for path in lab.files:
        if (checkout / path).exists():
            raise InputError("a file of the new lab is there already", got=path, help="choose another topic")
    return lab


def read_plans(checkout: Path) -> dict[str, NewLab]:
    """Read the labs that the syllabus plans with a number, by topic."""
    parts = yaml.safe_load((checkout / SYLLABUS).read_text(encoding="utf-8"))
    return {
        lab["topic"]: NewLab(lab["number"], lab["topic"], lab["title"], f"{chapter['number']:02d}-{chapter['topic']}")
        for part in parts
        for chapter in part["chapters"]
        for lab in [chapter.get("lab"), *chapter.get("labs", [])]
        if lab and "number" in lab and "number" in chapter
    }


def write(lab: NewLab, checkout: Path) -> list[Path]:
    """Write a planned lab's files, and its line of the changelog; returns the paths, relative to the checkout."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    values = {
        "number": lab.number,
        "topic": lab.topic,
        "title": lab.title,
        "title_literal": json.dumps(lab.title, ensure_ascii=False),
        "chapter": lab.chapter,
        "module": lab.topic.replace("-", "_"),
    }
    for path, template in lab.files.items():
        text = environment.get_template(f"{template}.jinja").render(values)
        write_atomically(checkout / path, text.encode())
    changelog = checkout / CHANGELOG
    text = add_entry(changelog.read_text(encoding="utf-8"), f"{ENTRY}{lab.number}, {lab.title}.")
    write_atomically(changelog, text.encode())
    return [*lab.files, CHANGELOG]


def add_entry(changelog: str, entry: str) -> str:
    """A changelog with `entry` behind the last lab of its newest edition, or first of it where it has none."""
    lines = changelog.splitlines()
    editions = [place for place, line in enumerate(lines) if line.startswith("## ")]
    if not editions:
        raise InputError(f"{CHANGELOG} has no edition", expected="a line that begins with `## `")
    first, end = editions[0], (*editions, len(lines))[1]
    place = max((at for at in range(first, end) if lines[at].startswith(ENTRY)), default=first + 1)
    return "\n".join([*lines[: place + 1], entry, *lines[place + 1 :], ""])


def _find_chapter(checkout: Path, topic: str) -> str:
    """The chapter that the book has on a topic, else its last one."""
    chapters = sorted(path.stem for path in (checkout / "book" / "chapters").glob("[0-9][0-9]-*.md"))
    return next((name for name in chapters if name[3:] == topic), chapters[-1])
