from __future__ import annotations

from pathlib import Path

import pytest

from book.lab_pages import stage
from mlsys_lab.errors import InputError


def make_lab(labs: Path, name: str) -> Path:
    folder = labs / name
    folder.mkdir(parents=True)
    (folder / "lab.toml").write_text('title = "T"\nsummary = "S"\nminutes = 90\npoints = 10\n', encoding="utf-8")
    (folder / f"{name}.ipynb").write_bytes(b'{"cells": []}')
    return folder


def test_released_notebooks_are_copied_byte_for_byte_and_old_ones_go(tmp_path: Path) -> None:
    source = make_lab(tmp_path / "labs", "01-autograd") / "01-autograd.ipynb"
    target = tmp_path / "book"
    target.mkdir()
    (target / "09-gone.ipynb").write_text("")
    stage(tmp_path / "labs", target)
    assert [path.name for path in target.iterdir()] == ["01-autograd.ipynb"]
    assert (target / "01-autograd.ipynb").read_bytes() == source.read_bytes()


def test_without_labs_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no released labs.*make labs"):
        stage(tmp_path / "labs", tmp_path / "book")
