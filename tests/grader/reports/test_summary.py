"""`mlsys-grader report`: figures from records, a page without anything live, in terminal, JSON and browser."""

import json
import re
from dataclasses import replace

import pytest

from mlsys_grader.cli import main
from mlsys_grader.commands.report import _print
from mlsys_grader.gradebook.record import Record, read_record
from mlsys_grader.judging.performance import PerformanceVerdict
from mlsys_grader.judging.verdict import Verdict
from mlsys_grader.reports.summary import Failure, generalise_reason, summarise
from mlsys_grader.reports.summary_page import render_summary
from tests.pages import settle

NASTY = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
LAB = "01-tiny"


def record(student, marks, **change):
    """A record of the tiny lab: `marks` are the points earned in double, mean, total."""
    points = {"double": 1, "mean": 2, "total": 3}
    verdicts = tuple(
        Verdict(name, name, most, earned, **({} if earned else {"what": f"{name} is wrong", "got": f"-{most}.5e3"}))
        for (name, most), earned in zip(points.items(), marks, strict=True)
    )
    return replace(Record(student, LAB, f"digest of {student}", "v", verdicts), **change)


@pytest.fixture
def class_records():
    slow = record("bob", (1, 2, 0))
    slow = replace(slow, verdicts=tuple(replace(verdict, call_s=1.5) for verdict in slow.verdicts))
    damaged = tuple(
        Verdict(n, n, m, 0, "the file is damaged", refused=True) for n, m in (("double", 1), ("mean", 2), ("total", 3))
    )
    return [record("ada", (1, 2, 3)), slow, record("cy", (1, 0, 0)), record("dee", (0, 0, 0), verdicts=damaged)]


def test_the_figures_are_those_of_the_records(class_records, tiny):
    summary = summarise(class_records, tiny)
    assert (summary.students, summary.points, summary.mean, summary.median, summary.full) == (4, 6, 2.5, 2, 1)
    assert summary.bins == (1, 1, 0, 0, 0, 1, 0, 0, 0, 1)
    assert [(c.name, c.passed, c.tried) for c in summary.checks] == [("double", 3, 4), ("mean", 2, 4), ("total", 1, 4)]
    assert summary.checks[2].failures == (Failure("total is wrong: got …", 2),)
    assert summary.failed_outright == (("the file is damaged", ("dee",)),)
    assert summary.slowest[0] == ("bob", 4.5) and len(summary.slowest) == 3
    assert all(check.performance is None for check in summary.checks)


def test_checks_that_fail_alike_are_no_submission_that_could_not_be_judged(tiny):
    """It was judged: that all its checks say one thing, as of a function that ends without `return`, is a failure."""
    alike = tuple(Verdict(n, n, m, 0, "`y` is None") for n, m in (("double", 1), ("mean", 2), ("total", 3)))
    summary = summarise([record("eve", (0, 0, 0), verdicts=alike)], tiny)
    assert summary.failed_outright == () and summary.checks[0].failures == (Failure("`y` is None", 1),)


def test_what_no_honest_code_does_is_listed(class_records, tiny, capsys):
    suspect = PerformanceVerdict(3, True, 0.0, suspect=f"faster than can be: {NASTY}")
    ada = class_records[0]
    first, *rest = ada.verdicts
    class_records[0] = replace(ada, verdicts=(replace(first, performance=suspect), *rest))
    summary = summarise(class_records, tiny)
    assert summary.suspects == (("ada", "double", suspect.suspect),)
    html = render_summary(summary)
    assert "To be looked into" in html and "faster than can be" in html and NASTY not in html
    _print(summary)
    assert "ada: double: faster than can be" in capsys.readouterr().out
    assert "looked into" not in render_summary(summarise(class_records[1:], tiny))


