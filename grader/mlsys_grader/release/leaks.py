"""Search a release for leaked solutions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

MARKERS = ("BEGIN SOLUTION", "END SOLUTION", "HIDDEN TESTS", "MARK SCHEME")
REGION = re.compile(r"[^\n]*BEGIN SOLUTION[^\n]*\n(.*?)[^\n]*END SOLUTION", re.DOTALL)
TELLING = 20
"""Length from which a line of a solution counts as specific, not a phrase of any code."""


def find_leak(solved: Iterable[str], released: Iterable[str], text: str) -> str | None:
    """Text of the solved cells found in the released ones (or in the release file's `text`), or None.

    Searches for nbgrader's markers, and for any one-line solution or two neighbouring lines of a longer one.
    """
    for marker in MARKERS:
        if marker in text:
            return marker
    haystack = "\n".join("\n".join(_lines(cell)) for cell in released) + "\n"
    for needle in _needles(solved):
        if len(needle) >= TELLING and f"{needle}\n" in haystack:
            return needle.replace("\n", " ⏎ ")
    return None


def _needles(solved: Iterable[str]) -> Iterator[str]:
    for cell in solved:
        for region in REGION.findall(cell):
            lines = list(_lines(region))
            if len(lines) == 1:
                yield lines[0]
            yield from ("\n".join(pair) for pair in pairwise(lines))


def _lines(source: str) -> Iterator[str]:
    """Lines without indentation and comments."""
    for line in source.splitlines():
        bare = line.strip()
        if bare and not bare.startswith("#"):
            yield bare
