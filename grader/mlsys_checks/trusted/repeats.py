"""Repeat a case with other numbers, so that results kept from an earlier call fail."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mlsys_checks.sandboxed.spec import Case, Check


def repeat_first_case(checks: Iterable[Check]) -> tuple[Check, ...]:
    """Repeat each check's first case after its public cases, with other numbers.

    Sizes are the same, so neither results cached by shape nor sums carried over between calls pass. Traced kernels keep
    nothing, so their checks are unchanged.
    """
    return tuple(check if check.traced else replace(check, cases=_with_first_again(check.cases)) for check in checks)


def _with_first_again(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    public = tuple(case for case in cases if not case.hidden)
    again = replace(cases[0], name=f"{cases[0].name}, once more with other numbers")  # the name enters the seed
    return (*public, again, *cases[len(public) :])
