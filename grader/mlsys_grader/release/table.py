"""The README's table of labs, generated from every lab.toml between two markers at each release."""

from __future__ import annotations

from collections.abc import Iterable

from mlsys_lab.errors import InputError
from mlsys_lab.stack.labinfo import LabInfo

BEGIN, END = "<!-- labs: begin -->", "<!-- labs: end -->"


def write_table(labs: Iterable[LabInfo]) -> str:
    """A Markdown table: each lab with a link to its notebook, what it builds, and its minutes."""
    rows = ["| | Lab | What you build | Minutes |", "|---:|---|---|---:|"]
    for lab in labs:
        link = f"[{_cell(lab.title)}](labs/{lab.name}/{lab.notebook.name})"
        rows.append(f"| {lab.number} | {link} | {_cell(lab.summary)} | {lab.minutes} |")
    return "\n".join(rows)


def replace_table(text: str, table: str) -> str:
    """Replace the text between the markers; `InputError` unless both occur once, in order."""
    head, _, rest = text.partition(f"{BEGIN}\n")
    _, end, tail = rest.partition(f"{END}\n")
    if not end or BEGIN in rest or END in head + tail:
        raise InputError("README.md has no place for the table of labs", expected=f"a line {BEGIN} and below it {END}")
    return f"{head}{BEGIN}\n{table}\n{END}\n{tail}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
