"""Charts drawn from Plotly's figures: values stand in their places, words fit, what cannot be drawn is an error."""

from __future__ import annotations

import json
import re
import sys
from xml.etree import ElementTree

import numpy as np
import plotly.graph_objects as go
import pytest
from plotly.subplots import make_subplots

from book.charts import WIDTHS, chart
from book.charts.axes import make_axis, number
from book.project import BOOK
from mlsys_lab.errors import InputError
from mlsys_lab.widgets import plots

sys.path.insert(0, str(BOOK / "_ext"))  # where the extension `chart` is

import chart as extension

LETTER = 7.2  # px: the mean width of a letter of small text


def draw(figure: go.Figure) -> ElementTree.Element:
    """The chart of a figure, as XML."""
    spec = json.loads(figure.to_json())
    spec["layout"].pop("template", None)  # as `show` does
    return ElementTree.fromstring(chart(spec, "what it shows"))


def picture(figure: go.Figure, kind: str = "wide") -> ElementTree.Element:
    """The wide or the narrow picture of a figure's chart."""
    return next(svg for svg in draw(figure).iter("svg") if svg.get("class") == f"chart-{kind}")


def way(svg: ElementTree.Element, tone: str) -> list[list[float]]:
    """Points of the way that a tone's series takes."""
    (path,) = (one for one in svg.iter("path") if one.get("class") == f"{tone} way")
    return [[float(part) for part in point.split()] for point in path.get("d", "")[1:].split("L")]


def bars(svg: ElementTree.Element, tone: str) -> list[tuple[float, float, float, float]]:
    """x, y, width and height of a tone's bars."""
    sides = ("x", "y", "width", "height")
    found = [one for one in svg.iter("rect") if one.get("class") == f"{tone} solid"]
    return [tuple(float(one.get(side, "nan")) for side in sides) for one in found]  # type: ignore[misc]


def test_points_stand_in_proportion_and_on_a_logarithmic_axis_by_their_ratios() -> None:
    figure = go.Figure(go.Scatter(x=[1, 10, 1000], y=[0, 4, 1], mode="lines"))
    (x1, y1), (x2, y2), (x3, y3) = way(picture(figure.update_xaxes(type="log")), "blue")
    assert (x3 - x2) / (x2 - x1) == pytest.approx(2, rel=1e-2)
    assert (y1 - y2) / (y1 - y3) == pytest.approx(4, rel=1e-2)


def test_arrays_are_read_as_lists_are() -> None:
    given, array = ([1.5, 2.5, 4.0], np.array([1.5, 2.5, 4.0]))
    lists, arrays = (go.Figure(go.Scatter(x=x, y=x, mode="lines")) for x in (given, array))
    assert ElementTree.tostring(draw(lists)) == ElementTree.tostring(draw(arrays))


def test_stacked_bars_begin_where_the_one_before_ends() -> None:
    figure = go.Figure([go.Bar(y=["a", "b"], x=x, orientation="h", name=str(x)) for x in ([3, 1], [1, 5])])
    svg = picture(figure.update_layout(barmode="stack"))
    first, second = bars(svg, "blue"), bars(svg, "orange")
    for one, next_one in zip(first, second, strict=True):
        assert one[0] + one[2] == pytest.approx(next_one[0], abs=0.2) and one[1] == next_one[1]
    assert second[1][2] / first[1][2] == pytest.approx(5, rel=1e-2)
    assert first[1][1] < first[0][1], "as Plotly has it, the first place is the lowest"


def test_bars_side_by_side_do_not_overlap() -> None:
    svg = picture(go.Figure([go.Bar(x=["a", "b"], y=[2, 1], name=name) for name in ("one", "two")]))
    for one, other in zip(bars(svg, "blue"), bars(svg, "orange"), strict=True):
        assert other[0] >= one[0] + one[2] - 0.2 and one[1] + one[3] == pytest.approx(other[1] + other[3], abs=0.2)


def test_bars_with_long_names_lie_down_where_these_do_not_fit() -> None:
    names = ["coalesced reads", "shared tile", "register tile"]
    figure = go.Figure(go.Bar(x=names, y=[4, 2, 1]))
    wide, narrow = (bars(picture(figure, kind), "blue") for kind in ("wide", "narrow"))
    assert [round(one[3] / wide[2][3]) for one in wide] == [4, 2, 1]
    assert [round(one[2] / narrow[2][2]) for one in narrow] == [4, 2, 1]
    assert narrow[0][1] < narrow[1][1] < narrow[2][1]


def test_what_lies_beyond_a_range_is_cut_off_there() -> None:
    figure = go.Figure(go.Scatter(x=[0, 1, 2], y=[30, 10, 0], mode="lines+markers")).update_yaxes(range=[0, 20])
    svg = picture(figure)
    (x1, y1), (x2, y2), (x3, y3) = way(svg, "blue")
    assert (x3 - x2) / (x2 - x1) == pytest.approx(2, rel=1e-2) and y3 - y1 == pytest.approx(2 * (y2 - y1), rel=1e-2)
    assert len(list(svg.iter("circle"))) == 2


def test_a_line_across_stands_at_its_value_with_its_label() -> None:
    figure = go.Figure(go.Scatter(x=[0, 4], y=[1, 2], mode="lines")).add_vline(
        x=1, line_dash="dot", annotation_text="here"
    )
    svg = picture(figure)
    (x1, _), (x2, _) = way(svg, "blue")
    (across,) = (one for one in svg.iter("path") if one.get("class") == "plain dot")
    assert float(across.get("d", "").split()[0][1:]) == pytest.approx(x1 + (x2 - x1) / 4, abs=0.3)
    assert "here" in [one.text for one in svg.iter("text")]


