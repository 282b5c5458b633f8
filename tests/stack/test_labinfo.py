"""lab.toml, well-formed and not, and finding released labs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mlsys_lab
from mlsys_lab.errors import InputError
from mlsys_lab.stack.labinfo import find_lab, labs_root, read_lab, released_labs

GOOD = 'title = "T"\nsummary = "S"\nminutes = 5\npoints = 3\n'


def _lab(root: Path, name: str, text: str = GOOD, released: bool = True) -> Path:
    folder = root / name
    folder.mkdir()
    (folder / "lab.toml").write_text(text, encoding="utf-8")
    if released:
        (folder / f"{name}.ipynb").write_text("{}")
    return folder


def test_all_fields_are_read(tmp_path: Path) -> None:
    text = GOOD + 'withheld = ["m"]\nstack = ["t"]\nreadings = ["r"]\nextras = ["x"]\n'
    text += '[prerequisites]\nlabs = ["01-a"]\nchapters = ["02-c"]\n'
    lab = read_lab(_lab(tmp_path, "02-gpu-model", text))
    assert (lab.name, lab.number, lab.topic, lab.minutes, lab.points) == ("02-gpu-model", 2, "gpu-model", 5, 3)
    assert (lab.withheld, lab.stack, lab.readings, lab.extras) == (("m",), ("t",), ("r",), ("x",))
    assert (lab.prerequisite_labs, lab.prerequisite_chapters) == (("01-a",), ("02-c",))
    assert (lab.checks_module, lab.chapter) == ("mlsys_checks.trusted.gpu_model", "02-c")
    assert read_lab(_lab(tmp_path, "03-a-b")).chapter == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("title = ", "is not TOML"),
        ("", "field 'title' is wrong: got nothing"),
        (GOOD.replace('"T"', "7"), "field 'title' is wrong: got 7"),
        (GOOD.replace('"T"', '" "'), "field 'title' is empty"),
        (GOOD.replace("minutes = 5", "minutes = 0"), "field 'minutes' is wrong: got 0, expected a positive number"),
        (GOOD.replace("points = 3", "points = true"), "field 'points' is wrong"),
        (GOOD.replace("points = 3", "points = nan"), "field 'points' is wrong"),
        (GOOD + 'withheld = "m"', "field 'withheld' is wrong"),
        (GOOD + "readings = [1]", "field 'readings' is wrong"),
        (GOOD + "minuets = 7", "unknown field: got minuets; help: did you mean 'minutes'?"),
        (GOOD + "prerequisites = 3", "field 'prerequisites' is wrong"),
    ],
)
def test_a_slip_is_one_line_that_names_the_file(tmp_path: Path, text: str, said: str) -> None:
    folder = _lab(tmp_path, "01-a", text)
    with pytest.raises(InputError) as caught:
        read_lab(folder)
    assert said in str(caught.value) and "lab.toml" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["1-a", "autograd", "01_a", "01-A"])
def test_a_misnamed_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"misnamed.*01-autograd"):
        read_lab(_lab(tmp_path, name))


def test_a_folder_without_a_description(tmp_path: Path) -> None:
    (tmp_path / "01-a").mkdir()
    with pytest.raises(InputError, match=r"has no lab\.toml"):
        read_lab(tmp_path / "01-a")


@pytest.mark.parametrize("name", ["03-cuda", "cuda", "3", "03"])
def test_a_lab_is_found_by_any_of_its_names(tmp_path: Path, name: str) -> None:
    for folder in ("01-autograd", "03-cuda"):
        _lab(tmp_path, folder)
    assert find_lab(name, tmp_path).name == "03-cuda"


def test_only_released_labs_are_found(tmp_path: Path) -> None:
    _lab(tmp_path, "01-autograd")
    _lab(tmp_path, "02-later", released=False)
    assert [lab.name for lab in released_labs(tmp_path)] == ["01-autograd"]
    with pytest.raises(InputError, match="expected one of 01-autograd; help: did you mean 'autograd'"):
        find_lab("autogard", tmp_path)
    with pytest.raises(InputError, match="unknown lab: got '9'"):
        find_lab("9", tmp_path)


def test_no_labs_at_all(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no released labs.*make labs"):
        find_lab("autograd", tmp_path)


def test_labs_in_the_package_come_before_those_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "mlsys_lab"
    (package / "_labs").mkdir(parents=True)
    monkeypatch.setattr(mlsys_lab, "__file__", str(package / "__init__.py"))
    assert labs_root() == package / "_labs"
    (package / "_labs").rmdir()
    assert labs_root() == tmp_path / "labs"


def test_the_version_follows_the_exported_code_and_not_the_prose(tmp_path: Path) -> None:
    lab = read_lab(_lab(tmp_path, "01-a"))

    def version(code: str, prose: str) -> str:
        cells = [
            {"cell_type": "markdown", "source": [prose]},
            {"cell_type": "code", "source": ["#| export\n", code]},
            {"cell_type": "code", "source": [f"print({prose!r})"]},
        ]
        lab.notebook.write_text(json.dumps({"cells": cells}), encoding="utf-8")
        return lab.version

    assert version("def f(x): ...", "A sum.") == version("def f(x): ...", "A total.")
    assert version("def f(x): ...", "A sum.") != version("def f(x, y): ...", "A sum.")


@pytest.mark.parametrize("content", ["{", "{}", "[]", '{"cells": [{}]}'])
def test_a_damaged_notebook_has_no_version(tmp_path: Path, content: str) -> None:
    lab = read_lab(_lab(tmp_path, "01-a"))
    lab.notebook.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match="is no notebook"):
        _ = lab.version
