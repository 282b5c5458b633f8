"""The README's table of labs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlsys_grader.cli import main
from mlsys_grader.release.table import BEGIN, END, replace_table, write_table
from mlsys_lab.errors import InputError
from mlsys_lab.stack.labinfo import LabInfo, released_labs

PROJECT = Path(__file__).parents[3]


def test_a_row_says_what_one_builds_in_how_many_minutes_and_leads_to_the_notebook() -> None:
    lab = LabInfo(Path("labs/03-cuda"), "Kernels | two", "Ten kernels.", 280, 100)
    row = write_table([lab]).splitlines()[2]
    assert row == "| 3 | [Kernels \\| two](labs/03-cuda/03-cuda.ipynb) | Ten kernels. | 280 |"


def test_the_readme_of_this_checkout_holds_the_table_of_its_labs() -> None:
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    assert replace_table(readme, write_table(released_labs(PROJECT / "labs"))) == readme


@pytest.mark.parametrize("text", ["", f"{BEGIN}\n", f"{END}\n{BEGIN}\n", f"{BEGIN}\n{END}\n{BEGIN}\n{END}\n"])
def test_a_readme_without_a_place_for_it_is_told(text: str) -> None:
    with pytest.raises(InputError, match="no place for the table of labs"):
        replace_table(text, "table")


def test_release_writes_the_table_and_check_holds_it(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme = checkout / "README.md"
    readme.write_text(f"# Before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    arguments = ["release", "--project", str(checkout)]
    assert main(arguments) == main([*arguments, "--check"]) == 0
    before, table, after = readme.read_text(encoding="utf-8").partition("(labs/01-tiny/01-tiny.ipynb)")
    assert before.startswith(f"# Before\n{BEGIN}\n") and table and after.endswith(f"|\n{END}\nafter\n")
    readme.write_text(f"{BEGIN}\nold\n{END}\n", encoding="utf-8")
    capsys.readouterr()
    assert main([*arguments, "--check"]) == 1
    told = capsys.readouterr()
    assert "README.md: stale" in told.out
    assert told.err == "mlsys-grader: README.md is not what solutions/ gives; help: mlsys-grader release\n"
