"""What nbgrader's users have goes on working in a graded course: formgrader in a browser, manual marks, late penalties,
extra credit, exports."""

import csv
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

from book import serve
from mlsys_grader.cli import main
from mlsys_grader.course.folder import Course
from mlsys_grader.gradebook.record import read_record
from tests.ports import held_port

LAB = "01-tiny"
ROOT = Path(__file__).parents[3]
FIXTURES = Path(__file__).parents[1] / "fixtures"
NBGRADER = [sys.executable, "-W", "ignore", "-m", "nbgrader"]
SCRIPT = "<script>alert('from a submission'); window.pwned = 1</script>"
LIVE = f"""{SCRIPT}

<img src=x onerror="alert(2)"> <svg onload="alert(3)"></svg> [click](javascript:alert(4))

<div id="essay-comment" class="score">shadow</div> <input class="score" id="double">

*honest* words, $a<b$"""
ESSAY = """

# %% [markdown]
# ## Task 4: in words
# Why is the mean of nothing a matter of taste?

# %% [markdown] nbgrader={"solution": true, "grade": true, "grade_id": "essay", "points": 4}
# A model answer that students do not see.
"""
LATE = """
from nbgrader.plugins import BasePlugin


class HalfAPointAnHour(BasePlugin):
    def late_submission_penalty(self, student_id, score, total_seconds_late):
        return 0.5 * total_seconds_late / 3600
"""
MARKS = {"ada": 6, "bob": 3, "cy": 0, "eve": 6}
"""Points of the checks; ada's and eve's essays come on top."""


