"""What a learner's function keeps from one call to the next is found where it is asked more than once."""

from __future__ import annotations

import pytest

from mlsys_checks.sandboxed.repeated_calls import call_before, call_twice
from mlsys_lab.errors import InputError

KEPT = [1, 2]


@pytest.mark.parametrize("answer", [KEPT, ("name", KEPT), [KEPT], {"a list": KEPT}], ids=str)
def test_a_list_that_comes_again_is_refused_at_any_depth(answer: object) -> None:
    with pytest.raises(InputError, match=r"^f gives back what an earlier call gave"):
        call_twice("f", lambda: answer)


def test_lists_of_their_own_and_the_same_numbers_pass() -> None:
    assert call_twice("f", lambda: [list(KEPT), (1, "a")]) == [KEPT, (1, "a")]


def test_each_argument_in_turn_is_another_first() -> None:
    asked = []

    def function(*args: int) -> None:
        asked.append(args)
        raise ValueError

    call_before(function, (1, 2, 3), (10, 20))
    assert asked == [(10, 2, 3), (1, 20, 3)]
