"""A learner's artifact: the exported cells of a lab's notebook as one plain Python module.

The text of an artifact marks where each cell begins (`# %% cell 5`), so that an error in it can always be told as
"cell 5, line 3", also when the text was read back from the learner's workspace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mlsys_lab.errors import CourseError

MARKER = re.compile(r"^# %% cell (\d+)$", re.MULTILINE)


class ArtifactError(CourseError):
    """An exported cell cannot be run: it is no Python, raised an exception, or is a kernel that may not be traced."""


class ExecutionCount(int):
    """Number of a cell in a running notebook, which messages show as the notebook does: "In[3]"."""

    def __str__(self) -> str:
        return f"In[{int(self)}]"


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
    """The exported cells of a notebook, and the name that messages use for it (the notebook's file name).

    `elsewhere`: names that only other cells of the notebook seem to define, and the number of the last that does.
    """

    name: str
    cells: tuple[Cell, ...]
    elsewhere: tuple[tuple[str, int], ...] = ()

    @property
    def source(self) -> str:
        """Text of the module: each cell below a marker line with its number; a learner's own such line gets a blank."""
        texts = (MARKER.sub(r"\g<0> ", cell.source.rstrip()) for cell in self.cells)
        return "\n".join(f"# %% cell {cell.number}\n{text}\n" for cell, text in zip(self.cells, texts, strict=True))

    @classmethod
    def parse(cls, name: str, text: str, elsewhere: Iterable[tuple[str, int]] = ()) -> Artifact:
        """Read back what `source` wrote; text above the first marker (a hand-written module) counts as cell 0."""
        cells: list[tuple[int, list[str]]] = [(0, [])]
        for line in text.split("\n"):
            if mark := MARKER.match(line):
                cells.append((int(mark[1]), []))
            else:
                cells[-1][1].append(line)
        kept = tuple(Cell(n, "\n".join(lines)) for n, lines in cells if "".join(lines).strip())
        return cls(name, kept, tuple((name, number) for name, number in elsewhere))

    def where(self, line: int) -> Place | None:
        """The cell that holds a line (from 1) of `source`; None past its end."""
        for cell, first in self.placed_cells():
            lines = cell.source.rstrip().split("\n")
            if first <= line < first + len(lines):
                return Place(cell, line - first + 1, lines[line - first])
        return None

    def placed_cells(self) -> Iterator[tuple[Cell, int]]:
        """Each cell with the line of `source` (from 1) that it begins at."""
        first = 2  # line 1 is the first cell's marker
        for cell in self.cells:
            yield cell, first
            first += cell.source.rstrip().count("\n") + 3  # the blank line and the next marker
