from __future__ import annotations

import json
import re

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.widgets import element, esm, write_modules
from mlsys_lab.widgets.modules import FIGURES, script_json, table


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_one_module_without_imports_or_addresses(name: str) -> None:
    source = esm(name)
    assert not re.search(r"^\s*import\b|import\(|\bfetch\(|XMLHttpRequest", source, re.MULTILINE)
    assert re.findall(r"https?://[^\"`\s]+", source) == ["http://www.w3.org/2000/svg"]
    assert source.count("export default { render };") == 1
    assert f'register("mlsys-{name}", render);' in source


def test_an_unknown_module_is_named_in_the_error() -> None:
    with pytest.raises(InputError, match=r"rooflime.*one of backward, .*roofline"):
        esm("rooflime")
    with pytest.raises(InputError, match="no such figure"):
        element("plots")


def test_written_modules_are_the_same_text(tmp_path) -> None:
    paths = write_modules(tmp_path / "_static" / "widgets")
    assert {path.name for path in paths} == {f"{name}.js" for name in (*FIGURES, "plots", "load")}
    assert all(path.read_text(encoding="utf-8") == esm(path.stem) for path in paths)


@pytest.mark.parametrize("text", ["</script><b>", "<!--<script>", "a&b\"'", "Größe → ∂", "\u2028"])
def test_data_cannot_leave_its_script_element(text: str) -> None:
    encoded = script_json({"label": text})
    assert "<" not in encoded
    assert json.loads(encoded) == {"label": text}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}])
def test_data_that_json_does_not_have_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="plain JSON"):
        element("roofline", devices=value)


def test_the_fallback_stands_inside_the_element_and_is_escaped() -> None:
    html = element("roofline", devices=[], fallback=table(["a<b"], [["x&y"]]))._repr_html_()
    assert html.endswith("<table><tr><th>a&lt;b</th></tr><tr><td>x&amp;y</td></tr></table></mlsys-roofline>")
