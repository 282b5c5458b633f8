"""Ask a learner's function more than once: what it keeps from one call to the next shows in the answer that counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from mlsys_lab.errors import InputError


def ask_before(function: Callable[..., Any], args: Sequence[Any], others: Sequence[Any]) -> None:
    """Ask a function for what differs from `args` in one argument, that of `others`, each in turn.

    The answers are left aside: who keeps them by too few of the arguments gives one of them when asked for `args`.
    """
    for i, other in enumerate(others):
        with suppress(Exception):
            function(*args[:i], other, *args[i + 1 :])


def ask_twice(name: str, call: Callable[[], Any]) -> Any:
    """What a call gives, asked twice: lists and dictionaries of the first answer may not come back in the second."""
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
    """Yield the lists and dictionaries of an answer, at any depth."""
    if isinstance(answer, list | dict):
        yield answer
    if isinstance(answer, list | tuple | dict):
        for one in answer.values() if isinstance(answer, dict) else answer:
            yield from _mutable(one)
