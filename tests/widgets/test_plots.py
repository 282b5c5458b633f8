from __future__ import annotations

import json

import plotly.graph_objects as go
import pytest

from mlsys_lab.widgets import plots, show


@pytest.fixture
def bundle(monkeypatch):
    """bundle(alt): what `show` gives to the front end, by MIME type."""
    shown = []
    monkeypatch.setattr(plots, "display", lambda data, raw: shown.append(data))

    def bundle(alt: str = "a line") -> dict:
        show(line(), alt=alt, height=300)
        return shown.pop()

    return bundle


def line() -> go.Figure:
    figure = go.Figure(go.Scatter(x=[1, 2, 3], y=[3, 1, 2], name="</script>"))
    figure.update_layout(xaxis_title="segments", yaxis_title="bytes held")
    return figure


def test_notebooks_get_plotly_s_own_type_and_the_site_gets_html(bundle) -> None:
    data = bundle('"quoted" & <b>')
    assert list(data["application/vnd.plotly.v1+json"]["data"][0]["y"]) == [3, 1, 2]
    html = data["text/html"]
    assert 'aria-label="&quot;quoted&quot; &amp; &lt;b&gt;"' in html
    assert html.count("</script>") == 1
    spec = json.loads(html.split('application/json">')[1].split("</script>")[0])
    assert spec["data"][0]["name"] == "</script>"
    assert "template" not in spec["layout"]


def test_a_notebook_keeps_no_room_for_a_title_that_is_not_there(monkeypatch) -> None:
    shown = []
    monkeypatch.setattr(plots, "display", lambda data, raw: shown.append(data))
    for change in ({}, {"margin_l": 5}, {"margin_t": 80}, {"title": "a title"}):
        show(line().update_layout(**change), alt="a line")
    layouts = [data["application/vnd.plotly.v1+json"]["layout"] for data in shown]
    assert [layout.get("margin") for layout in layouts] == [{"t": 30}, {"t": 30, "l": 5}, {"t": 80}, None]
    sites = [json.loads(data["text/html"].split('application/json">')[1].split("</script>")[0]) for data in shown]
    assert [site["layout"].get("margin") for site in sites] == [None, {"l": 5}, {"t": 80}, None]


def contrast(one: str, other: str) -> float:
    """As WCAG 2.2 defines it, of two colours like #1d2733: 1 to 21."""
    lights = []
    for colour in (one, other):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        lights.append(0.2126 * r + 0.7152 * g + 0.0722 * b)
    return (max(lights) + 0.05) / (min(lights) + 0.05)


@pytest.mark.parametrize("ground", ["#ffffff", "#111111"])  # of JupyterLab's two themes
def test_a_notebook_s_figures_stand_out_from_a_light_ground_as_from_a_dark_one(bundle, ground: str) -> None:
    layout = bundle()["application/vnd.plotly.v1+json"]["layout"]["template"]["layout"]
    assert layout["paper_bgcolor"] == layout["plot_bgcolor"] == "rgba(0, 0, 0, 0)"
    assert contrast(layout["font"]["color"], ground) > 4.2
    assert len(layout["colorway"]) == 6 and all(contrast(colour, ground) > 3 for colour in layout["colorway"])
