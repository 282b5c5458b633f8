"""Of many cases of one proof, a sample for every run and the rest for the weekly one (`make weekly`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest


def sample(cases: Sequence[Any], every: int) -> list[Any]:
    """All cases for `parametrize`: the first and each `every`-th after it run always, the others once a week."""
    return keep(cases, cases[::every])


def keep(cases: Sequence[Any], always: Collection[Any]) -> list[Any]:
    """All cases for `parametrize`: those in `always` run always, the others once a week."""
    assert all(case in cases for case in always), "a case to run always is none of the cases"
    return [case if case in always else pytest.param(case, marks=pytest.mark.weekly) for case in cases]
