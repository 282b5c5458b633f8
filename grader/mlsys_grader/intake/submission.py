"""Read an untrusted submission: its artifact for the judge, its cells for nbgrader.

Nothing about the file is trusted: size, format, metadata, outputs. What cannot be judged gets a reason and no points;
it never stops the batch.
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

MAX_FILE_BYTES = 64 << 20
"""Images in outputs make honest notebooks of 20 MB, so the limit is well above."""
MAX_SOURCE_CHARACTERS = 1 << 20
"""Total length of the exported cells."""
MAX_CELLS = 5_000
"""nbgrader takes a millisecond and more per cell."""
MAX_VALUES = 2_000_000
"""Numbers, strings, lists and objects in the JSON: each takes up to 250 bytes of memory, 30 times its size in the file.
An image is one string; a plot of a million points has two million numbers.
"""
STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
"""A JSON string, in which commas and brackets are no values."""
MAX_TEXT_CHARACTERS = 4 << 20
"""Total length of all cells."""

MAX_NOTES = 20
"""Most cells of the wrong kind that are told."""
KINDS = {
    b"<": "a web page, which may be that of a login",
    b"pk\x03\x04": "a zip archive",
    b"%pdf": "a PDF",
    b"#": "a Python script",
    b"import ": "a Python script",
}
"""Signatures, in lower case, of files that come in place of a notebook."""


@dataclass(frozen=True)
class Submission:
    """A submission: its artifact or the reason why it has none, remarks for its author, and its cells."""

    digest: str
    artifact: Artifact | None
    refusal: Mismatch | None = None
    notes: tuple[str, ...] = ()
    cells: tuple[tuple[str, str, str], ...] = ()  # type, source, grade_id or ""


def hash_submission(path: Path) -> str:
    """The digest that `read_submission` gives to a file; "" if it is unreadable."""
    try:
        return hashlib.sha256(_read_file(path)).hexdigest()
    except InputError:
        return ""


def read_submission(path: Path, lab: GradedLab) -> Submission:
    """Read the notebook submitted for a lab. Never raises for the file's content."""
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
    """Read a notebook in this process, without the limits of `read_submission`."""
    try:
        content = _read_file(path)
    except InputError as error:
        return Submission("", None, Mismatch(error.what, _text(error.got), _text(error.expected)))
    digest = hashlib.sha256(content).hexdigest()
    if (values := sum(map(STRING.sub(b"", content).count, (b",", b"[", b"{")))) > MAX_VALUES:
        many = Mismatch("the file holds too many values", f"{values:,}", f"{MAX_VALUES:,} at most")
        return Submission(digest, None, many)
    try:
        document = json.loads(content)
        notebook = parse_notebook(document, path.name)
    except (ValueError, RecursionError):
        return Submission(digest, None, Mismatch("the file is damaged", _guess_format(content), "a saved notebook"))
    except InputError as error:
        return Submission(digest, None, Mismatch(error.what, _text(error.got), _text(error.expected or error.help)))
    if (refusal := _find_excess(document["cells"])) is not None:
        return Submission(digest, None, refusal)
    cells = tuple(_cells(document))
    if (refusal := _wrong_kernel(document) or _wrong_lab(notebook.topics, cells, lab)) is not None:
        return Submission(digest, None, refusal, cells=cells)
    notes = _notes(cells, lab)
    try:
        artifact = export_cells(notebook)
    except InputError as error:
        return Submission(digest, None, Mismatch(error.what, _text(error.got), _text(error.expected)), notes, cells)
    if len(artifact.source) > MAX_SOURCE_CHARACTERS:
        too_long = Mismatch(
            "the exported cells are too long",
            f"{len(artifact.source):,} characters",
            f"{MAX_SOURCE_CHARACTERS:,} at most",
        )
        return Submission(digest, None, too_long, notes, cells)
    return Submission(digest, artifact, None, notes, cells)


def _read_file(path: Path) -> bytes:
    """The file's bytes; links, devices and folders are refused."""
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
        if status.st_size > MAX_FILE_BYTES:
            size, limit = f"{status.st_size >> 20} MB", f"{MAX_FILE_BYTES >> 20} MB at most"
            raise InputError("the file is too large", got=size, expected=limit)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(descriptor)


def _guess_format(content: bytes) -> str:
    """What a file seems to be that should hold a notebook's JSON."""
    text = content.strip()
    if not text:
        return "an empty file"
    if re.search(rb"^<{7} ", content, re.MULTILINE):
        return "a merge that was not finished (`<<<<<<<`)"
    for beginning, what in KINDS.items():
        if text.lower().startswith(beginning):
            return what
    return "a notebook that is cut off" if text.startswith(b"{") and text[-1:] != b"}" else "something that is not JSON"


def _find_excess(cells: list[dict[str, Any]]) -> Mismatch | None:
    if len(cells) > MAX_CELLS:
        return Mismatch("the notebook has too many cells", f"{len(cells):,}", f"{MAX_CELLS:,} at most")
    sources = (cell.get("source", "") for cell in cells)
    length = sum(
        sum(map(len, map(str, source))) if isinstance(source, list) else len(str(source)) for source in sources
    )
    if length > MAX_TEXT_CHARACTERS:
        return Mismatch("the notebook's text is too long", f"{length:,} characters", f"{MAX_TEXT_CHARACTERS:,} at most")
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
        # Lone surrogates could not be written to a file again.
        source = source.encode("utf-8", "replace").decode("utf-8")
        cells.append((str(kind), source, grade_id if isinstance(grade_id, str) else ""))
    return cells


def _wrong_kernel(document: dict[str, Any]) -> Mismatch | None:
    """The problem of a notebook that declares another language; many declare none."""
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
        return None  # the graded cells, in a notebook of the student's own
    return Mismatch("this is not a notebook of this course", "no cell of the lab", f"{lab.name}.ipynb as released")


def find_released_cells(lab: GradedLab) -> dict[str, dict[str, Any]]:
    """Cells of the released notebook by their grade_id, in order."""
    document = json.loads(lab.info.notebook.read_bytes())
    marked = (cell for cell in document["cells"] if "nbgrader" in cell["metadata"])
    return {cell["metadata"]["nbgrader"]["grade_id"]: cell for cell in marked}


def _notes(cells: tuple[tuple[str, str, str], ...], lab: GradedLab) -> tuple[str, ...]:
    """Remarks for the author: cells that are missing, repeated or changed. They cost no points."""
    notes: list[str] = []
    sources_by_id: dict[str, list[str]] = {}
    for number, (kind, source, grade_id) in enumerate(cells, start=1):
        if kind != "code" and len(notes) < MAX_NOTES and is_exported(source):
            notes.append(f"Cell {number} begins with `#| export` and is no code ({kind}): it does not count.")
        sources_by_id.setdefault(grade_id, []).append(source)
    for grade_id, cell in find_released_cells(lab).items():
        sources = sources_by_id.get(grade_id, [])
        if not sources:
            notes.append(f"Cell `{grade_id}` is missing from the notebook.")
        if len(sources) > 1:
            notes.append(f"Cell `{grade_id}` is in the notebook {len(sources)} times; of equal names the last counts.")
        fields = cell["metadata"]["nbgrader"]
        locked = fields["grade"] and not fields["solution"]
        if locked and any(source != "".join(cell["source"]) for source in sources):
            notes.append(f"Check cell `{grade_id}` was changed. Marks come from the grader's own copy of the check.")
    return tuple(notes)
