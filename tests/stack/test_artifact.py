"""Artifacts as modules, and where in the notebook their errors are."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.errors import UnfinishedError
from mlsys_lab.stack.artifact import Artifact, ArtifactError, Cell, describe, load, place_of


def _artifact(*sources: str) -> Artifact:
    return Artifact("n.ipynb", tuple(Cell(10 + i, f"#| export\n{source}") for i, source in enumerate(sources)))


def test_cells_share_one_module() -> None:
    module = load(_artifact("x = 2", "def f():\n    return x + 1"))
    assert module.f() == 3


def test_source_is_that_of_the_text_loaded_last_under_a_name() -> None:
    for value in (1, 2):
        module = load(Artifact.parse("lab.ipynb", f"def f():\n    return {value}\n"))
        assert f"return {value}" in inspect.getsource(module.f)


def test_classes_have_source_and_can_be_pickled() -> None:
    module = load(_artifact("from dataclasses import dataclass\n@dataclass\nclass P:\n    a: 'int' = 1"))
    assert "class P" in inspect.getsource(module.P)
    assert dataclasses.asdict(pickle.loads(pickle.dumps(module.P(5)))) == {"a": 5}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def f(:\n  pass", "n.ipynb: syntax error in cell 11, line 2: `def f(:`: got invalid syntax"),
        ("%matplotlib inline", "got a notebook command; help: move it to a cell without"),
        ("!pip install x", "got a notebook command"),
        ("y = 1\n1 / 0", "cell 11 (begins `y = 1`), line 3: `1 / 0` stops the import: got ZeroDivisionError: division"),
        ("import no_such_module_here", "got ModuleNotFoundError: No module named"),
        ("exit()", "got SystemExit"),
        ("def g():\n    return undefined\ng()", "cell 11 (begins `def g():`), line 3: `return undefined`"),
    ],
)
def test_what_stops_an_import_is_told_by_cell_and_line(source: str, said: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        load(_artifact("x = 2", source))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_exceptions_are_described_in_one_bounded_line() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert describe(ValueError("a\n  b")) == "ValueError: a b"
    assert describe(KeyError()) == "KeyError"
    assert describe(Broken()) == "Broken: (its text cannot be shown: ValueError)"
    assert len(describe(ValueError("x" * 10_000))) < 350


def test_an_unwritten_task_that_a_cell_calls_is_unfinished() -> None:
    with pytest.raises(UnfinishedError, match="not written yet: cell 10"):
        load(_artifact("def f():\n    raise NotImplementedError\nf()"))


def test_errors_after_import_are_placed_too() -> None:
    module = load(_artifact("x = 2\n\n", "def f():\n    return 1 / 0"))
    with pytest.raises(ZeroDivisionError) as caught:
        module.f()
    *_, (frame, line) = traceback.walk_tb(caught.value.__traceback__)
    place = place_of(frame, line)
    assert place is not None and (place.cell.number, place.line) == (11, 3)


def test_frames_of_others_have_no_place() -> None:
    assert place_of(inspect.currentframe(), 1) is None  # type: ignore[arg-type]


def test_text_of_a_workspace_is_read_back() -> None:
    artifact = _artifact("x = 2", "def f():\n\n    return x")
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
