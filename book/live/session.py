"""Runs a page's cells, each on the results of the cells that it needs. It imports the standard library only.

A cell's results are the names that it bound. The next cells get those of the cells that they need, in the page's order,
so a name that two cells bind has the right value in whatever order a reader runs them.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

Emit = Callable[[str, int, str], object]
"""Receives output: its kind ("start", "text", "html" or "error"), the index of the cell, and the content."""


@dataclass(frozen=True)
class _Result:
    """What a cell bound when it ran, its source then, and which runs of other cells it built on."""

    run: int
    source: str
    built_on: tuple[int, ...]
    names: dict[str, Any]


class Session:
    """Keeps what the cells of a page have computed."""

    def __init__(self) -> None:
        self._results: dict[int, _Result] = {}
        self._runs = 0

    def run(self, cells: str, index: int, emit: Emit) -> None:
        """Run a cell and those that show its results; before it the cells that it needs, if their code has changed.

        cells: JSON of {index: {"source": str, "needs": [index], "shows": [index]}}.
        """
        known = {int(i): cell for i, cell in json.loads(cells).items()}
        try:
            for shown in (index, *known[index]["shows"]):
                for needed in known[shown]["needs"]:
                    if self._is_stale(known, needed):
                        self._execute(known, needed, _drop)
                emit("start", shown, "")
                self._execute(known, shown, emit)
        except _CellError as failed:
            where = "" if failed.index == index else "In a cell that this one needs: "
            emit("error", index, f"{where}{failed.message}")

    def _is_stale(self, cells: dict[int, Any], index: int) -> bool:
        result = self._results.get(index)
        return result is None or (result.source, result.built_on) != (cells[index]["source"], self._base(cells, index))

    def _base(self, cells: dict[int, Any], index: int) -> tuple[int, ...]:
        return tuple(self._results[needed].run for needed in cells[index]["needs"] if needed in self._results)

    def _execute(self, cells: dict[int, Any], index: int, emit: Emit) -> None:
        before: dict[str, Any] = {"__name__": "__main__"}
        for needed in cells[index]["needs"]:
            before |= self._results[needed].names
        namespace, source = dict(before), cells[index]["source"]
        file = f"<cell {index}>"
        try:
            with contextlib.redirect_stdout(_Stream(partial(emit, "text", index))):
                value = _evaluate(source, file, namespace)
            if value is not None:
                as_html = getattr(value, "_repr_html_", None)
                emit(*(("html", index, as_html()) if as_html else ("text", index, f"{value!r}\n")))
        except Exception as error:
            raise _CellError(index, _describe(error, file)) from error
        self._runs += 1
        names = {name: one for name, one in namespace.items() if name not in before or before[name] is not one}
        self._results[index] = _Result(self._runs, source, self._base(cells, index), names)


class _CellError(Exception):
    """A cell failed."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index, self.message = index, message


class _Stream(io.TextIOBase):
    """Passes on what is printed."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def write(self, text: str) -> int:
        self._write(text)
        return len(text)


def _evaluate(source: str, file: str, namespace: dict[str, Any]) -> Any:
    """Execute code as a notebook does; returns the value of its last line if that is an expression."""
    tree = ast.parse(source, file)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, file, "exec"), namespace)
    return eval(compile(ast.Expression(last.value), file, "eval"), namespace) if isinstance(last, ast.Expr) else None


def _describe(error: Exception, file: str) -> str:
    """One line: the kind of error, its message, and the line of the cell."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == file else (lines or [None])[-1]
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {message}" + (f" (line {line})" if line else "")


def _drop(kind: str, index: int, content: str) -> None:
    """Receive output of a cell that runs only because another one needs it."""
