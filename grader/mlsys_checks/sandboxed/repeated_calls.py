"""Call a learner's function more than once, so that state kept between calls shows in the graded answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from mlsys_lab.errors import InputError


def call_before(function: Callable[..., Any], args: Sequence[Any], others: Sequence[Any]) -> None:
    """Call a function with one argument replaced by each of `others` in turn.

    The answers are dropped: a function that caches by too few arguments returns one of them for `args`.
    """
    for i, other in enumerate(others):
        with suppress(Exception):
            function(*args[:i], other, *args[i + 1 :])


def call_twice(name: str, call: Callable[[], Any]) -> Any:
    """The second answer of a repeated call; `InputError` if it shares a list or dictionary with the first."""
    before, after = call(), call()
    given = {id(one) for one in _mutable(before)}
    if any(id(one) in given for one in _mutable(after)):
        raise InputError(
            f"{name} gives back what an earlier call gave, and who changes one changes both",
            got="one object for two calls",
            expected="a new one for each call",
        )
    return after


def _mutable(answer: Any) -> Iterator[list[Any] | dict[Any, Any]]:
    """Yield the lists and dictionaries in an answer, at any depth."""
    if isinstance(answer, list | dict):
        yield answer
    if isinstance(answer, list | tuple | dict):
        for one in answer.values() if isinstance(answer, dict) else answer:
            yield from _mutable(one)