def test_panels_stand_one_below_the_other_and_share_an_axis() -> None:
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True)
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", row=1, col=1)
    figure.add_scatter(x=[0, 2], y=[5, 9], mode="lines", row=2, col=1)
    upper, lower = (way(picture(figure), tone) for tone in ("blue", "orange"))
    assert max(y for _, y in upper) < min(y for _, y in lower)
    assert upper[1][0] - upper[0][0] == pytest.approx((lower[1][0] - lower[0][0]) / 2, abs=0.3)


@pytest.mark.parametrize("kind", WIDTHS)
def test_words_lie_within_the_picture(kind: str) -> None:
    lying = go.Figure(go.Bar(y=["a name of thirty letters or so", "b"], x=[1, 2], orientation="h"))
    lines = go.Figure(go.Scatter(x=[1, 10], y=[1e-5, 2e5], mode="lines")).update_yaxes(type="log", title="µs a call")
    across = go.Figure(go.Scatter(x=[0, 9], y=[0, 1])).add_vline(x=9, annotation_text="at the end")
    for figure in (lying, lines, across):
        for word in picture(figure, kind).iter("text"):
            x, long = float(word.get("x", "nan")), LETTER * len(word.text or "")
            left = {"start": 0, "middle": long / 2, "end": long}[word.get("text-anchor", "")]
            assert x - left > -6 and x - left + long < WIDTHS[kind] + 6, word.text


def test_a_chart_says_what_it_shows_and_has_a_key_of_more_than_one_series() -> None:
    one, two = go.Figure(go.Scatter(x=[1, 2], y=[1, 2], name="<a>")), go.Figure(layout={"title": "R & D"})
    for name in ("<a>", "b"):
        two.add_scatter(x=[1, 2], y=[1, 2], name=name)
    assert draw(one).get("role") == "img" and draw(one).get("aria-label") == "what it shows"
    assert draw(one).find("p") is None
    assert [p.get("class") for p in draw(two).iter("p")] == ["chart-title", "chart-keys"]
    assert [span[0].tail for span in draw(two).iter("span")] == ["<a>", "b"]


def test_series_of_one_colour_have_one_tone_and_no_chart_more_tones_than_there_are() -> None:
    figure = go.Figure()
    for colour in ("#111111", "#222222", "#111111", "gray"):
        figure.add_scatter(x=[1, 2], y=[1, 2], mode="lines", line_color=colour)
    classes = [one.get("class") for one in picture(figure).iter("path") if "way" in one.get("class", "")]
    assert classes == ["blue way", "orange way", "blue way", "plain way"]
    with pytest.raises(InputError, match="too many colours"):
        draw(go.Figure([go.Scatter(x=[1, 2], y=[1, 2])] * 7))


@pytest.mark.parametrize(
    ("figure", "what"),
    [
        (go.Figure(go.Heatmap(z=[[1]])), "charts do not know this about a trace"),
        (go.Figure(go.Pie()), "no such trace"),
        (go.Figure(go.Scatter(x=[1], y=[1], fill="tozeroy")), "fill"),
        (go.Figure(go.Scatter(x=[1, 2], y=[1, 2], line_dash="longdash")), "no such dash"),
        (go.Figure(go.Scatter(x=[1, 2], y=[1, 2]), layout={"sliders": [{}]}), "sliders"),
        (go.Figure(go.Scatter(x=[1, 2], y=[1, 2])).add_hline(y=1), "no such shape"),
    ],
)
def test_what_charts_cannot_draw_is_an_error(figure: go.Figure, what: str) -> None:
    with pytest.raises(InputError, match=what):
        draw(figure)


def ticks(low: float, high: float, **settings: object) -> list[str]:
    """Words at the ticks of an axis that reaches from `low` to `high`."""
    return [word for _, word in make_axis(settings, [low, high], pad=False).ticks]


def test_ticks_are_few_and_round() -> None:
    assert ticks(0, 100) == ["0", "20", "40", "60", "80", "100"]
    assert ticks(0, 64, dtick=16) == ["0", "16", "32", "48", "64"]
    assert ticks(1, 1000, type="log") == ["1", "10", "100", "1,000"]
    assert ticks(1, 30, type="log") == ["1", "2", "5", "10", "20"]
    assert ticks(1, 64, type="log", dtick=float(np.log10(2))) == ["1", "4", "16", "64"]
    assert ticks(1, 1e12, type="log") == ["1", "1,000", "10⁶", "10⁹", "10¹²"]
    assert ticks(1, 9, tickvals=[1, 4, 16], ticktext=["a", "b", "c"]) == ["a", "b"]


def test_numbers_have_no_needless_digits() -> None:
    assert [number(one) for one in (0, 0.1 + 0.2, -5, 1e6, 2.5e-7)] == ["0", "0.3", "-5", "10⁶", "2.5·10⁻⁷"]


def test_a_cell_s_figure_becomes_a_chart_and_other_output_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []
    monkeypatch.setattr(plots, "display", lambda data, raw: shown.append(data))
    plots.show(go.Figure(go.Scatter(x=[1, 2], y=[3, 4], name="</script>")), alt='a "line" & more')
    drawn = extension.drawn(shown[0]["text/html"])
    assert "script" not in re.sub("&lt;/script&gt;", "", drawn) and drawn.startswith('<div class="drawing chart"')
    assert ElementTree.fromstring(drawn).get("aria-label") == 'a "line" & more'
    assert extension.drawn("<table></table>") == "<table></table>"
