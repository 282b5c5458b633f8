import pytest

from mlsys_lab.errors import CourseError, InputError, did_you_mean


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({}, "no such lab"),
        ({"got": 0}, "no such lab: got 0"),
        ({"expected": "a name"}, "no such lab: expected a name"),
        ({"got": "x", "help": "mlsys-lab list"}, "no such lab: got x; help: mlsys-lab list"),
    ],
)
def test_a_message_is_one_line_with_what_is_known(arguments, text):
    error = InputError("no such lab", **arguments)
    assert str(error) == text
    assert isinstance(error, CourseError)


def test_a_notebook_shows_the_line_alone():
    assert InputError("no such lab")._render_traceback_() == ["InputError: no such lab"]


def test_nothing_is_suggested_for_a_name_that_is_like_no_other():
    assert did_you_mean("zzz", ["autograd"]) == ""
