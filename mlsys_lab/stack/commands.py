"""What a notebook understands and Python does not (`%time`, `!pip`, `name?`, `display`), made harmless."""

from __future__ import annotations

import ast
import re

MARKER = re.compile(r"#+\s*[|｜]\s*export[si]?\b", re.IGNORECASE)
"""How a line begins that marks its cell for export, however a formatter or a keyboard writes `#| export`.

nbdev's `#| exports` and `#| exporti` differ from it in what they show and list, not in what they export.
"""
BARE_MARKER = re.compile(r"#\s*exports?\s*$", re.IGNORECASE)
"""The mark without its bar, which counts in what a cell begins with: below, it may be a comment on what follows."""
INVISIBLE = "\ufeff\u200b"
"""What may stand before a cell's first character and cannot be seen."""
FOREIGN = re.compile(
    r"%%(?:!|(?:bash|cmd|file|html|javascript|js|latex|markdown|perl|pypy|python2|r|ruby)\b"
    r"|(?:script|sh|svg|sx|system|writefile)\b)",
    re.IGNORECASE,
)
"""Commands whose whole cell is no Python."""
TIMED = re.compile(r"(?P<target>[^=%!?]*=\s*)?%time\b\s*(?P<statement>.*)")
ASSIGNED = re.compile(r"(?P<target>[^=%!?]*=)\s*[%!].*")
PROMPT = re.compile(r"(?:>>>|\.\.\.)(?: |$)")
"""What stands before each line that was copied from a session of Python's."""
COMMAND = re.compile(r"[%!?].*|[\w.*]+\?{1,2};?|(?:pip3?|conda|mamba|uv|cd|ls|cat|mkdir|cp|mv|rm)\s+\S.*")


def is_exported(source: str) -> bool:
    """Whether a cell is marked for export: a line of its own is `#| export`, also below an import that came first.

    >>> is_exported("import math\\n# | export\\nx = 1"), is_exported("x = 1  #| export")
    (True, False)
    """
    is_head = True
    for line in map(str.strip, source.lstrip(INVISIBLE).splitlines()):
        is_head = is_head and (not line or line.startswith(("#", "%%")))
        if MARKER.match(line) or (is_head and BARE_MARKER.match(line)):
            return True
    return False


def strip_commands(source: str) -> str:
    """A cell's text with its notebook commands passed over: as many lines, and plain Python if the rest is.

    `%time` leaves the statement that it times; what another command would have given is None. A line is touched only
    where Python stumbles over it, so that text and arithmetic with a `%` stay.

    >>> strip_commands("%time x = 1\\n!pip install y\\nfiles = !ls\\nlen?")
    'x = 1\\npass\\nfiles = None\\npass'
    """
    lines = source.lstrip(INVISIBLE).split("\n")
    if indent := re.match(r"[ \t]+(?=\S)", lines[0]):  # as IPython does where a whole cell is indented
        lines = [line.removeprefix(indent[0]) for line in lines]
    if any(line.startswith(">>> ") for line in lines[:2]):  # the first line may be the mark
        lines = [PROMPT.sub("", line, count=1) for line in lines]
    for row, line in enumerate(map(str.strip, lines)):
        if line.startswith("%%") and not FOREIGN.match(line):
            lines[row] = "#"
        elif line and not line.startswith("#"):
            break
    while True:
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            row = (error.lineno or 0) - 1
            plain = _plain(lines[row]) if 0 <= row < len(lines) else None
            if plain is None:
                return "\n".join(lines)
            while lines[row].endswith("\\") and row + 1 < len(lines):
                lines[row], plain, row = plain, "#", row + 1
            lines[row] = plain
        except (ValueError, RecursionError, MemoryError):
            return "\n".join(lines)
        else:
            return "\n".join(lines)


def _plain(line: str) -> str | None:
    """Python in place of a line that holds a notebook command; None for a line that holds none."""
    code = line.strip().removesuffix("\\").rstrip()
    indent = line[: len(line) - len(line.lstrip())]
    if FOREIGN.match(code):
        return None
    if timed := TIMED.fullmatch(code):
        return f"{indent}{timed['target'] or ''}{timed['statement'] or 'pass'}"
    if assigned := ASSIGNED.fullmatch(code):
        return f"{indent}{assigned['target']} None"
    return f"{indent}pass" if COMMAND.fullmatch(code) else None


def display(*shown: object, **options: object) -> None:
    """Stand in for a notebook's `display` where nobody looks: shows nothing."""


class Shell:
    """Stand-in for the notebook's shell: whatever it is asked to do is passed over."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **options: None


def get_ipython() -> Shell:
    """Stand in for a notebook's `get_ipython`."""
    return Shell()
