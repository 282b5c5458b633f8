"""Single calls: what chapter 3 quotes is on record, and measuring them again gives the same order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from book.measure_calls import RECORDS, measure_calls
from mlsys_lab.benchmark import Record, load

CHAPTER = Path(__file__).parents[2] / "book/chapters/03-inside-pytorch.md"
INTRODUCTION = CHAPTER.with_name("01-introduction.md")


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    return {path.stem: load(path) for path in RECORDS.glob("host-*.json")}


def test_the_chapter_times_the_calls_that_are_on_record_and_shows_their_medians(records: dict[str, Record]) -> None:
    text = CHAPTER.read_text(encoding="utf-8")
    column = dict(re.findall(r'^    "(.+)": (\d+\.\d\d),$', text, re.MULTILINE))
    on_record = {one.what: f"{one.p50:.2f}" for one in records.values() if one.name != "host-recording"}
    assert column == on_record
    timed = set(re.findall(r'^    "(.+)": lambda', text, re.MULTILINE))
    assert {one.what for one in records.values()} - timed == {records["host-recording"].what}


def test_the_chapter_quotes_the_records_with_their_spread(records: dict[str, Record]) -> None:
    text = " ".join(CHAPTER.read_text(encoding="utf-8").split())
    for name in ("host-add", "host-view", "host-recording"):
        one = records[name]
        assert f"{one.p50:.2f} µs ({one.p20:.2f} to {one.p80:.2f})" in text, name
    assert f"overhead_s = {records['host-add'].p50:.2f}e-6" in INTRODUCTION.read_text(encoding="utf-8")
    add, view = records["host-add"].p50, records["host-view"].p50
    assert f"one element takes {add:.2f} µs and a view, which touches nothing, {view:.2f} µs" in text


def test_measured_again_the_records_come_in_the_same_order(records: dict[str, Record]) -> None:
    anew = {one.name: one for one in measure_calls(rounds=5)}
    assert anew.keys() == records.keys()
    order = ("host-call", "host-add", "host-add-backward")
    assert list(order) == sorted(order, key=lambda name: anew[name].p50)
    for one in records.values():
        assert one.p80 - one.p20 < 0.5 * one.p50 and len(one.samples) >= 200, "a quiet machine"
