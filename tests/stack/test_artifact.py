"""Artifacts as text: cells and their lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.stack.artifact import Artifact, Cell
from mlsys_lab.stack.loading import load


def test_text_of_a_workspace_is_read_back() -> None:
    artifact = Artifact("n.ipynb", (Cell(10, "x = 2"), Cell(11, "def f():\n\n    return x")))
    again = Artifact.parse("a.py", artifact.source)
    assert again.source == artifact.source
    assert load(again).f() == 2


def test_a_module_written_by_hand_loads() -> None:
    assert load(Artifact.parse("a.py", "x = 5\n")).x == 5


@given(st.lists(st.lists(st.sampled_from(["x = 1", "", "# c", "y = 2  # %% cell 3", "'''a"]), max_size=4), max_size=4))
def test_every_line_of_every_cell_is_found(cells: list[list[str]]) -> None:
    artifact = Artifact("n.ipynb", tuple(Cell(i, "\n".join(lines)) for i, lines in enumerate(cells, start=1)))
    places = [artifact.where(n) for n in range(1, artifact.source.count("\n") + 2)]
    found = {(p.cell.number, p.line): p.text for p in places if p}
    for number, lines in enumerate(cells, start=1):
        kept = "\n".join(lines).rstrip().split("\n")
        assert [found[number, i] for i in range(1, len(kept) + 1)] == kept


def test_a_learners_line_that_looks_like_a_mark_between_cells_is_none() -> None:
    cell = Cell(4, "text = '''\n# %% cell 7\n'''\ndef f():\n    return text")
    (again,) = Artifact.parse("a.py", Artifact("n.ipynb", (cell,)).source).cells
    assert again.number == 4 and "return text" in again.source
