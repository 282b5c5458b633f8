"""Ask for a case twice: what a solution keeps from one call to the next shows where a later call has other numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mlsys_checks.sandboxed.spec import Case, Check


def ask_again(checks: Iterable[Check]) -> tuple[Check, ...]:
    """The checks, each of which asks its first case once more after the public ones, with other numbers drawn.

    Sizes are as before, so that results kept by shape do not pass, and neither does what adds up over calls. Traced
    kernels, which can keep nothing, are left as they are.
    """
    return tuple(check if check.traced else replace(check, cases=_with_first_again(check.cases)) for check in checks)


def _with_first_again(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    public = tuple(case for case in cases if not case.hidden)
    again = replace(cases[0], name=f"{cases[0].name}, once more with other numbers")  # the name is part of the seed
    return (*public, again, *cases[len(public) :])
