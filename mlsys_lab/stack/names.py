"""Which names a cell's text seems to define: by its letters alone, since it may be no Python, or not be trusted."""

from __future__ import annotations

import re

DEFINITION = re.compile(r"^(?:(?:async[ \t]+)?def|class)[ \t]+(\w+)", re.MULTILINE)
ASSIGNMENT = re.compile(r"^(?:((?:\w+[ \t]*=(?!=)[ \t]*)+)|(\w+)[ \t]*:[^=\n]*=(?!=))", re.MULTILINE)
"""Names, each with a sign behind it (`a = b =`), or one with its annotation (`size: int =`)."""
IMPORT = re.compile(r"^(?:from[ \t]+\S+[ \t]+)?import[ \t]+(.+)$", re.MULTILINE)
"""Names with commas between them, of which the last word of each counts."""


def guess_names(text: str) -> list[str]:
    """The names that a cell's text seems to define at its top level, some twice.

    >>> guess_names("import numpy as np, math\\ndef f(x:\\n    y = 1\\na = b = 2\\nsize: int = 3")
    ['f', 'a', 'b', 'size', 'np', 'math']
    """
    assigned = [name for pair in ASSIGNMENT.findall(text) for names in pair for name in re.findall(r"\w+", names)]
    imported = re.findall(r"\b(\w+)\s*(?:,|$)", ",".join(IMPORT.findall(text)))
    return [*DEFINITION.findall(text), *assigned, *imported]
