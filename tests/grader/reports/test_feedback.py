import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from mlsys_grader.gradebook.record import Record
from mlsys_grader.judging.verdict import Verdict
from mlsys_grader.reports.feedback import render_feedback

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'><a href=javascript:alert(1)>"


@pytest.fixture
def record(tiny):
    verdicts = (
        Verdict("double", "double", 1, 1),
        Verdict(
            "mean", "mean", 2, 0, what="a case that is not shown fails", case="no numbers", hidden=True, hint="nothing?"
        ),
        Verdict("total", "sum", 3, 0, what=EVIL, got=EVIL, expected=EVIL, hint="add", case="many"),
    )
    return Record(
        "ada", tiny.name, "ab" * 32, tiny.version, verdicts, notes=(EVIL,), judged_at="2026-01-01T00:00:00+00:00"
    )


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found, self.attributes = set(), set()

    def handle_starttag(self, tag, attributes):
        self.found.add(tag)
        self.attributes |= {name for name, _ in attributes}


def test_the_page_is_inert(record, tiny):
    html = render_feedback(record, tiny)
    tags = Tags()
    tags.feed(html)
    assert not tags.found & {"script", "img", "a", "iframe", "form", "link", "object"}
    assert not {name for name in tags.attributes if name.startswith("on") or name in ("src", "href")}
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)[1]
    assert "default-src 'none'" in policy and "script-src" not in policy


def test_marks_and_reasons_are_on_the_page(record, tiny):
    html = render_feedback(record, tiny)
    assert "1 of 6 points" in html
    assert "no numbers (not shown)" in html
    for text in ("nothing?", "add", "many"):
        assert text in html


def test_nothing_secret_is_on_the_page(record, tiny):
    verdicts = tuple(replace(verdict, seed=123456789012345) for verdict in record.verdicts)
    assert "123456789012345" not in render_feedback(replace(record, verdicts=verdicts), tiny)


def test_one_reason_for_everything_is_said_once_at_the_top(record, tiny):
    verdicts = tuple(replace(v, earned=0.0, what="the file is damaged", got="", expected="") for v in record.verdicts)
    assert "Every check failed for one reason: <strong>the file is damaged</strong>" in render_feedback(
        replace(record, verdicts=verdicts), tiny
    )
    assert "for one reason" not in render_feedback(record, tiny)
