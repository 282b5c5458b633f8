"""An exception of a learner's code in words: at which line of theirs, and what a check had called them with."""

from __future__ import annotations

import ast
import inspect
import linecache
import sysconfig
import textwrap
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType, TracebackType
from typing import Any

import mlsys_lab
from mlsys_checks.sandboxed.spec import Mismatch
from mlsys_lab.errors import CourseError
from mlsys_lab.stack.loading import describe, find_cause, name_cell, place_of

PACKAGES = (str(Path(mlsys_lab.__file__).parent), str(Path(__file__).parents[1]))
LIBRARIES = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")})
LONGEST_CALL = 100
"""Characters of a check's own code that a message shows."""


class ProblemError(Exception):
    """What stands in the way of an answer, already in words; `unfinished` tells a task that has not been written."""

    def __init__(self, problem: Mismatch, unfinished: bool = False) -> None:
        super().__init__(problem.what)
        self.problem, self.unfinished = problem, unfinished


def describe_time_out(limit_s: float) -> Mismatch:
    """Put into words that there was no answer within a limit in seconds."""
    return Mismatch("it did not come to an end", f"no answer after {limit_s:g} s", f"an answer within {limit_s:g} s")


def describe_unwritten(error: Exception) -> Mismatch:
    """Which task is to do: a released stub names it ("still to do: Task 1 · …"); else by its line alone."""
    task = describe(error).removeprefix(type(error).__name__).removeprefix(": still to do").lstrip(": ")
    own = _learners_step(_steps(error))
    where = _place_of_step(own, brief=bool(task)) if own else ""
    told = f"{task} ({where})" if task and where else task or where or "the task itself"
    return Mismatch(f"not written yet: {told}")


def describe_raised(error: BaseException) -> Mismatch:
    """Which exception it is, and where: at a line of the learner's or, where it passed none, in a step of the check."""
    steps = _steps(error)
    own = _learners_step(steps)
    if isinstance(error, CourseError) and own is None:  # the check itself says what is wrong with an answer
        got, expected = ("" if value is None else str(value) for value in (error.got, error.expected))
        return Mismatch(error.what, got, expected, is_form=True)
    cause = find_cause(error)
    said = f"{describe(error)} ({cause.what})" if cause else describe(error)
    if own is not None:
        asked = _noted(error) or _asked_before(own, steps) or "an answer"
        return Mismatch("your code stopped with an exception", f"{said}, at {_place_of_step(own)}", asked)
    step = _checks_step(steps)
    if (called := _called(step)) is not None and isinstance(error, TypeError):
        # It would be a frame of its own, the last, had it begun: Python could not match the arguments.
        function, place = called
        what = f"`{function.__qualname__}` does not take the arguments of the task"
        wanted = f"parameters for `{_text_of(step)}`" if _text_of(step) else "the parameters of the task"
        return Mismatch(what, f"{said}, at {place}", wanted, is_form=True)
    at = f", in the check's `{_text_of(step)}`" if _text_of(step) else ""
    return Mismatch(
        "the check could not go on with what your code defines or gives back", said + at, "what the task describes"
    )


def _noted(error: BaseException) -> str:
    """What the check noted on the exception on its way out; a learner's exception may hold anything as notes."""
    notes = vars(error).get("__notes__")
    return " ".join(note for note in notes if isinstance(note, str)) if isinstance(notes, list) else ""


def _asked_before(own: TracebackType, steps: Sequence[TracebackType]) -> str:
    """The check's call in which the learner's first line was reached; "" where it is no call that can be shown."""
    first = next(i for i, step in enumerate(steps) if _place_of_step(step))
    step = _checks_step(steps[:first])
    text = _text_of(step) if isinstance(_expression(step), ast.Call) else ""
    return f"an answer to `{text}`" if text else ""


def _steps(error: BaseException) -> list[TracebackType]:
    """The entries of an exception's traceback, the outermost first."""
    found, step = [], error.__traceback__
    while step is not None:
        found.append(step)
        step = step.tb_next
    return found


def _learners_step(steps: Sequence[TracebackType]) -> TracebackType | None:
    """The deepest step in the learner's own code."""
    return next((step for step in reversed(steps) if _place_of_step(step)), None)


