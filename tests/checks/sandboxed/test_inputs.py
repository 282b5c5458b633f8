"""What was given to a learner's code is held against what it was before."""

from __future__ import annotations

import pytest

from mlsys_checks.sandboxed.inputs import unchanged
from mlsys_lab.errors import InputError


def test_a_list_that_was_sorted_where_it_lay_is_noticed() -> None:
    machines = [3, 1, 2]
    refused = pytest.raises(InputError, match=r"^your code changes its input `machines`: got \[1, 2, 3\]")
    with refused, unchanged(machines=machines):
        machines.sort()


def test_what_is_as_it_was_passes() -> None:
    rates = {(1, 2, 3): 4.0}
    with unchanged(rates=rates):
        rates[1, 2, 3] = 4.0
