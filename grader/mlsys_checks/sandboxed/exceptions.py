"""Describe an exception of a learner's code: the line where it happened, and the check's call that led there."""

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
MAX_CALL_CHARACTERS = 100
"""Characters of a check's code that a message shows."""


class ProblemError(Exception):
    """A problem that prevents an answer, already described; `unfinished`: the task has not been written."""

    def __init__(self, problem: Mismatch, unfinished: bool = False) -> None:
        super().__init__(problem.what)
        self.problem, self.unfinished = problem, unfinished


def describe_time_out(limit_s: float) -> Mismatch:
    """Describe an answer that did not come within a limit in seconds."""
    return Mismatch("it did not come to an end", f"no answer after {limit_s:g} s", f"an answer within {limit_s:g} s")


def describe_not_implemented(error: Exception) -> Mismatch:
    """Describe an unwritten task: by the stub's text ("Task 1, `double`"), else by its line."""
    task = describe(error).removeprefix(type(error).__name__).lstrip(": ")
    own = _learner_entry(_traceback_entries(error))
    where = _location_of(own, brief=bool(task)) if own else ""
    task_text = f"{task} ({where})" if task and where else task or where or "the task itself"
    return Mismatch(f"not written yet: {task_text}")


def describe_raised(error: BaseException) -> Mismatch:
    """Describe an exception and its place: a line of the learner's code or, if none was reached, of the check."""
    entries = _traceback_entries(error)
    own = _learner_entry(entries)
    if isinstance(error, CourseError) and own is None:  # the check itself describes what is wrong with an answer
        got, expected = ("" if value is None else str(value) for value in (error.got, error.expected))
        return Mismatch(error.what, got, expected, is_form=True)
    cause = find_cause(error)
    said = f"{describe(error)} ({cause.what})" if cause else describe(error)
    if own is not None:
        expected_text = _read_notes(error) or _describe_check_call(own, entries) or "an answer"
        return Mismatch("your code stopped with an exception", f"{said}, at {_location_of(own)}", expected_text)
    entry = _check_entry(entries)
    if (called := _called(entry)) is not None and isinstance(error, TypeError):
        # No frame of the function: Python could not bind the arguments.
        function, place = called
        what = f"`{function.__qualname__}` does not take the arguments of the task"
        wanted = f"parameters for `{_source_of(entry)}`" if _source_of(entry) else "the parameters of the task"
        return Mismatch(what, f"{said}, at {place}", _read_notes(error) or wanted, is_form=True)
    at = f", in the check's `{_source_of(entry)}`" if _source_of(entry) else ""
    return Mismatch(
        "the check could not go on with what your code defines or gives back", said + at, "what the task describes"
    )


def _read_notes(error: BaseException) -> str:
    """Notes that the check added to the exception; a learner's exception may hold anything as notes."""
    notes = vars(error).get("__notes__")
    return " ".join(note for note in notes if isinstance(note, str)) if isinstance(notes, list) else ""


def _describe_check_call(own: TracebackType, entries: Sequence[TracebackType]) -> str:
    """The check's call that reached the learner's first line; "" if it cannot be shown."""
    first = next(i for i, entry in enumerate(entries) if _location_of(entry))
    entry = _check_entry(entries[:first])
    text = _source_of(entry) if isinstance(_expression(entry), ast.Call) else ""
    return f"an answer to `{text}`" if text else ""


def _traceback_entries(error: BaseException) -> list[TracebackType]:
    """Entries of an exception's traceback, outermost first."""
    found, entry = [], error.__traceback__
    while entry is not None:
        found.append(entry)
        entry = entry.tb_next
    return found


def _learner_entry(entries: Sequence[TracebackType]) -> TracebackType | None:
    """The innermost entry in the learner's own code."""
    return next((entry for entry in reversed(entries) if _location_of(entry)), None)


def _check_entry(entries: Sequence[TracebackType]) -> TracebackType | None:
    """The innermost entry outside libraries and Python itself."""
    for entry in reversed(entries):
        file = entry.tb_frame.f_code.co_filename
        if file.startswith(PACKAGES) or not file.startswith((*LIBRARIES, "<")):
            return entry
    return None


