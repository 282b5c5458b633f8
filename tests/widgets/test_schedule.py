"""A schedule as a table: one row per request, a cell per step, prefill and decode in classes of their own."""

from bs4 import BeautifulSoup

from mlsys_lab.widgets.schedule import Schedule


def test_each_request_has_a_row_and_each_step_a_cell() -> None:
    table = BeautifulSoup(Schedule([{"A": 3, "<B>": 1}, {"A": 1}], {"A": 4, "<B>": 1})._repr_html_(), "html.parser")
    head, first, second = table.select("tr")
    assert [one.get_text() for one in head.select("th")] == ["step", "1", "2"]
    assert [one.get_text() for one in first.select("th, td")] == ["A", "3", "1"]
    assert [one.get_text() for one in second.select("th, td")] == ["<B>", "1", ""]


def test_tokens_of_the_prompt_are_prefill_and_later_ones_decode() -> None:
    table = BeautifulSoup(Schedule([{"A": 2}, {"A": 1}, {"A": 1}], {"A": 3})._repr_html_(), "html.parser")
    assert [one["class"] for one in table.select("td")] == [["prefill"], ["prefill"], ["decode"]]
    assert [one["style"] for one in table.select("td")] == ["--part: 1.00", "--part: 0.50", "--part: 0.50"]


def test_no_steps_are_an_empty_table() -> None:
    assert "<td" not in Schedule([], {})._repr_html_()
