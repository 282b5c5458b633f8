"""A class hands in lab 01; each mark is known beforehand, and each lost point has its reason.

Every run has a sample of the class. What hands in once a week is tried on a smaller lab in `judging/`, or
is in the manual's class.
"""

import pytest

from mlsys_grader.cli import main as grader
from mlsys_grader.course.folder import Course
from mlsys_grader.gradebook.record import read_record
from tests.grader import classroom
from tests.sampling import keep

pytestmark = pytest.mark.sandbox
CLASS = {student.name: student for student in classroom.CLASS}
ALWAYS = (
    *("blank", "renamed-cells", "corrupt", "duplicate-ids", "julia", "twenty-megabytes", "nothing", "forged-outputs"),
    *("edited-checks", "another-course", "not-a-notebook", "copies-reference", "holds-all"),
)


@pytest.fixture(scope="module")
def students(request):
    """Who hands in: all once a week."""
    return [*CLASS] if request.config.getoption("weekly") else [*ALWAYS]


@pytest.fixture(scope="module")
def graded(students, tmp_path_factory):
    """The exit codes of `collect` and `grade`, and the course folder they filled."""
    home = tmp_path_factory.mktemp("class")
    labs = home / "labs"
    classroom.released().write(labs)
    classroom.write(home / "hand-ins", students)
    command = ["--course", str(home / "course"), "--labs", str(labs)]
    codes = [
        grader([*command, "collect", str(home / "hand-ins"), "--lab", classroom.TOPIC]),
        grader([*command, "grade", classroom.TOPIC, "--time-factor", "0.5"]),
    ]
    return codes, Course.open(home / "course")


def test_no_submission_stops_the_batch(graded, students):
    codes, course = graded
    assert codes == [0, 0]
    assert course.students(classroom.LAB) == sorted(students)
    assert len(CLASS) >= 30


@pytest.mark.parametrize("name", keep([*CLASS], ALWAYS))
def test_marks_are_exact_and_each_lost_point_has_its_reason(graded, name):
    _, course = graded
    student = CLASS[name]
    record = read_record(course.record(student.name, classroom.LAB))
    expected = {verdict.check for verdict in record.verdicts} if student.lost == classroom.ALL else student.lost
    lost = {verdict.check: verdict.reason for verdict in record.verdicts if not verdict.passed}
    assert set(lost) == set(expected)
    assert record.earned == 100 - sum(verdict.points for verdict in record.verdicts if verdict.check in expected)
    assert all(lost.values())
    assert all(student.reason in reason for reason in lost.values()), lost
    page = course.feedback(student.name, classroom.LAB).read_text()
    assert f"{record.earned:g} of 100 points" in page