def _called(entry: TracebackType | None) -> tuple[FunctionType, str] | None:
    """The learner's function that an entry calls, and its location; None if it calls nothing of the learner's.

    Names are looked up without running the learner's code.
    """
    call = _expression(entry)
    if entry is None or not isinstance(call, ast.Call):
        return None
    found = _look_up(call.func, {**entry.tb_frame.f_globals, **entry.tb_frame.f_locals})
    found = inspect.getattr_static(found, "__init__", None) if isinstance(found, type) else found
    found = found.__func__ if isinstance(found, staticmethod | classmethod) else found
    if not isinstance(found, FunctionType):
        return None
    place = _location(found.__code__, found.__globals__, found.__code__.co_firstlineno)
    return (found, place) if place else None


def _look_up(name: ast.expr, names: Mapping[str, Any]) -> Any:
    """The object of a name or attribute; None for any other expression."""
    match name:
        case ast.Name(id=known):
            return names.get(known)
        case ast.Attribute(value=owner, attr=attribute):
            return inspect.getattr_static(_look_up(owner, names), attribute, None)
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Name(id=chosen)]):
            return inspect.getattr_static(_look_up(owner, names), str(names.get(chosen)), None)
    return None


def _expression(entry: TracebackType | None) -> ast.expr | None:
    """The expression that an entry was evaluating; None if there is none or it cannot be read."""
    if entry is None or entry.tb_lasti < 0:
        return None
    line, last, begin, end = next(islice(entry.tb_frame.f_code.co_positions(), entry.tb_lasti // 2, None))
    if line is None or last is None or begin is None or end is None:
        return None
    lines = [text.encode() for text in linecache.getlines(entry.tb_frame.f_code.co_filename)[line - 1 : last]]
    if not lines:
        return None
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    try:
        return ast.parse(f"({b''.join(lines).decode()})", mode="eval").body
    except (SyntaxError, UnicodeDecodeError):
        return None


class _AsLearnerCode(ast.NodeTransformer):
    """Rewrite a check's expression as learner code: `artifact.f` becomes `f`."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return ast.Name(node.attr) if _is_artifact(node.value) else self._visit_children(node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Rewrite `getattr(artifact, name)` as the name."""
        match node:
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Name(id=chosen)]) if _is_artifact(owner):
                return ast.Name(str(self.names.get(chosen)))
        return self._visit_children(node)

    def _visit_children(self, node: ast.expr) -> ast.expr:
        changed = self.generic_visit(node)
        assert isinstance(changed, ast.expr)
        return changed


def _is_artifact(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "artifact"


def _source_of(entry: TracebackType | None) -> str:
    """The expression that an entry was evaluating, as learner code; "" if it cannot be shown."""
    expression = _expression(entry)
    if entry is None or expression is None:
        return ""
    plain = _AsLearnerCode(entry.tb_frame.f_locals).visit(expression)
    if any(_is_artifact(node) for node in ast.walk(plain)):
        return ""
    return textwrap.shorten(ast.unparse(plain), MAX_CALL_CHARACTERS, placeholder=" …")


def _location_of(entry: TracebackType, brief: bool = False) -> str:
    return _location(entry.tb_frame.f_code, entry.tb_frame.f_globals, entry.tb_lineno, brief)


def _location(code: CodeType, names: Mapping[str, Any], line: int, brief: bool = False) -> str:
    """A line of the learner's code, with its text unless `brief`; "" for other code. `names` are the code's globals."""
    if (place := place_of(code, names, line)) is not None:
        return f"cell {place.cell.number}, line {place.line}" if brief else str(place)
    if cell := name_cell(code.co_filename):
        return f"{cell}, line {line}"
    if names.get("__name__") == "__main__" and not code.co_filename.startswith(PACKAGES):
        return f"{Path(code.co_filename).name}, line {line}"
    return ""