def answered(notebook, text):
    """The submission with an answer in its manually graded cell, and a remark of its author's."""
    for cell in notebook["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("grade_id") == "essay":
            cell["source"] = text
    notebook["cells"].append({"cell_type": "markdown", "metadata": {}, "source": text, "id": "remark"})
    return json.dumps(notebook)


@pytest.fixture(scope="module")
def labs(tmp_path_factory):
    """The tiny lab with a question in words, released."""
    checkout = tmp_path_factory.mktemp("checkout")
    shutil.copytree(FIXTURES / "solutions", checkout / "solutions")
    shutil.copy(ROOT / "pyproject.toml", checkout)
    source = checkout / "solutions" / LAB / f"{LAB}.py"
    source.write_text(source.read_text() + ESSAY)
    assert main(["release", "--project", str(checkout)]) == 0
    return checkout / "labs"


@pytest.fixture(scope="module")
def command(labs, tmp_path_factory):
    """`mlsys-grader` for a course folder that is still empty."""
    return ["--course", str(tmp_path_factory.mktemp("class") / "course"), "--labs", str(labs)]


def nbgrader(course, *arguments):
    """Run nbgrader as an instructor would, in the course folder."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([*NBGRADER, *arguments], cwd=course, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def course(labs, command, hand_in, tmp_path_factory):
    """A graded class with a due date and penalties: bob is three hours late, eve hands in scripts."""
    hand_ins = tmp_path_factory.mktemp("hand-ins")
    released = json.loads((labs / LAB / f"{LAB}.ipynb").read_text())

    def submission(**tasks):
        solved = {cell["id"]: cell["source"] for cell in hand_in(**tasks)["cells"]}
        notebook = json.loads(json.dumps(released))
        for cell in notebook["cells"]:
            cell["source"] = solved.get(cell["id"], cell["source"])
        return notebook

    files = {
        "ada": answered(submission(), "The empty sum is 0, its count too."),
        "bob": json.dumps(submission(total="def total(x):\n    return x.sum()\n")),
        "cy": "{",
        "eve": answered(submission(double=f'def double(x):\n    """{SCRIPT}"""\n    return 2 * x\n'), LIVE),
    }
    for student, content in files.items():
        (hand_ins / student).mkdir()
        (hand_ins / student / f"{LAB}.ipynb").write_text(content)
        hour = "15" if student == "bob" else "11"
        (hand_ins / student / "timestamp.txt").write_text(f"2026-03-04 {hour}:00:00 UTC")
    assert main([*command, "collect", str(hand_ins), "--lab", "tiny"]) == 0
    course = Course.open(Path(command[1]))
    (course.root / "late.py").write_text(LATE)
    config = course.root / "nbgrader_config.py"
    config.write_text(
        config.read_text() + '\nget_config().AssignLatePenalties.plugin_class = "late.HalfAPointAnHour"\n'
    )
    nbgrader(course.root, "db", "assignment", "add", LAB, "--duedate=2026-03-04 12:00:00 UTC")
    assert main([*command, "grade", "tiny", "--time-factor", "3"]) == 0
    assert {s: read_record(course.record(s, LAB)).earned for s in MARKS} == MARKS
    return course


@pytest.fixture(scope="module")
def formgrader(course):
    """The address of formgrader, started by the command that grader/README.md tells."""
    token = secrets.token_urlsafe(8)
    told = [sys.executable, "-m", "jupyterlab", "--LabApp.default_url=/formgrader"]
    log = course.root.parent / "jupyter.log"
    with held_port() as port:
        options = ["--no-browser", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
        process = serve.run_jupyter([*told, *options], port, token, log, cwd=course.root)
        yield f"http://{serve.HOST}:{port}/?token={token}"
        serve.stop(process)


@pytest.fixture
def page(browser):
    """A page that stays on this machine, and all that its scripts complain of."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.complaints = []
    page.route(re.compile(r"^https?://(?!127\.0\.0\.1)"), lambda route: route.abort())
    page.on("dialog", lambda dialog: (page.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("console", lambda said: said.type == "error" and page.complaints.append(said.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    yield page
    context.close()


NO_MATHJAX = ("Failed to load resource: net::ERR_FAILED", "MathJax is not defined")
"""nbgrader's page of a submission takes MathJax from another host, which this browser does not reach."""


def open_submission(page, address, student):
    """Open a student's submission as one does: by the list of manual grading, with names shown."""
    base = address.split("/?")[0]
    page.goto(f"{base}/formgrader/gradebook/{LAB}/{LAB}")
    page.locator("tbody tr", has=page.locator("a.name-shown", has_text=student)).locator(".reveal .name-hidden").click()
    page.locator("a.name-shown", has_text=student).click()
    page.wait_for_url("**/formgrader/submissions/**")
    expect(page.locator("#double")).to_have_attribute("placeholder", "1")  # its marks have arrived


def rows(page):
    """Every row of the table that the page shows, as texts."""
    expect(page.locator("tbody tr")).to_have_count(len(MARKS))
    return [[text.strip() for text in row.locator("td").all_inner_texts()] for row in page.locator("tbody tr").all()]


pytestmark = pytest.mark.sandbox


def test_the_question_in_words_is_released_without_its_model_answer(labs):
    text = (labs / LAB / f"{LAB}.ipynb").read_text()
    cell = next(cell for cell in json.loads(text)["cells"] if cell["id"] == "essay")
    assert cell["metadata"]["nbgrader"] | {"checksum": ""} == {
        "grade": True, "solution": True, "locked": False, "task": False, "points": 4, "grade_id": "essay",
        "schema_version": 3, "cell_type": "markdown", "checksum": "",
    }  # fmt: skip
    assert "model answer" not in text


@pytest.mark.weekly
def test_the_lists_show_the_marks_of_the_records(page, formgrader):
    page.goto(formgrader)
    page.wait_for_url("**/formgrader/manage_assignments")
    expect(page.locator("tbody td.name")).to_have_text([LAB])
    expect(page.locator("tbody td.num-submissions")).to_have_text([str(len(MARKS))])
    page.goto(f"{formgrader.split('/?')[0]}/formgrader/manage_submissions/{LAB}")
    table = {row[1]: row for row in rows(page)}
    assert {student: row[4] for student, row in table.items()} == {
        "ada": "6 / 10", "bob": "3 / 10", "cy": "0 / 10", "eve": "6 / 10",
    }  # fmt: skip
    assert {student: row[3] for student, row in table.items()} == {
        "ada": "needs manual grading", "bob": "graded", "cy": "graded", "eve": "needs manual grading",
    }  # fmt: skip
    page.goto(f"{formgrader.split('/?')[0]}/formgrader/gradebook/{LAB}/{LAB}")
    assert sorted(row[3] for row in rows(page)) == ["0 / 6", "3 / 6", "6 / 6", "6 / 6"]
    assert page.complaints == []


def test_a_submission_shows_verdicts_and_nothing_of_it_is_live(page, formgrader):
    page.goto(formgrader)
    open_submission(page, formgrader, "eve")
    expect(page.locator(".text_cell_render", has_text="honest")).to_have_count(2)
    assert page.evaluate("window.pwned") is None
    shown = page.locator("#notebook").first
    for live in (
        "script",
        "svg",
        "iframe",
        "[onerror]",
        "[onload]",
        "[href^='javascript']",
        "[id='essay-comment'].score",
    ):
        assert shown.locator(live).count() == 0, live
    assert "script>alert('from a submission')" in shown.inner_text()
    assert shown.locator("input.score").count() == 4  # three checks and the essay
    assert [text for text in page.complaints if text not in NO_MATHJAX] == []
    page.goto(formgrader)
    open_submission(page, formgrader, "bob")
    expect(page.locator("#total")).to_have_attribute("placeholder", "0")
    expect(page.locator("#mean")).to_have_attribute("placeholder", "2")
    expect(page.locator("#notebook").first).to_contain_text("case: many numbers")
    expect(page.locator("#notebook").first).to_contain_text("add as you go")


@pytest.mark.weekly
def test_points_and_comments_typed_in_the_browser_outlive_a_new_grading(page, formgrader, course, command):
    page.goto(formgrader)
    open_submission(page, formgrader, "ada")
    for field, text in (("#essay", "3.5"), ("#essay-comment", "Well put."), ("#double_extra_credit", "0.5")):
        with page.expect_response(lambda answer: answer.request.method == "PUT") as saved:
            page.locator(field).fill(text)
            page.locator(field).press("Tab")
        assert saved.value.ok
    for again in ([], ["--again", "--student", "ada"]):
        assert main([*command, "grade", "tiny", "--time-factor", "3", *again]) == 0
        page.goto(formgrader)
        open_submission(page, formgrader, "ada")
        expect(page.locator("#essay")).to_have_value("3.5")
        expect(page.locator("#essay-comment")).to_have_value("Well put.")
        expect(page.locator("#double_extra_credit")).to_have_value("0.5")
        page.goto(f"{formgrader.split('/?')[0]}/formgrader/manage_submissions/{LAB}")
        assert {row[1]: row[4] for row in rows(page)}["ada"] == "10 / 10"


@pytest.mark.weekly
def test_the_students_page_has_what_was_typed(course, command, labs):
    assert main([*command, "feedback", "tiny"]) == 0
    page = course.feedback("ada", LAB).read_text()
    assert "Well put." in page and "3.5 of 4" in page and "10 of 10 points" in page
    late = course.feedback("bob", LAB).read_text()
    assert "handed in late: 1.5 points less" in late and "1.5 of 10 points" in late


@pytest.mark.weekly
def test_exports_have_penalties_extra_credit_and_totals(course):
    nbgrader(course.root, "export", "--to", "grades.csv")
    with (course.root / "grades.csv").open() as file:
        table = {row["student_id"]: row for row in csv.DictReader(file)}
    assert {student: float(row["score"]) for student, row in table.items()} == {
        "ada": 10, "bob": 1.5, "cy": 0, "eve": 6,
    }  # fmt: skip
    assert table["bob"]["late_submission_penalty"] == "1.5"
    assert table["bob"]["timestamp"] == "2026-03-04 15:00:00"
    assert {row["max_score"] for row in table.values()} == {"10.0"}


@pytest.mark.weekly
def test_a_due_date_that_moves_is_taken_up_without_judging_anew(course):
    judged = {student: course.record(student, LAB).read_bytes() for student in MARKS}
    nbgrader(course.root, "db", "assignment", "add", LAB, "--duedate=2026-03-04 14:00:00 UTC")
    nbgrader(course.root, "autograde", LAB, "--force")
    nbgrader(course.root, "export", "--to", "moved.csv")
    with (course.root / "moved.csv").open() as file:
        table = {row["student_id"]: row for row in csv.DictReader(file)}
    assert {student: float(row["score"]) for student, row in table.items()} == {
        "ada": 10, "bob": 2.5, "cy": 0, "eve": 6,
    }  # fmt: skip
    assert {student: course.record(student, LAB).read_bytes() for student in MARKS} == judged


def test_nbgraders_own_feedback_is_as_inert(course, page):
    nbgrader(course.root, "generate_feedback", LAB, "--student", "eve", "--CourseDirectory.feedback_directory=stock")
    page.goto((course.root / "stock" / "eve" / LAB / f"{LAB}.html").as_uri())
    expect(page.get_by_text("honest").first).to_be_visible()
    assert page.evaluate("window.pwned") is None
    assert [text for text in page.complaints if "dialog" in text] == []
