"""The solved labs as modules: what they hold, and where they are found."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import mlsys_lab
from mlsys_lab.stack.solved import export_solved, find_solved, load_solved
from tests.labs.harness import LabUnderTest, labs


@pytest.mark.parametrize("lab", labs(), ids=lambda lab: lab.info.topic)
def test_a_solved_lab_holds_the_lines_of_its_exported_cells(lab: LabUnderTest) -> None:
    exported = export_solved(lab.source.read_text(encoding="utf-8"))
    ours, wanted = (
        [line for line in text.splitlines() if line.strip() and not line.startswith("# %%")]
        for text in (exported, lab.reference)
    )
    assert ours == wanted
    assert export_solved(exported).split() == exported.split()  # as a wheel's are read


def test_it_is_imported_once_and_shows_its_source() -> None:
    solved = load_solved("scaling-laws")
    assert solved is not None and load_solved("scaling-laws") is solved
    assert inspect.getsource(solved.fit_parametric).startswith("def fit_parametric(")


def test_those_of_an_installed_package_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "mlsys_lab"
    monkeypatch.setattr(mlsys_lab, "__file__", str(package / "__init__.py"))
    assert find_solved("a-b") is None and load_solved("a-b") is None
    inside, checkout = package / "_solved" / "03-a-b.py", tmp_path / "solutions" / "03-a-b" / "03-a-b.py"
    for path in (checkout, inside):
        path.parent.mkdir(parents=True)
        path.write_text("# %%\n#| export\nraise ValueError('when imported')\n")
        assert find_solved("a-b") == path and find_solved("b") is None
    for _ in range(2):
        with pytest.raises(ValueError, match="when imported"):
            load_solved("a-b")
