"""Build the released notebooks, byte for byte reproducibly: solutions/NN-topic/NN-topic.py →
labs/NN-topic/NN-topic.ipynb.

The source is a py:percent notebook with nbgrader's cell metadata. It passes through the preprocessors of nbgrader's
`generate_assignment`, plus what nbgrader leaves open: points from the checks, stubs that name the task, stable cell
ids, an install cell for Colab, and a search for leaked solutions.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlsys_grader.course import notebooks
from mlsys_grader.course.files import write_atomically
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.course.notebooks import Notebook
from mlsys_grader.release.leaks import find_leak
from mlsys_lab.errors import CourseError, InputError, did_you_mean
from mlsys_lab.stack.labinfo import read_lab

NBGRADER_FIELDS = {"grade": False, "solution": False, "locked": False, "task": False, "schema_version": 3}
KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
CHECK_CALL = re.compile(r"""\bcheck(?:\.\w+)?\((['"])(?P<name>.*?)\1""")
"""A call that names a check."""
INSTALL_ID = "install"
INSTALL = """\
# On Colab this installs the course package. Anywhere else it does nothing.
import importlib.util
import subprocess
import sys

if "google.colab" in sys.modules and importlib.util.find_spec("mlsys_lab") is None:
    course = "{package}[kernels] @ git+{repository}"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", course], check=True)"""


@dataclass(frozen=True)
class Released:
    """The files of one released lab, as bytes, by name."""

    name: str
    files: dict[str, bytes]

    def stale(self, labs: Path) -> list[str]:
        """Names of files that differ from those in `labs`, or are missing or superfluous there."""
        folder = labs / self.name
        there = {path.name for path in folder.iterdir() if path.is_file()} if folder.is_dir() else set()
        differ = {n for n, content in self.files.items() if n not in there or (folder / n).read_bytes() != content}
        return sorted(differ | (there - set(self.files)))

    def write(self, labs: Path) -> None:
        """Write the files into the lab's folder, and remove files that are no longer released."""
        folder = labs / self.name
        folder.mkdir(parents=True, exist_ok=True)
        for name in self.stale(labs):
            if name in self.files:
                write_atomically(folder / name, self.files[name])
            else:
                (folder / name).unlink()


def find_sources(solutions: Path) -> list[Path]:
    """Folders below `solutions` that hold a lab, in order."""
    folders = sorted(path.parent for path in solutions.glob("*/lab.toml"))
    if not folders:
        raise InputError("no lab to release", got=solutions, expected="folders NN-topic with lab.toml and NN-topic.py")
    return folders


def release(folder: Path, project: Path) -> Released:
    """Build one lab from its folder in solutions/; `project` is the pyproject.toml with package name and address.

    Raises `InputError` for a mistake in the source: a grade cell without a check, a check without a grade cell, a call
    of an unknown check, points that do not add up, and any leaked solution.
    """
    lab = GradedLab(read_lab(folder))
    notebook = _read(folder / f"{lab.name}.py")
    _refuse_misspelt_calls(folder / f"{lab.name}.py", lab)
    _fill_metadata(notebook, lab)
    solved = [str(cell.source) for cell in notebook.cells]
    notebook = _through_nbgrader(notebook, lab)
    _insert_install_cell(notebook, project)
    _clean(notebook)
    text = notebooks.to_bytes(notebook).decode()
    if leak := find_leak(solved, [str(cell.source) for cell in notebook.cells], text):
        raise CourseError(
            f"{lab.name} would give a solution away", got=leak, help="keep it inside a solution region only"
        )
    files = {f"{lab.name}.ipynb": text.encode(), "lab.toml": (folder / "lab.toml").read_bytes()}
    return Released(lab.name, files)


def _read(path: Path) -> Notebook:
    import jupytext

    if not path.is_file():
        raise InputError("missing source of a lab", got=path)
    return jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")


def _refuse_misspelt_calls(path: Path, lab: GradedLab) -> None:
    names = [check.name for check in lab.checks.checks]
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        for name in _find_called_checks(line):
            if name not in names:
                raise InputError(
                    f"{path.name}, line {number}: the lab has no such check",
                    got=repr(name),
                    expected=f"one of {', '.join(names)}",
                    help=did_you_mean(name, names),
                )


def _find_called_checks(code: str) -> list[str]:
    """Names of the checks that code calls, comments ignored."""
    return [call["name"] for line in code.splitlines() for call in CHECK_CALL.finditer(line.partition("#")[0])]


def _fill_metadata(notebook: Notebook, lab: GradedLab) -> None:
    """Complete nbgrader's fields: what the source leaves out follows from `grade`, `solution` and the checks.

    A cell with both `grade` and `solution` is answered in words and graded in formgrader; its points come on top of the
    checks' points, which are what lab.toml counts.
    """
    graded: list[str] = []
    for cell in notebook.cells:
        given = cell.metadata.get("nbgrader")
        if given is None:
            continue
        fields = {**NBGRADER_FIELDS, **given}
        if not fields.get("grade_id"):
            raise InputError(f"{lab.name}: an nbgrader cell has no grade_id", got=str(cell.source)[:60])
        if fields["grade"] and fields["solution"]:  # graded by hand: its points are in the source
            _require_points(fields, lab)
        elif fields["grade"]:
            fields["locked"] = True
            fields["points"] = lab.checks[fields["grade_id"]].points
            graded.append(fields["grade_id"])
            if fields["grade_id"] not in (called := _find_called_checks(str(cell.source))):
                raise InputError(
                    f"{lab.name}: the grade cell {fields['grade_id']!r} does not call its check",
                    got=", ".join(called) or "no call of a check",
                    expected=f"check({fields['grade_id']!r})",
                )
        cell.metadata["nbgrader"] = fields
    expected = [check.name for check in lab.checks.checks]
    if sorted(graded) != sorted(expected):
        odd = sorted(set(expected) ^ set(graded)) or [name for name in graded if graded.count(name) > 1]
        raise InputError(
            f"{lab.name}: grade cells and checks do not pair up",
            got=", ".join(odd),
            expected="one grade cell per check",
        )
    if lab.info.points != lab.checks.points:
        raise InputError(
            f"{lab.name}: lab.toml has the wrong points", got=lab.info.points, expected=f"{lab.checks.points:g}"
        )


def _require_points(fields: dict[str, Any], lab: GradedLab) -> None:
    points = fields.get("points")
    if isinstance(points, bool) or not isinstance(points, int | float) or not points > 0:
        got = "nothing" if points is None else repr(points)
        what = f"{lab.name}: cell {fields['grade_id']!r} is graded by hand and needs points"
        raise InputError(what, got=got, expected='a positive number, as in "points": 4')
    if fields["grade_id"] in (check.name for check in lab.checks.checks):
        raise InputError(f"{lab.name}: a cell graded by hand has a check's name", got=fields["grade_id"])


def _through_nbgrader(notebook: Notebook, lab: GradedLab) -> Notebook:
    """Apply the preprocessors of nbgrader's generate_assignment that change the notebook, in its order."""
    from nbgrader import preprocessors as stock

    from mlsys_grader.release.placeholders import NamedPlaceholders

    resources = {"nbgrader": {"assignment": lab.name, "notebook": lab.name, "student": "."}}
    for step in (
        stock.LockCells(),
        NamedPlaceholders(),
        stock.ClearOutput(),
        stock.CheckCellMetadata(),
        stock.ClearHiddenTests(),
        stock.ClearMarkScheme(),
        stock.ComputeChecksums(),
        stock.CheckCellMetadata(),
    ):
        try:
            notebook, resources = step.preprocess(notebook, resources)
        except RuntimeError as error:  # nbgrader's error for a region without an end
            help = "each ### BEGIN SOLUTION needs its ### END SOLUTION"
            raise InputError(f"{lab.name}: a cell's regions do not pair up", got=error, help=help) from None
    return notebook


def _insert_install_cell(notebook: Notebook, project: Path) -> None:
    """Insert the second cell, below the title: the only cell that knows the course's address, filled in at release."""
    try:
        metadata = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        source = INSTALL.format(package=metadata["name"], repository=metadata["urls"]["Repository"])
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{project} is not TOML", got=error) from None
    except KeyError as missing:
        wanted = "name under [project] and Repository under [project.urls]"
        what = f"{project} does not say where the course lives"
        raise InputError(what, got=f"no {missing}", expected=wanted) from None
    notebook.cells.insert(1, notebooks.new_cell("code", source, INSTALL_ID))


def _clean(notebook: Notebook) -> None:
    """Drop what differs between conversions, and give every cell a stable id."""
    notebook.metadata = notebooks.copy_node({"kernelspec": KERNELSPEC, "language_info": {"name": "python"}})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    taken: set[str] = set()
    for position, cell in enumerate(notebook.cells):
        cell.metadata.pop("lines_to_next_cell", None)
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
        if cell.id != INSTALL_ID:
            cell.id = _cell_id(grade_id, position, cell.source)
        if cell.id in taken:
            raise InputError("two cells have the same id", got=cell.id, help="give each its own grade_id")
        taken.add(cell.id)


def _cell_id(grade_id: str | None, position: int, source: str) -> str:
    if grade_id:
        return re.sub(r"[^A-Za-z0-9_-]", "-", grade_id)[:64]
    return hashlib.sha256(f"{position}\n{source}".encode()).hexdigest()[:12]
