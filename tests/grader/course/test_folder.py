import pytest

from mlsys_grader.course.folder import Course, check_student
from mlsys_lab.errors import InputError


def test_a_course_is_made_once_and_its_configuration_stays_the_instructors(tmp_path):
    course = Course.open(tmp_path / "new" / "course", create=True)
    assert sorted(path.name for path in course.root.iterdir()) == ["nbgrader_config.py", "submitted"]
    config = course.root / "nbgrader_config.py"
    compile(config.read_text(), config.name, "exec")
    config.write_text("# mine")
    assert Course.open(course.root) == Course.open(course.root, create=True) == course
    assert config.read_text() == "# mine"


@pytest.mark.parametrize("student", ["ada", "a.b-c_d@example.org", "0", "x" * 100])
def test_ids_that_a_folder_and_a_gradebook_can_have(student):
    assert check_student(student) == student


@pytest.mark.parametrize("student", ["", ".", "..", ".hidden", "-rf", "a b", "a/b", "a\n", "ł", "x" * 101])
def test_ids_that_they_cannot(student):
    with pytest.raises(InputError, match="not a student id"):
        check_student(student)


def test_a_folder_that_is_no_id_is_named_with_what_to_do(tmp_path):
    course = Course.open(tmp_path, create=True)
    (course.root / "submitted" / "Jane Doe" / "01-tiny").mkdir(parents=True)
    with pytest.raises(InputError, match=r"got 'Jane Doe', .*help: rename the folder below submitted/"):
        course.students("01-tiny")
    assert course.students("02-other") == []
