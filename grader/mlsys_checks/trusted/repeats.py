"""Repeat a case with other numbers: a solution that keeps results from an earlier call then fails."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mlsys_checks.sandboxed.spec import Case, Check


def repeat_first_case(checks: Iterable[Check]) -> tuple[Check, ...]:
    """Add to each check its first case once more, after the public cases and with other numbers drawn.

    Sizes are the same, so that neither results cached by shape nor sums carried over between calls pass. Traced kernels
    can keep nothing, so their checks are unchanged.
    """
    return tuple(check if check.traced else replace(check, cases=_with_first_again(check.cases)) for check in checks)


def _with_first_again(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    public = tuple(case for case in cases if not case.hidden)
    again = replace(cases[0], name=f"{cases[0].name}, once more with other numbers")  # the name is part of the seed
    return (*public, again, *cases[len(public) :])
