"""Logs of what a learner's code did step by step: held against a form first, then replayed by a check's rules.

A log crosses as JSON (`mlsys_checks.sandboxed.values.encode_value`) in the array `log`, and so do the inputs that it
is replayed from, in the array `case`. A replay never takes a number of the log on trust that the form does not bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlsys_checks.sandboxed.spec import Arrays, Check, Mismatch
from mlsys_checks.sandboxed.values import decode_value

SHOWN = 80
"""Characters of a value that a message shows."""


class BrokenRuleError(Exception):
    """A log breaks its form or a rule: a mismatch."""

    def __init__(self, what: str, got: object = "", expected: object = "") -> None:
        super().__init__(what)
        self.mismatch = Mismatch(what, str(got), str(expected))


def require_equal(what: str, got: object, expected: object) -> None:
    """Raise BrokenRuleError, which says `what` is wrong, unless two values are equal."""
    if got != expected:
        raise BrokenRuleError(what, got, expected)


def require_form(value: Any, form: Any, name: str = "log") -> None:
    """Raise BrokenRuleError unless a value of JSON has a form.

    A form is a range of whole numbers; a type of JSON, or None; a list with one form, which all entries of any number
    have; a tuple with the form of each entry; a dictionary with the form of each value; a set of forms, one of which
    the value has.
    """
    if isinstance(form, set):
        if not any(_fits(value, one) for one in form):
            raise BrokenRuleError(f"`{name}` has the wrong form", _shown(value), " or ".join(map(_shown, form)))
    elif isinstance(form, list) and isinstance(value, list):
        for one in value:
            require_form(one, form[0], name)
    elif isinstance(form, tuple) and isinstance(value, list) and len(value) == len(form):
        for one, wanted in zip(value, form, strict=True):
            require_form(one, wanted, name)
    elif isinstance(form, dict) and isinstance(value, dict) and value.keys() == form.keys():
        for key, wanted in form.items():
            require_form(value[key], wanted, key)
    elif isinstance(form, list | tuple | dict) or not _fits(value, form):
        raise BrokenRuleError(f"`{name}` has the wrong form", _shown(value), _shown(form))


def _fits(value: Any, form: Any) -> bool:
    """Whether a number, a truth value, a text or None is what a form without parts asks for."""
    if isinstance(form, range):
        return type(value) is int and value in form
    return value is None if form is None else type(value) is form


def _shown(value: Any) -> str:
    if isinstance(value, range):
        return f"{value.start} to {value.stop - 1}"
    return (value.__name__ if isinstance(value, type) else repr(value))[:SHOWN]


def check_log(replay: Callable[[Any, Any], object], **parts: Any) -> Check:
    """A check whose answer is a log. `replay(log, case)` raises BrokenRuleError where the log breaks a rule."""

    def compare(got: Arrays, expected: Arrays) -> Mismatch | None:
        try:
            log = decode_value(got["log"])
        except (KeyError, ValueError, RecursionError):
            return Mismatch("the log cannot be read")
        try:
            replay(log, decode_value(expected["case"]))
        except BrokenRuleError as broken:
            return broken.mismatch
        return None

    return Check(expect=_give_case, compare=compare, **parts)


def _give_case(arrays: Arrays) -> Arrays:
    """What a log is replayed from: the inputs."""
    return arrays
