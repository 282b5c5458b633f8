from __future__ import annotations

import re

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.widgets import esm, write_modules
from mlsys_lab.widgets.modules import FIGURES


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_one_module_without_imports_or_addresses(name: str) -> None:
    source = esm(name)
    assert not re.search(r"^\s*import\b|import\(|\bfetch\(|XMLHttpRequest", source, re.MULTILINE)
    assert re.findall(r"https?://[^\"`\s]+", source) == ["http://www.w3.org/2000/svg"]
    assert source.count("export default { render };") == 1
    assert f'register("mlsys-{name}", render);' in source


def test_an_unknown_module_is_named_in_the_error() -> None:
    with pytest.raises(InputError, match=r"rooflime.*one of .*backward, .*roofline"):
        esm("rooflime")


def test_written_modules_are_the_same_text(tmp_path) -> None:
    paths = write_modules(tmp_path / "_static" / "widgets")
    assert {path.name for path in paths} == {f"{name}.js" for name in (*FIGURES, "load")}
    assert all(path.read_text(encoding="utf-8") == esm(path.stem) for path in paths)
