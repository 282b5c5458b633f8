import pytest

from mlsys_grader.release.leaks import find_leak

SOLVED = "def f(x):\n    ### BEGIN SOLUTION\n    doubled = 2 * x\n    return doubled + 1\n    ### END SOLUTION\n"
ONE_LINE = "def f(x):\n    ### BEGIN SOLUTION\n    return 3 * layers * batch * width\n    ### END SOLUTION\n"


@pytest.mark.parametrize(
    "released",
    [
        "```python\ndoubled = 2 * x\nreturn doubled + 1\n```",
        "  doubled = 2 * x\n\n      # as said\n  return doubled + 1\n",
        "### BEGIN SOLUTION",
        "### BEGIN HIDDEN TESTS",
    ],
)
def test_what_gives_a_solution_away_is_found(released):
    assert find_leak([SOLVED], [released], released)


def test_a_solution_of_one_line_is_found():
    text = "Hint:\nreturn 3 * layers * batch * width\n"
    assert find_leak([ONE_LINE], [text], text) == "return 3 * layers * batch * width"


def test_lines_that_any_code_may_hold_are_no_leak():
    assert find_leak([SOLVED], ["doubled = 2 * x\nprint(doubled)"], "") is None
