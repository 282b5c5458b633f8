"""Read a submission that may be anything, and make of it what the judge and nbgrader may see.

Nothing here trusts the file: not its size, its form, its metadata, its outputs. What cannot be judged gets a reason
and no points; it never stops the batch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlsys_checks.sandboxed.spec import Mismatch
from mlsys_checks.trusted.artifact import Artifact, Cell, export_cells, parse_notebook
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.intake.bounded import run_bounded
from mlsys_lab.errors import InputError
from mlsys_lab.stack.commands import is_exported

FILE_BYTES = 64 << 20
"""A larger file is not read. Pictures in outputs make honest notebooks of 20 MB, so the bound lies well above."""
SOURCE_CHARACTERS = 1 << 20
"""Longest code that the exported cells may hold together."""
CELLS = 5_000
"""More cells than that are not looked at: nbgrader takes a millisecond and more for each."""
VALUES = 2_000_000
"""More numbers, texts, lists and objects than that are not parsed: each takes up to 250 bytes of memory, 30 times what
it takes in the file. A picture is one text; a plot of a million points has two million numbers."""
STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
"""A text in JSON, in which commas and brackets are no values."""
TEXT_CHARACTERS = 4 << 20
"""Longest text that all cells may hold together, whether it is judged or only shown."""

NOTES = 20
"""Most cells of the wrong kind that are told."""
KINDS = {
    b"<": "a web page, which may be that of a login",
    b"pk\x03\x04": "a zip archive",
    b"%pdf": "a PDF",
    b"#": "a Python script",
    b"import ": "a Python script",
}
"""How files begin that come in a notebook's place, in small letters."""


@dataclass(frozen=True)
class Submission:
    """A submission as read: its artifact, or else why it has none; remarks for its author; its cells for showing."""

    digest: str
    artifact: Artifact | None
    refusal: Mismatch | None = None
    notes: tuple[str, ...] = ()
    cells: tuple[tuple[str, str, str], ...] = ()  # type, source, grade_id or ""


def hash_submission(path: Path) -> str:
    """Compute the digest that `read_submission` gives the file at `path`; "" where none can be read."""
    try:
        return hashlib.sha256(_read_file(path)).hexdigest()
    except InputError:
        return ""


def read_submission(path: Path, lab: GradedLab) -> Submission:
    """Read the notebook at `path` that was handed in for a lab. Never raises for what the file holds."""
    try:
        found = run_bounded(_read_as_fields, path.absolute(), GradedLab(lab.info))
    except InputError as error:
        refusal = Mismatch("the notebook takes too much to be read", _text(error.got), "a saved notebook")
        return Submission(hash_submission(path), None, refusal)
    refusal, artifact = found["refusal"], found["artifact"]
    if artifact is not None:
        cells = tuple(Cell(**cell) for cell in artifact["cells"])
        artifact = Artifact(artifact["name"], cells, tuple((name, number) for name, number in artifact["elsewhere"]))
    return Submission(
        found["digest"],
        artifact,
        Mismatch(**refusal) if refusal is not None else None,
        tuple(found["notes"]),
        tuple((kind, source, grade_id) for kind, source, grade_id in found["cells"]),
    )


def _read_as_fields(path: Path, lab: GradedLab) -> dict[str, Any]:
    return asdict(parse_submission(path, lab))


def parse_submission(path: Path, lab: GradedLab) -> Submission:
    """Read a notebook in this process, without the bounds of `read_submission`."""
    try:
        content = _read_file(path)
    except InputError as error:
        return Submission("", None, Mismatch(error.what, _text(error.got), _text(error.expected)))
    digest = hashlib.sha256(content).hexdigest()
    if (values := sum(map(STRING.sub(b"", content).count, (b",", b"[", b"{")))) > VALUES:
        many = Mismatch("the file holds too many values", f"{values:,}", f"{VALUES:,} at most")
        return Submission(digest, None, many)
    try:
        document = json.loads(content)
        notebook = parse_notebook(document, path.name)
    except (ValueError, RecursionError):
        return Submission(digest, None, Mismatch("the file is damaged", _name_damage(content), "a saved notebook"))
    except InputError as error:
        return Submission(digest, None, Mismatch(error.what, _text(error.got), _text(error.expected or error.help)))
    if (refusal := _too_much(document["cells"])) is not None:
        return Submission(digest, None, refusal)
    cells = tuple(_cells(document))
    if (refusal := _wrong_kernel(document) or _wrong_lab(notebook.topics, cells, lab)) is not None:
        return Submission(digest, None, refusal, cells=cells)
    notes = _notes(cells, lab)
    try:
        artifact = export_cells(notebook)
    except InputError as error:
        return Submission(digest, None, Mismatch(error.what, _text(error.got), _text(error.expected)), notes, cells)
    if len(artifact.source) > SOURCE_CHARACTERS:
        too_long = Mismatch(
            "the exported cells are too long", f"{len(artifact.source):,} characters", f"{SOURCE_CHARACTERS:,} at most"
        )
        return Submission(digest, None, too_long, notes, cells)
    return Submission(digest, artifact, None, notes, cells)


