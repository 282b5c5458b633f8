"""From a saved notebook to the artifact: the cells that begin with `#| export`, and nothing else."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlsys_lab
from mlsys_lab.errors import InputError
from mlsys_lab.stack.artifact import Artifact, ArtifactError, Cell
from mlsys_lab.stack.commands import is_exported, strip_commands
from mlsys_lab.stack.loading import load
from mlsys_lab.stack.names import guess_names

__all__ = [
    "Artifact",
    "ArtifactError",
    "Cell",
    "Notebook",
    "export_cells",
    "load",
    "read_notebook",
    "refuse_absent",
    "refuse_topics",
    "refuse_withheld",
]

MAX_ELSEWHERE = 1_000
"""Most names outside of exported cells that are looked at."""
LOAD = re.compile(r"""^[^#\n]*\bstack\.load\(\s*["']([\w-]+)["']""", re.MULTILINE)
LAB_CALL = re.compile(r"""^[^#\n]*\blab\(\s*["']([\w-]+)["']""", re.MULTILINE)


@dataclass(frozen=True)
class Notebook:
    """The code of a notebook (format 4): cells with their position, counted from 1 over cells of all kinds."""

    name: str
    code: tuple[Cell, ...]

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics whose checks the notebook calls, by its `lab("…")` lines."""
        return tuple(dict.fromkeys(topic for cell in self.code for topic in LAB_CALL.findall(cell.source)))

    @property
    def artifact(self) -> Artifact:
        """The exported cells, possibly none."""
        cells = tuple(cell for cell in self.code if is_exported(cell.source))
        return Artifact(self.name, cells, tuple(_find_elsewhere(self).items()))


def read_notebook(path: Path) -> Notebook:
    """Read a saved notebook; `InputError` with one line for an invalid file."""
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError("no such notebook", got=path, help="save it in JupyterLab first, or fix the path") from None
    except IsADirectoryError:
        raise InputError("that is a folder, not a notebook", got=path) from None
    except OSError as error:
        raise InputError(f"cannot read {path}", got=error.strerror) from None
    except (ValueError, RecursionError):
        raise InputError(f"{path.name} is damaged", got="no JSON", expected="a saved notebook") from None
    return parse_notebook(document, path.name)


def parse_notebook(document: object, name: str) -> Notebook:
    """The code cells of a notebook's JSON; `InputError` unless it is notebook format 4."""
    if not isinstance(document, Mapping) or not isinstance(document.get("cells"), list):
        raise InputError(f"{name} is not a notebook of format 4", help="open it in JupyterLab and save it again")
    code = []
    for number, cell in enumerate(document["cells"], start=1):
        if not isinstance(cell, Mapping):
            raise InputError(f"{name}: cell {number} is damaged", got=type(cell).__name__, expected="a JSON object")
        if cell.get("cell_type") == "code":
            code.append(Cell(number, _text(cell.get("source") or "", name, number)))
    return Notebook(name, tuple(code))


def export_cells(notebook: Path | Notebook) -> Artifact:
    """The artifact of a notebook; `InputError` for an invalid file, or if no cell is marked for export."""
    if isinstance(notebook, Path):
        notebook = read_notebook(notebook)
    artifact = notebook.artifact
    if not artifact.cells:
        raise InputError(
            f"{notebook.name} exports nothing",
            expected="cells whose first line is `#| export`",
            help="put the marker back, or take the notebook from `mlsys-lab start`",
        )
    return artifact


def _find_elsewhere(notebook: Notebook) -> dict[str, int]:
    """Names that no exported cell seems to define but another cell does, with that cell's number.

    By text alone: this runs where nothing of a learner's is parsed.
    """
    cells = [(cell, guess_names(cell.source)) for cell in notebook.code]
    defined = {name for cell, names in cells if is_exported(cell.source) for name in names}
    found = {name: cell.number for cell, names in cells for name in names if name not in defined}
    return dict(list(found.items())[:MAX_ELSEWHERE])


def refuse_withheld(artifact: Artifact, withheld: Iterable[str]) -> None:
    """Raise `InputError` if exported cells import a module that the lab asks learners to write."""
    for cell, name in _find_imports(artifact):
        for module in withheld:
            if f"{name}.".startswith(f"{module}."):
                raise InputError(
                    f"cell {cell.number} imports {module}, which this lab asks you to write",
                    help="take the import out of the exported cells",
                )


def refuse_absent(artifact: Artifact, inside: Collection[Path]) -> None:
    """Raise `InputError` if exported cells import a module of the package outside the files `inside`."""
    for cell, name in _find_imports(artifact):
        path = Path(mlsys_lab.__file__).parents[1].joinpath(*name.split("."))
        files = [path.with_suffix(".py"), *path.rglob("*.py")]
        if name.startswith("mlsys_lab.") and any(map(Path.is_file, files)) and not set(files) & set(inside):
            raise InputError(
                f"cell {cell.number} imports {name}, which is not there where this lab is graded",
                help="import it in a cell that is not exported",
            )


def refuse_topics(artifact: Artifact, topics: Collection[str]) -> None:
    """Raise `InputError` where exported cells load a topic from `mlsys_lab.stack` that is not among `topics`."""
    for cell in artifact.cells:
        for topic in LOAD.findall(cell.source):
            if topic not in topics:
                raise InputError(
                    f"cell {cell.number} loads {topic} from the stack, which is not there where this lab is graded",
                    help="load it in a cell that is not exported",
                )


def _find_imports(artifact: Artifact) -> Iterator[tuple[Cell, str]]:
    """Imports of exported cells, each with its cell; for `from a import b` both a and a.b, since either may be one."""
    for cell in artifact.cells:
        for node in (inner for statement in _statements(cell.source) for inner in ast.walk(statement)):
            if isinstance(node, ast.Import):
                yield from ((cell, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield cell, node.module
                yield from ((cell, f"{node.module}.{alias.name}") for alias in node.names)


def _statements(source: str) -> list[ast.stmt]:
    """A cell's statements; none if it is not plain Python, which running it will report."""
    try:
        return ast.parse(strip_commands(source)).body
    except (SyntaxError, ValueError, RecursionError):
        return []


def _text(source: Any, name: str, number: int) -> str:
    """A cell's text; notebooks store a string or a list of lines."""
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        return "".join(source)
    if isinstance(source, str):
        return source
    raise InputError(f"{name}: cell {number} is damaged", got=type(source).__name__, expected="text")
