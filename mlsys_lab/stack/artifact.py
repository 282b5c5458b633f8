"""A learner's artifact: the exported cells of a lab's notebook as one plain Python module.

The text of an artifact marks where each cell begins (`# %% cell 5`), so that an error in it can always be told as
"cell 5, line 3", also when the text was read back from the learner's workspace.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import linecache
import re
import sys
import traceback
from dataclasses import dataclass
from types import FrameType, ModuleType

from mlsys_lab.errors import CourseError, UnfinishedError

LONGEST_TEXT = 300
"""Characters of an exception's text that are shown at most."""
MARKER = re.compile(r"^# %% cell (\d+)$")


class ArtifactError(CourseError):
    """The exported cells do not make a module: they have a syntax error, or raised an exception while they ran."""


@dataclass(frozen=True)
class Cell:
    """One exported cell: its number in the notebook, counted from 1 over cells of every kind, and its text."""

    number: int
    source: str

    @property
    def label(self) -> str:
        """The first line of code in the cell, by which a person finds it."""
        for line in self.source.splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                return line.strip()
        return ""


@dataclass(frozen=True)
class Place:
    """A line within a cell, numbered as a person would look for it."""

    cell: Cell
    line: int
    text: str

    def __str__(self) -> str:
        code = f": `{self.text.strip()}`" if self.text.strip() else ""
        begins = f" (begins `{self.cell.label}`)" if self.cell.label and self.cell.label != self.text.strip() else ""
        return f"cell {self.cell.number}{begins}, line {self.line}{code}"


@dataclass(frozen=True)
class Artifact:
    """The exported cells of a notebook, and the name that messages use for it (the notebook's file name)."""

    name: str
    cells: tuple[Cell, ...]

    @property
    def source(self) -> str:
        """Text of the module: each cell below a marker line with its number."""
        return "\n".join(f"# %% cell {cell.number}\n{cell.source.rstrip()}\n" for cell in self.cells)

    @classmethod
    def parse(cls, name: str, text: str) -> Artifact:
        """Read back what `source` wrote; text above the first marker (a hand-written module) counts as cell 0."""
        cells: list[tuple[int, list[str]]] = [(0, [])]
        for line in text.split("\n"):
            if mark := MARKER.match(line):
                cells.append((int(mark[1]), []))
            else:
                cells[-1][1].append(line)
        return cls(name, tuple(Cell(n, "\n".join(lines)) for n, lines in cells if "".join(lines).strip()))

    def where(self, line: int) -> Place | None:
        """The cell that holds a line (from 1) of `source`; None past its end."""
        first = 2  # line 1 is the first cell's marker
        for cell in self.cells:
            lines = cell.source.rstrip().split("\n")
            if first <= line < first + len(lines):
                return Place(cell, line - first + 1, lines[line - first])
            first += len(lines) + 2  # the blank line and the next marker
        return None


class ArtifactLoader(importlib.abc.InspectLoader):
    """Import machinery for an artifact, so that tracebacks and `inspect.getsource` find the learner's lines."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.filename = f"{artifact.name} (exported cells)"

    def get_source(self, fullname: str) -> str:
        """Text of the artifact's module, for `inspect` and tracebacks."""
        return self.artifact.source

    def get_code(self, fullname: str):  # type: ignore[no-untyped-def]  # noqa: D102 (typed Any by the base class)
        return compile(self.artifact.source, self.filename, "exec")


def place_of(frame: FrameType, line: int) -> Place | None:
    """The cell and line in the learner's exported cells that a frame is at; None for a frame of other code."""
    loader = frame.f_globals.get("__loader__")
    if isinstance(loader, ArtifactLoader) and frame.f_code.co_filename == loader.filename:
        return loader.artifact.where(line)
    return None


def load(
    artifact: Artifact, module_name: str = "learner_artifact", loader_of: type[ArtifactLoader] = ArtifactLoader
) -> ModuleType:
    """Run the exported cells as a module, or of them what another kind of loader runs.

    Raises `ArtifactError` naming cell and line for a syntax error or an exception while the cells run, and
    `UnfinishedError` where a cell itself runs into a task that has not been written.
    """
    loader = loader_of(artifact)
    linecache.cache.pop(loader.filename, None)  # of another text that went by this name
    spec = importlib.util.spec_from_loader(module_name, loader, origin=loader.filename)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = loader.filename
    sys.modules[module_name] = module  # dataclasses and pickle look a class's module up by name
    try:
        loader.exec_module(module)
    except SyntaxError as error:
        raise _syntax_error(artifact, loader.filename, error) from None
    except ArtifactError:
        raise
    except (NotImplementedError, UnfinishedError) as error:
        place = _place(error) or artifact.name
        raise UnfinishedError(f"a task that runs on import is not written yet: {place}") from error
    except (Exception, SystemExit) as error:
        raise ArtifactError(
            f"{artifact.name}: {_place(error) or 'an exported cell'} stops the import",
            got=describe(error),
            help="exported cells must run on their own, top to bottom, with nothing from the other cells",
        ) from error
    return module


def describe(error: BaseException) -> str:
    """One line of bounded length for an exception that a learner's code raised, whatever its `__str__` does."""
    kind = type(error).__name__
    try:
        said = " ".join(str(error).split())
    except Exception as broken:
        said = f"(its text cannot be shown: {type(broken).__name__})"
    said = said if len(said) <= LONGEST_TEXT else said[:LONGEST_TEXT] + " …"
    return f"{kind}: {said}" if said else kind


def _place(error: BaseException) -> Place | None:
    """The innermost of the learner's lines that an error passed through; None if it passed through none."""
    places = [place_of(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return next((place for place in reversed(places) if place is not None), None)


def _syntax_error(artifact: Artifact, filename: str, error: SyntaxError) -> ArtifactError:
    place = artifact.where(error.lineno) if error.lineno and error.filename == filename else None
    text = place.text.lstrip() if place else ""
    magic = text.startswith(("%", "!"))
    return ArtifactError(
        f"{artifact.name}: syntax error in {place or 'an exported cell'}",
        got="a notebook command" if magic else error.msg,
        help="move it to a cell without `#| export`" if magic else "run the cell in the notebook and mend it",
    )
