"""A lab that `mlsys-grader new-lab` writes releases, proves, is on the site, and its tests say what is still due."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mlsys_grader.cli import main
from mlsys_grader.release.scaffold import add_entry, plan_lab

PROJECT = Path(__file__).parents[3]
TOPIC, NAME, TITLE = "paged-hello", "17-paged-hello", 'Hello: a "first" <lab>'
FOLDERS = ("mlsys_lab", "grader", "book", "tests/labs", "solutions/01-autograd", "labs/01-autograd")
FILES = ("pyproject.toml", "README.md", "tests/conftest.py", "tests/times.py")
SITE = """
import sys
sys.path.insert(0, "book/_ext")
import contents, front_page, readings, readings_map
from book import lab_pages
from book.project import BOOK, LABS
lab_pages.stage(LABS, BOOK / "labs")
syllabus = readings.load_syllabus()
print(*(page["file"] for part in contents.contents(syllabus)["parts"] for page in part["chapters"]))
print(readings_map.syllabus_map(readings.load(), syllabus, lambda page: f"{page}.html"))
print(front_page.rendered("routes"))
"""
NEW_LAB = """
import sys
from mlsys_grader.cli import main
sys.exit(main(["new-lab", *sys.argv[1:]]) or main(["release"]) or main(["release", "--check"]))
"""
PROVE = "import sys; from mlsys_grader.cli import main; sys.exit(main(['prove', *sys.argv[1:]]))"
Ran = Callable[..., subprocess.CompletedProcess[str]]


def copy_checkout(target: Path) -> Path:
    """A checkout of the course with one lab, in a folder that may be changed."""
    skip = shutil.ignore_patterns("__pycache__", "_build", "screenshots")
    for folder in FOLDERS:
        shutil.copytree(PROJECT / folder, target / folder, ignore=skip)
    for file in FILES:
        shutil.copy(PROJECT / file, target / file)
    return target


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def ran(checkout: Path) -> Ran:
    """Runs Python in the checkout, on the code that lies there; the new lab has been written and released."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": f"{checkout}{os.pathsep}{checkout / 'grader'}"}
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=800, check=False
        )

    done = run("-c", NEW_LAB, TOPIC, "--title", TITLE)
    assert done.returncode == 0, done.stderr
    return run


def test_it_is_released_and_the_readme_and_the_changelog_have_it(ran: Ran, checkout: Path) -> None:
    assert (checkout / "labs" / NAME / f"{NAME}.ipynb").is_file()
    assert f"]({Path('labs', NAME, NAME)}.ipynb)" in (checkout / "README.md").read_text(encoding="utf-8")
    assert f"- Lab 17, {TITLE}." in (checkout / "book" / "changelog.md").read_text(encoding="utf-8").splitlines()


@pytest.mark.sandbox
def test_its_checks_are_proved(ran: Ran) -> None:
    proved = ran("-c", PROVE, TOPIC)
    assert proved.returncode == 0, proved.stdout
    assert "0 false passes, 0 false fails" in proved.stdout
    assert "1 reference, 1 blank, 1 alternative, 1 mutant, 1 mishap" in proved.stdout


def test_it_is_on_the_site(ran: Ran) -> None:
    site = ran("-c", SITE)
    assert site.returncode == 0, site.stderr
    contents, _, rest = site.stdout.partition("\n")
    last_chapter = sorted(path.stem for path in (PROJECT / "book" / "chapters").glob("*.md"))[-1]
    assert f"chapters/{last_chapter} labs/{NAME}" in contents
    syllabus, _, front = rest.partition("front-routes")
    assert f'<a href="labs/{NAME}.html">17. Hello: a &quot;first&quot; &lt;lab&gt;</a>' in syllabus
    assert f'<a href="labs/{NAME}.html">Lab 17: Hello,' in front


def test_its_files_are_in_the_style_of_the_others(ran: Ran, checkout: Path) -> None:
    files = [str(path) for path in checkout.rglob("*.py") if not (PROJECT / path.relative_to(checkout)).exists()]
    assert len(files) == 5
    for arguments in (["check"], ["format", "--check"]):
        done = ran("-m", "ruff", *arguments, *files)
        assert done.returncode == 0, done.stdout


@pytest.mark.weekly
def test_its_tests_name_what_is_still_due_and_nothing_else_fails(ran: Ran) -> None:
    files = [f"tests/labs/test_{name}.py" for name in ("sources", "snippets", "hints")]
    tests = ran("-m", "pytest", "-q", "-p", "no:cacheprovider", *files, "-k", TOPIC)
    due = sorted(re.findall(r"^E +AssertionError: (.*)$", tests.stdout, re.MULTILINE))
    assert due == [
        f"{TOPIC}: 1 of at least 12 mutants",
        f"{TOPIC}: 1 of at least 3 alternatives",
        f"{TOPIC}: 1 of at least 4 tasks",
        f"{TOPIC}: 1 of at least 6 mishaps",
        f"{TOPIC}: 3 of at least 11 expressions to hold hints against",
        f"{TOPIC}: no task asks to predict a number and then to measure it",
    ]
    assert f"{len(due)} failed" in tests.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["Paged"], "not a name for a topic: got 'Paged', expected lower-case words as in paged-cache"),
        (["../x"], "not a name for a topic: got '../x'"),
        (["lambda"], "not a name for a topic: got 'lambda'"),
        (["autograd"], "there is a lab of this topic: got 01-autograd; help: edit it, or choose another topic"),
        (["new", "--title", "two\nlines"], "not a title: got 'two\\nlines', expected one line of text"),
        (["new", "--chapter", "serving"], "not a chapter: got serving, expected NN-topic, as in 06-triton"),
    ],
)
def test_what_cannot_be_written_is_told_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted((PROJECT / "solutions").iterdir())
    assert main(["new-lab", *arguments, "--project", str(PROJECT)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mlsys-grader: {said}")
    assert sorted((PROJECT / "solutions").iterdir()) == before


def test_a_lab_that_the_syllabus_plans_takes_its_number_and_chapter(tmp_path: Path) -> None:
    """In a checkout in which no lab is written yet."""
    (tmp_path / "book").symlink_to(PROJECT / "book")
    for empty in ("solutions", "grader/mlsys_checks", "tests/labs"):
        (tmp_path / empty).mkdir(parents=True)
    lab = plan_lab(tmp_path, "diffusion")
    assert (lab.number, lab.chapter) == (12, "14-diffusion")
    assert plan_lab(tmp_path, "diffusion", chapter="13-serving").chapter == "13-serving"
    assert plan_lab(tmp_path, "ring-buffer").number == 17


def test_a_folder_that_is_no_checkout_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-lab", "hello", "--project", str(tmp_path)]) == 1
    said = f"mlsys-grader: no checkout of the course: got {tmp_path} without solutions; help: --project DIR\n"
    assert capsys.readouterr().err == said


def test_a_line_of_the_changelog_stands_behind_the_newest_editions_last_lab() -> None:
    old = "# C\n\n## 2\n\n- Chapters\n- Lab 1, a.\n- Rest\n\n## 1\n\n- Lab 0, z.\n"
    assert add_entry(old, "- Lab 2, b.").splitlines()[4:8] == ["- Chapters", "- Lab 1, a.", "- Lab 2, b.", "- Rest"]
    assert add_entry("## 2\n\n- Rest\n", "- Lab 2, b.") == "## 2\n\n- Lab 2, b.\n- Rest\n"
