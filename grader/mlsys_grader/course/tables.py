"""CSV that spreadsheets and terminals treat as text, whatever a student is called, and that round-trips."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator

from mlsys_lab.errors import InputError

FORMULA = re.compile(r"""(^|;)(['"]*[=+\-@＝＋－＠])""")
"""How a cell begins that a spreadsheet would compute, with the quotes that a name may have before it.

Many spreadsheets separate cells by semicolons, so a cell may begin there too.
"""
MADE_TEXT = re.compile(r"""(^|;)'(['"]*[=+\-@＝＋－＠])""")
"""How a cell begins that was turned into text by a `'` before it."""
CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]|⟨(?=U\+[0-9A-F]{4}⟩)"
)
"""Control and bidirectional-override characters, and what looks like one written out."""
WRITTEN_OUT = re.compile(r"⟨U\+([0-9A-F]{4})⟩")


def format_csv(rows: Iterable[Iterable[str]]) -> str:
    r"""Format rows as CSV: a formula becomes text, a control character its number.

    >>> print(format_csv([["=1+1", "a\x1bb"], ["c, d", "e"]]), end="")
    '=1+1,a⟨U+001B⟩b
    "c, d",e
    """
    return "".join(",".join(map(_format_cell, row)) + "\n" for row in rows)


def parse_csv(text: str) -> Iterator[tuple[int, list[str]]]:
    """Parse CSV written by `format_csv` or by hand: line number and cells of each row that has any.

    Raises `InputError` for invalid CSV.
    """
    rows = csv.reader(io.StringIO(text, newline=""))
    try:
        yield from ((rows.line_num, list(map(_parse_cell, row))) for row in rows if row)
    except csv.Error as error:
        raise InputError(f"line {rows.line_num} of the table is not CSV", got=error) from None


def _format_cell(text: str) -> str:
    text = CONTROL.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)
    text = FORMULA.sub(r"\1'\2", text)
    return '"' + text.replace('"', '""') + '"' if re.search('[,"]', text) else text


def _parse_cell(text: str) -> str:
    text = MADE_TEXT.sub(r"\1\2", text)
    return WRITTEN_OUT.sub(lambda found: chr(int(found[1], 16)), text)
