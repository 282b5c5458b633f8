"""Whatever reads a student's text takes time in proportion to its length, also where the text was made for it."""

import time
from pathlib import PurePosixPath

import pytest

from mlsys_checks.trusted.artifact import Notebook
from mlsys_grader.course.folder import parse_stamp
from mlsys_grader.course.tables import format_csv
from mlsys_grader.intake.escaping import defuse_markdown
from mlsys_grader.intake.found import mentions_lab
from mlsys_grader.intake.platforms import identify_student
from mlsys_grader.intake.roster import explain_unclear
from mlsys_lab.stack.artifact import Artifact, Cell
from mlsys_lab.stack.commands import is_exported
from mlsys_lab.stack.names import guess_names


def find_topics(text):
    return Notebook("n.ipynb", (Cell(1, text),)).topics


def identify(text):
    return identify_student(PurePosixPath(text), "01-tiny")


def compare_names(text):
    return explain_unclear(text, "ada", "ada")


def look_for_lab(text):
    return mentions_lab("01-tiny", text.encode)


def write_table(text):
    return format_csv([["ada", text]])


def write_module(text):
    return Artifact("n.ipynb", (Cell(1, text),)).source


CASES = [
    (guess_names, "import ", "a", "("),
    (guess_names, "import ", "a ", "("),
    (guess_names, "from ", " ", ""),
    (guess_names, "from ", "a ", ""),
    (guess_names, "", "a = ", ""),
    (guess_names, "a:", "b", "=="),
    (guess_names, "", "async ", "def"),
    (is_exported, "", "#", ""),
    (is_exported, "# ", " ", "x"),
    (is_exported, "# |", " ", "x"),
    (find_topics, "lab(", "\n", ""),
    (find_topics, "", "lab('", ""),
    (find_topics, "lab('", "a", ""),
    (find_topics, "", "lab(\n", ""),
    (look_for_lab, "", "lab( ", ""),
    (look_for_lab, "lab(", " ", ""),
    (write_module, "# %% cell ", "1", "x"),
    (compare_names, "a", " ", "b"),
    (compare_names, "a", " - ", "b"),
    (compare_names, "a", "-v1", "x"),
    (compare_names, "a", "(1", ""),
    (compare_names, "", "ae", ""),
    (identify, "", "_1", ""),
    (identify, "1-1 - ", " - 1", ""),
    (identify, "1-1 - a - ", "a 1 2026 ", ""),
    (identify, "1-1 - a - ", "jan ", "1 2026 100"),
    (identify, "", "(a", ""),
    (identify, "a(a)/Submission attachment(s)/", "a/", "\n"),
    (identify, "a", "_attempt_", ""),
    (identify, "a", "_1_assignsubmission_", ""),
    (identify, "copy of", " ", ""),
    (parse_stamp, "", " ", "x"),
    (defuse_markdown, "", "! ", ""),
    (defuse_markdown, "!", " ", ""),
    (defuse_markdown, "data", " ", ""),
    (defuse_markdown, "", "\\html", ""),
    (write_table, "", "'", ""),
    (write_table, "", "⟨U+", ""),
]


@pytest.mark.parametrize(
    ("read", "begin", "middle", "end"), [pytest.param(*case, id=f"{case[0].__name__}-{case[2]!r}") for case in CASES]
)
def test_eight_times_the_text_takes_no_more_than_a_few_times_eight_times_the_time(read, begin, middle, end):
    """With the square of the length it would be 64 times."""

    def time_s(size, turns):
        text = begin + middle * (size // len(middle)) + end
        times = []
        for _ in range(turns):
            started = time.process_time()
            read(text)
            times.append(time.process_time() - started)
        return min(times)

    assert time_s(1 << 17, turns=2) < 32 * max(time_s(1 << 14, turns=5), 1e-4)
