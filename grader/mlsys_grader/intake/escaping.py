"""Escape text of a submission for display: nothing in it runs, loads or hides when a notebook is rendered.

Judging uses the original text; this is for display only.
"""

from __future__ import annotations

import re

HIDING = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control and bidirectional-override characters: code could read differently from how it runs."""
LIVE = re.compile(
    r"<(?=[a-z/!?])"  # a tag, a comment, an instruction
    r"|&(?=[#a-z])"  # an entity, which can spell any of the others
    r"|!(?=\s*\[)"  # an image: loading it reveals the reader
    r"|\\(?=(?:href|url|require|class|style|cssid|html\w*|data)\b)"  # TeX that links, or loads more TeX
    r"|\b(?:javascript|vbscript|data|file)(?=\s*:)",
    re.IGNORECASE,
)


def escape_controls(source: str) -> str:
    r"""Write hiding characters as their number.

    >>> escape_controls("a\u202eb")
    'a⟨U+202E⟩b'
    """
    return HIDING.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", source)


def defuse_markdown(source: str) -> str:
    """Disable HTML, images and active TeX in Markdown by breaking the start of each with a blank.

    >>> defuse_markdown("a < b, <b>bold</b>")
    'a < b, < b>bold< /b>'
    """
    return LIVE.sub(lambda found: f"{found[0]} ", escape_controls(source))