def test_without_names_no_id_is_left(class_records, tiny):
    summary = summarise(class_records, tiny, names=False)
    told = json.dumps([summary.slowest, render_summary(summary)])
    assert not any(re.search(rf"\b{student}\b", told) for student in ("ada", "bob", "cy", "dee"))
    assert "student 1" in told


@pytest.mark.parametrize(
    ("said", "counted_as"),
    [
        (("wrong value", "-17.25", "1,066.5"), "wrong value: got …, expected …"),
        (
            ("not written yet: Task 1: double, `double` (cell 6, line 36)", "", ""),
            "not written yet: Task 1: double, `double`",
        ),
        (("01-tiny.ipynb: cell 3, line 9: `1 / 0` stops", "", ""), "01-tiny.ipynb: cell …, line …: `1 / …` stops"),
        (("got", "float32 of shape (360, 10)", ""), "got: got float32 of shape (…, …)"),
    ],
)
def test_like_reasons_count_as_one(said, counted_as):
    assert generalise_reason(Verdict("c", "c", 1, 0, *said)) == counted_as


def test_of_a_hidden_case_the_kind_is_counted():
    assert generalise_reason(
        Verdict("c", "c", 1, 0, "a case that is not shown fails", case="no numbers", hidden=True)
    ) == ("a case that is not shown fails: no numbers")


def test_nothing_of_a_submission_is_live_in_the_page(tiny):
    bad = [record(NASTY, (1, 0, 0)), record("cy", (0, 0, 0))]
    verdicts = tuple(
        Verdict(n, NASTY, m, 0, NASTY, NASTY, NASTY) for n, m in (("double", 1), ("mean", 2), ("total", 3))
    )
    html = render_summary(summarise([*bad, record("eve", (0, 0, 0), verdicts=verdicts)], tiny))
    assert "<script" not in html and "<img" not in html
    assert "default-src 'none'" in html and "http" not in html.replace("http-equiv", "")


@pytest.mark.sandbox
def test_command_page_and_json(graded, tiny_labs, tmp_path, capsys):
    command = ["--course", str(graded.root), "--labs", str(tiny_labs), "report", "tiny"]
    assert main([*command, "--to", str(tmp_path / "reports"), "--json", str(tmp_path / "s.json")]) == 0
    out = capsys.readouterr().out
    earned = [read_record(graded.record(student, LAB)).earned for student in ("ada", "bob", "cy")]
    assert out.startswith(f"{LAB}: 3 students, mean {sum(earned) / 3:.1f} of 6, median 3, 1 with full marks\n")
    assert re.search(r"^total +33 % +1 × +`y` has the wrong value", out, re.MULTILINE)
    assert "the file is damaged" in out and "ada" in out
    figures = json.loads((tmp_path / "s.json").read_text())
    assert [check["passed"] for check in figures["checks"]] == [2, 2, 1]
    assert (tmp_path / "reports" / f"{LAB}.html").is_file()
    assert main([*command, "--no-names"]) == 0
    assert "ada" not in capsys.readouterr().out


def test_a_path_that_cannot_be_written_is_one_line(graded, tiny_labs, tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    command = ["--course", str(graded.root), "--labs", str(tiny_labs), "report", "tiny", "--to", str(tmp_path / "file")]
    assert main(command) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_and_asks_for_nothing(browser, tiny, class_records, tmp_path, width, scheme):
    long = replace(class_records[2], student="x" * 100)
    (tmp_path / "report.html").write_text(render_summary(summarise([*class_records, long], tiny)))
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    look, asked, said = context.new_page(), [], []
    look.on("request", lambda request: asked.append(request.url))
    look.on("console", lambda message: said.append(message.text))
    look.goto((tmp_path / "report.html").as_uri())
    settle(look)
    assert look.evaluate("document.documentElement.scrollWidth") == width
    assert look.locator("svg[role=img] rect").count() == 10
    dark = look.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
    assert dark == (scheme == "dark")
    assert (asked, said) == ([(tmp_path / "report.html").as_uri()], [])
    context.close()