def _checks_step(steps: Sequence[TracebackType]) -> TracebackType | None:
    """The deepest step that is neither a library's nor Python's own."""
    for step in reversed(steps):
        file = step.tb_frame.f_code.co_filename
        if file.startswith(PACKAGES) or not file.startswith((*LIBRARIES, "<")):
            return step
    return None


def _called(step: TracebackType | None) -> tuple[FunctionType, str] | None:
    """The learner's function that a step calls, and its place; None where it calls something else, or nothing.

    Names are looked up without running any code of the learner's.
    """
    call = _expression(step)
    if step is None or not isinstance(call, ast.Call):
        return None
    found = _look_up(call.func, {**step.tb_frame.f_globals, **step.tb_frame.f_locals})
    found = inspect.getattr_static(found, "__init__", None) if isinstance(found, type) else found
    found = found.__func__ if isinstance(found, staticmethod | classmethod) else found
    if not isinstance(found, FunctionType):
        return None
    place = _place(found.__code__, found.__globals__, found.__code__.co_firstlineno)
    return (found, place) if place else None


def _look_up(name: ast.expr, names: Mapping[str, Any]) -> Any:
    """What a name, or an attribute of one, stands for; None for any other expression."""
    match name:
        case ast.Name(id=known):
            return names.get(known)
        case ast.Attribute(value=owner, attr=attribute):
            return inspect.getattr_static(_look_up(owner, names), attribute, None)
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Name(id=chosen)]):
            return inspect.getattr_static(_look_up(owner, names), str(names.get(chosen)), None)
    return None


def _expression(step: TracebackType | None) -> ast.expr | None:
    """What of its source a step was working out; None where that is no expression, or cannot be read."""
    if step is None or step.tb_lasti < 0:
        return None
    line, last, begin, end = next(islice(step.tb_frame.f_code.co_positions(), step.tb_lasti // 2, None))
    if line is None or last is None or begin is None or end is None:
        return None
    lines = [text.encode() for text in linecache.getlines(step.tb_frame.f_code.co_filename)[line - 1 : last]]
    if not lines:
        return None
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    try:
        return ast.parse(f"({b''.join(lines).decode()})", mode="eval").body
    except (SyntaxError, UnicodeDecodeError):
        return None


class _Plain(ast.NodeTransformer):
    """A check's expression as the learner would write it: with their own names where it asks the artifact for them."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """`artifact.f` as `f`."""
        return ast.Name(node.attr) if _is_artifact(node.value) else self._inside(node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """`getattr(artifact, name)` as the name that it is."""
        match node:
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Name(id=chosen)]) if _is_artifact(owner):
                return ast.Name(str(self.names.get(chosen)))
        return self._inside(node)

    def _inside(self, node: ast.expr) -> ast.expr:
        changed = self.generic_visit(node)
        assert isinstance(changed, ast.expr)
        return changed


def _is_artifact(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "artifact"


def _text_of(step: TracebackType | None) -> str:
    """What a step was working out, as the learner would write it; "" where nothing can be shown."""
    expression = _expression(step)
    if step is None or expression is None:
        return ""
    plain = _Plain(step.tb_frame.f_locals).visit(expression)
    if any(_is_artifact(node) for node in ast.walk(plain)):
        return ""
    return textwrap.shorten(ast.unparse(plain), LONGEST_CALL, placeholder=" …")


def _place_of_step(step: TracebackType, brief: bool = False) -> str:
    return _place(step.tb_frame.f_code, step.tb_frame.f_globals, step.tb_lineno, brief)


def _place(code: CodeType, names: Mapping[str, Any], line: int, brief: bool = False) -> str:
    """A line of the learner's, with its text unless `brief`; "" for a line of other code, which sees `names`."""
    if (place := place_of(code, names, line)) is not None:
        return f"cell {place.cell.number}, line {place.line}" if brief else str(place)
    if cell := name_cell(code.co_filename):
        return f"{cell}, line {line}"
    if names.get("__name__") == "__main__" and not code.co_filename.startswith(PACKAGES):
        return f"{Path(code.co_filename).name}, line {line}"
    return ""
