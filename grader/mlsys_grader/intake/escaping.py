"""Text of a submission, made fit to be shown: in whatever renders the notebook nothing of it runs, loads or hides.

What is judged is the text as it was handed in; this is only for eyes.
"""

from __future__ import annotations

import re

HIDING = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters and those that turn the direction of writing: code can read otherwise than it runs."""
LIVE = re.compile(
    r"<(?=[a-z/!?])"  # a tag, a comment, an instruction
    r"|&(?=[#a-z])"  # an entity, which can spell any of the others
    r"|!(?=\s*\[)"  # a picture: loading it tells who looks
    r"|\\(?=(?:href|url|require|class|style|cssid|html\w*|data)\b)"  # TeX that links, or loads more TeX
    r"|\b(?:javascript|vbscript|data|file)(?=\s*:)",
    re.IGNORECASE,
)


def escape_controls(source: str) -> str:
    """Text with characters that hide what it says written out as their number.

    >>> escape_controls("a\\u202eb")
    'a⟨U+202E⟩b'
    """
    return HIDING.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", source)


def defuse_markdown(source: str) -> str:
    """Markdown that brings no HTML, loads nothing and links to no script: a blank breaks each such beginning.

    >>> defuse_markdown("a < b, <b>bold</b>")
    'a < b, < b>bold< /b>'
    """
    return LIVE.sub(lambda found: f"{found[0]} ", escape_controls(source))
