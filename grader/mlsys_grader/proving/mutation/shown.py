"""What learners see their functions do in public cases: what a solution may know that was made for these cases alone.

Public cases are run with the text itself, in which every loop and every function tells what it is given.
"""

from __future__ import annotations

import ast
import builtins
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from mlsys_checks.runner import PUBLIC_SEED
from mlsys_checks.sandboxed.attempt import attempt
from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.trusted.artifact import Artifact
from mlsys_checks.trusted.verdict import bind_call, draw_inputs, public_inputs
from mlsys_grader.proving.in_process import load_for_check
from mlsys_grader.proving.mutation.code import Code

MOST_VALUES = 8
"""Values of an argument that are kept: one that has more is a draw, which nobody writes down."""
MOST_ROUNDS = 16
"""Rounds of a loop that are kept, if there are never more: whoever limits a loop writes a small number."""
MOST_CALLS = 64
"""Calls of a function that are kept, if there are no more."""
TELL_ROUNDS, TELL_CALLS = "__tell_rounds__", "__tell_calls__"
"""Names that the text knows functions of this module by."""
DIGEST = '__import__("zlib").crc32(repr((given, named)).encode())'
"""What a call is known by."""

Values = Mapping[tuple[str, str], tuple[object, ...]]
"""Values of an argument, in the order in which they came, by the name of its function and its own."""
Place = tuple[int, int, int, int]
"""Where an expression stands: line and column (in bytes) of its beginning and of its end."""


@dataclass(frozen=True)
class Shown:
    """What public cases show: values of each function's arguments that are numbers, flags, words or None, by the names
    of both; the most rounds of each loop, by the place of what it goes through; digests of the calls of each function.
    """

    values: Values = field(default_factory=dict)
    rounds: Mapping[Place, int] = field(default_factory=dict)
    calls: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def find_shown(code: Code, lab: Lab, values: Values | None = None) -> Shown:
    """Run the public cases of a lab with a text that passes them, and note what it shows.

    values: those of arguments, where they are known from another text; else they are looked for, which takes long.
    """
    watched: dict[tuple[str, str], dict[str, object]] = {}
    rounds: Counter[Place] = Counter()
    calls: dict[str, dict[int, None]] = {}
    artifact = Artifact.parse("shown", _tell_of(code))
    with _listen(rounds, calls):
        for check in lab.checks:
            module = load_for_check(check, artifact)
            for case in (case for case in check.cases if not case.hidden):
                # One program of a launch gets what all get, and an interpreter that is watched is slow.
                enough = check.uses if check.traced else ()
                with _watch_arguments(artifact, watched, enough) if values is None else nullcontext():
                    inputs = draw_inputs(check, case, PUBLIC_SEED)
                    attempt(bind_call(check, inputs), module, public_inputs(inputs))
    if values is None:
        values = {name: tuple(found.values()) for name, found in watched.items() if len(found) <= MOST_VALUES}
    return Shown(
        values,
        {place: most for place, most in rounds.items() if most <= MOST_ROUNDS},
        {name: tuple(found) for name, found in calls.items() if len(found) <= MOST_CALLS},
    )


def find_loops(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """What the loops of a function go through, those of comprehensions too."""
    for node in ast.walk(function):
        if isinstance(node, ast.For | ast.comprehension):
            yield node.iter


def place_of(node: ast.expr) -> Place:
    """Where an expression stands in its text."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _tell_of(code: Code) -> str:
    """The text with a call around what each loop goes through, and a decorator on each function, kernels left out."""
    lines = [line.encode() for line in code.text.split("\n")]
    added: list[tuple[int, int, str]] = []
    for function in (one for one in code.functions if not one.is_kernel):
        for node in filter(code.is_own, find_loops(function.node)):
            place = place_of(node)
            added += [(*place[:2], f"{TELL_ROUNDS}({place}, ("), (*place[2:], "))")]
        if "." not in function.name:
            first = function.node
            added.append((first.lineno, first.col_offset, f"@{TELL_CALLS}({function.name!r})\n"))
    for number, column, text in sorted(added, key=lambda one: one[:2], reverse=True):
        line = lines[number - 1]
        lines[number - 1] = line[:column] + text.encode() + line[column:]
    return b"\n".join(lines).decode()


@contextmanager
def _listen(rounds: Counter[Place], calls: dict[str, dict[int, None]]) -> Iterator[None]:
    """Give texts what they tell rounds and calls with."""

    def tell_rounds(place: Place, values: Iterable[Any]) -> Iterator[Any]:
        """Hand on what a loop goes through, counted."""
        for number, value in enumerate(values, start=1):
            rounds[place] = max(rounds[place], number)
            yield value

    def tell_calls(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A decorator: note what a function is called with."""

        def tell(function: Callable[..., Any]) -> Callable[..., Any]:
            """The function, which notes each of its calls."""

            def called(*given: Any, **named: Any) -> Any:
                """Note the call, and answer it."""
                known = calls.setdefault(name, {})
                if len(known) <= MOST_CALLS:
                    known[zlib.crc32(repr((given, named)).encode())] = None
                return function(*given, **named)

            return called

        return tell

    vars(builtins).update({TELL_ROUNDS: tell_rounds, TELL_CALLS: tell_calls})
    try:
        yield
    finally:
        for name in (TELL_ROUNDS, TELL_CALLS):
            delattr(builtins, name)


@contextmanager
def _watch_arguments(
    artifact: Artifact, found: dict[tuple[str, str], dict[str, object]], enough: Collection[str]
) -> Iterator[None]:
    """Note plain values that functions of an artifact are called with, until those named in `enough` have been seen."""
    waiting = set(enough)

    def note(frame: FrameType, event: str, _: Any) -> None:
        """Note the plain values that a function is called with, and stop once all of `enough` have been called."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(artifact.name):
            return
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            is_plain, value = _plain_value(frame.f_locals.get(name, frame))
            if is_plain:
                found.setdefault((code.co_qualname, name), {})[repr(value)] = value
        waiting.discard(code.co_qualname)
        if enough and not waiting:
            sys.setprofile(None)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def _plain_value(value: Any) -> tuple[bool, Any]:
    """Whether a value is a number, a flag, a word or None, and it; also inside of what Triton's interpreter makes of
    one.
    """
    value = getattr(value, "value", value) if type(value).__module__.startswith("triton.") else value
    handle = getattr(value, "handle", None)
    if handle is not None and not value.type.is_ptr() and handle.data.size == 1:
        value = handle.data.item()
    return value is None or isinstance(value, bool | int | float | str), value
