from __future__ import annotations

import json

import pytest

from mlsys_lab.autograd import Value
from mlsys_lab.errors import InputError
from mlsys_lab.widgets import element, graph_data
from mlsys_lab.widgets.page import Table, script_json, table


@pytest.mark.parametrize("text", ["</script><b>", "<!--<script>", "a&b\"'", "Größe → ∂", "\u2028"])
def test_data_cannot_leave_its_script_element(text: str) -> None:
    encoded = script_json({"label": text})
    assert "<" not in encoded
    assert json.loads(encoded) == {"label": text}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}])
def test_data_that_json_does_not_have_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="plain JSON"):
        element("roofline", devices=value, fallback="-")


def test_the_fallback_stands_inside_the_element_and_is_escaped() -> None:
    html = element("roofline", devices=[], fallback=table(["a<b"], [["x&y"]]))._repr_html_()
    assert html.endswith(
        "<tr><th>a&lt;b</th></tr></thead><tbody><tr><td>x&amp;y</td></tr></tbody></table></mlsys-roofline>"
    )


def test_figures_bring_a_table_of_their_data() -> None:
    html = element("roofline", devices=[{"name": "A<1>", "bandwidth": 2e12, "peaks": {"bf16": 800e12}}])._repr_html_()
    assert "<td>A&lt;1&gt;</td><td>2,000</td><td>bf16 800 (400)</td>" in html
    x = Value(3.0)
    html = element("backward", graph=graph_data(x * 2, {"x": x}))._repr_html_()
    assert "<td>x</td><td>input</td><td>3</td><td></td>" in html and "<td>n2</td><td>*(x, n1)</td><td>6</td>" in html


def test_a_table_sets_numbers_apart_and_lets_long_names_break() -> None:
    rows = [("1", "one", "2.5 GB", ""), ("2", "3 of 4", "", "−1")]
    html = Table(("a_name", "what", "GB", "left"), rows)._repr_html_()
    head = '<tr><th>a_<wbr>name</th><th>what</th><th class="number">GB</th><th class="number">left</th></tr></thead>'
    row = '<tr><td>1</td><td>one</td><td class="number">2.5 GB</td><td class="number"></td></tr>'
    assert html.startswith(f"<table><thead>{head}<tbody>{row}<tr><td>2</td><td>3 of 4</td>")
    assert Table(("a", "b"), ())._repr_html_() == table(("a", "b"), ()).replace("<th>b", '<th class="number">b')
    with pytest.raises(ValueError, match="shorter"):
        Table(("a", "b"), [("1",)])


def test_an_unknown_figure_is_refused() -> None:
    with pytest.raises(InputError, match=r"no such figure: got 'plots', expected one of .*backward, .*roofline"):
        element("plots")