def _read_file(path: Path) -> bytes:
    """The file's bytes; a link, a device or a folder is not followed or read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise InputError("no notebook was handed in", expected=path.name) from None
    except OSError:
        raise InputError("what was handed in is not a file", expected=path.name) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InputError("what was handed in is not a file", expected=path.name)
        if status.st_size > FILE_BYTES:
            size, limit = f"{status.st_size >> 20} MB", f"{FILE_BYTES >> 20} MB at most"
            raise InputError("the file is too large", got=size, expected=limit)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(FILE_BYTES + 1)
    finally:
        os.close(descriptor)


def _name_damage(content: bytes) -> str:
    """What a file seems to be that should hold a notebook's JSON and does not."""
    text = content.strip()
    if not text:
        return "an empty file"
    if re.search(rb"^<{7} ", content, re.MULTILINE):
        return "a merge that was not finished (`<<<<<<<`)"
    for beginning, what in KINDS.items():
        if text.lower().startswith(beginning):
            return what
    return "a notebook that is cut off" if text.startswith(b"{") and text[-1:] != b"}" else "something that is not JSON"


def _too_much(cells: list[dict[str, Any]]) -> Mismatch | None:
    if len(cells) > CELLS:
        return Mismatch("the notebook has too many cells", f"{len(cells):,}", f"{CELLS:,} at most")
    sources = (cell.get("source", "") for cell in cells)
    length = sum(
        sum(map(len, map(str, source))) if isinstance(source, list) else len(str(source)) for source in sources
    )
    if length > TEXT_CHARACTERS:
        return Mismatch("the notebook's text is too long", f"{length:,} characters", f"{TEXT_CHARACTERS:,} at most")
    return None


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _cells(document: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Every cell as (type, source, grade_id), unknown types as raw; `parse_notebook` has accepted the document."""
    cells = []
    for cell in document["cells"]:
        source = cell.get("source", "")
        source = "".join(map(str, source)) if isinstance(source, list) else str(source)
        kind = cell.get("cell_type") if cell.get("cell_type") in ("code", "markdown") else "raw"
        metadata = cell.get("metadata")
        fields = metadata.get("nbgrader") if isinstance(metadata, dict) else None
        grade_id = fields.get("grade_id") if isinstance(fields, dict) else None
        # Text that is no text (lone surrogates) could not be written to a file again.
        source = source.encode("utf-8", "replace").decode("utf-8")
        cells.append((str(kind), source, grade_id if isinstance(grade_id, str) else ""))
    return cells


def _wrong_kernel(document: dict[str, Any]) -> Mismatch | None:
    """The problem of a notebook that says it is in another language; many say nothing, or leave it blank."""
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    for field, key in (("language_info", "name"), ("kernelspec", "language")):
        entry = metadata.get(field)
        language = entry.get(key) if isinstance(entry, dict) else None
        language = language.strip() if isinstance(language, str) else ""
        if language and not language.lower().startswith(("python", "ipython")):
            return Mismatch("the notebook is for another kernel", language, "Python")
    return None


def _wrong_lab(topics: tuple[str, ...], cells: tuple[tuple[str, str, str], ...], lab: GradedLab) -> Mismatch | None:
    if lab.topic in topics or {grade_id for _, _, grade_id in cells} & set(find_released_cells(lab)):
        return None
    if topics:
        return Mismatch("this is the notebook of another lab", ", ".join(topics), lab.topic)
    if any(kind == "code" and is_exported(source) for kind, source, _ in cells):
        return None  # the cells that count, in a notebook of the student's own
    return Mismatch("this is not a notebook of this course", "no cell of the lab", f"{lab.name}.ipynb as released")


def find_released_cells(lab: GradedLab) -> dict[str, dict[str, Any]]:
    """Cells of the released notebook that have a grade_id, by it, in their order."""
    document = json.loads(lab.info.notebook.read_bytes())
    marked = (cell for cell in document["cells"] if "nbgrader" in cell["metadata"])
    return {cell["metadata"]["nbgrader"]["grade_id"]: cell for cell in marked}


def _notes(cells: tuple[tuple[str, str, str], ...], lab: GradedLab) -> tuple[str, ...]:
    """What its author should know: cells that are gone, came twice or were changed. None of it costs points."""
    notes: list[str] = []
    handed_in: dict[str, list[str]] = {}
    for number, (kind, source, grade_id) in enumerate(cells, start=1):
        if kind != "code" and len(notes) < NOTES and is_exported(source):
            notes.append(f"Cell {number} begins with `#| export` and is no code ({kind}): it does not count.")
        handed_in.setdefault(grade_id, []).append(source)
    for grade_id, cell in find_released_cells(lab).items():
        sources = handed_in.get(grade_id, [])
        if not sources:
            notes.append(f"Cell `{grade_id}` is missing from the notebook.")
        if len(sources) > 1:
            notes.append(f"Cell `{grade_id}` is in the notebook {len(sources)} times; of equal names the last counts.")
        fields = cell["metadata"]["nbgrader"]
        locked = fields["grade"] and not fields["solution"]
        if locked and any(source != "".join(cell["source"]) for source in sources):
            notes.append(f"Check cell `{grade_id}` was changed. Marks come from the grader's own copy of the check.")
    return tuple(notes)
