"""The site's one style sheet: the theme's, its extensions' and ours in their order, without rules for what no page has.

The theme alone brings 400 kB, most of it for icons and parts of Bootstrap that this book does not use, and a browser
paints nothing before it has read all style sheets.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

GROUPS = ("@media", "@supports", "@layer", "@container")
"""At-rules around rules."""
DROPPED = ("@charset", "@import")
"""Statements that mean nothing in the middle of a sheet; imports have been put in."""

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_STRING = r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\''
_MARK = re.compile(rf"{_STRING}|url\([^\"')]*\)|[{{}};]", re.DOTALL)
_IMPORT = re.compile(r'@import\s+(?:url\()?["\']?([^"\');]+)["\']?\)?\s*;')
_URL = re.compile(r"""url\((["']?)(?!data:|#|/|https?:)([^"')]+)\1\)""")
_COMMA = re.compile(r",(?![^(]*\))(?![^\[]*\])")
_ATTRIBUTE = re.compile(rf"\[(?:{_STRING}|[^\]])*\]")
_NOT = re.compile(r":not\((?:[^()]|\([^()]*\))*\)")
_CHOICE = re.compile(r":(?:is|where|has|-webkit-any)\(")
_NAME = re.compile(r"[.#]((?:[\w-]|\\.)+)")
_MARKED = re.compile(r'\b(?:class|id)="([^"]*)"')
_WORD = re.compile(r"[\w-]+")


def bundle(static: Path, names: Iterable[str]) -> str:
    """The style sheets `names` of the folder `static` as one in that folder: imports in place, addresses led anew."""
    return "\n".join(_read(static, name) for name in names)


def prune(css: str, words: Collection[str]) -> str:
    """A style sheet without comments, and without selectors that name a class or an id that is not in `words`.

    >>> prune(".used, .gone { a: b } @media print { .gone p { c: d } } :is(.gone) { e: f }", {"used"})
    '.used{a: b}\\n:is(.gone){e: f}'
    """
    return "\n".join(_pruned(_COMMENT.sub("", css), words))


def page_words(pages: Iterable[Path], scripts: Iterable[Path]) -> set[str]:
    """Classes and ids of pages, and all words of the scripts, which may set any of them."""
    words: set[str] = set()
    for page in pages:
        for value in set(_MARKED.findall(page.read_text(encoding="utf-8"))):
            words.update(value.split())
    for script in scripts:
        words.update(_WORD.findall(script.read_text(encoding="utf-8")))
    return words


def statements(css: str) -> Iterator[tuple[str, str | None]]:
    """Statements of a style sheet without comments: a head and its block, or None where a `;` ends the head."""
    depth = start = 0
    head = ""
    for mark in _MARK.finditer(css):
        if mark[0] == "{":
            if depth == 0:
                head, start = css[start : mark.start()].strip(), mark.end()
            depth += 1
        elif mark[0] == "}":
            depth -= 1
            if depth == 0:
                yield head, css[start : mark.start()].strip()
                start = mark.end()
        elif mark[0] == ";" and depth == 0:
            yield css[start : mark.start()].strip(), None
            start = mark.end()


def _read(static: Path, name: str) -> str:
    folder = posixpath.dirname(name)
    css = _COMMENT.sub("", (static / name).read_text(encoding="utf-8"))
    css = _URL.sub(lambda found: f'url("{posixpath.normpath(posixpath.join(folder, found[2]))}")', css)
    imported = _IMPORT.findall(css)
    inner = [_read(static, posixpath.normpath(posixpath.join(folder, other))) for other in imported]
    return "\n".join([*inner, _IMPORT.sub("", css)])


def _pruned(css: str, words: Collection[str]) -> Iterator[str]:
    for head, block in statements(css):
        if block is None:
            if not head.startswith(DROPPED):
                yield f"{head};"
        elif head.startswith(GROUPS):
            if inner := "\n".join(_pruned(block, words)):
                yield f"{head}{{{inner}}}"
        elif head.startswith("@"):
            yield f"{head}{{{block}}}"
        elif kept := [one.strip() for one in _COMMA.split(head) if _is_used(one, words)]:
            yield f"{','.join(kept)}{{{block}}}"


def _is_used(selector: str, words: Collection[str]) -> bool:
    """Whether all classes and ids that a selector asks for are among `words`; yes, where it leaves a choice."""
    if _CHOICE.search(selector):
        return True
    asked = _NAME.findall(_NOT.sub("", _ATTRIBUTE.sub("", selector)))
    return all(name.replace("\\", "") in words for name in asked)
