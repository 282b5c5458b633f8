"""A cell's text as statements of Python: how they are taken apart, and which names they define."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator

from mlsys_lab.stack.artifact import Cell
from mlsys_lab.stack.commands import strip_commands

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
"""Statements that define names, and do no work that somebody may want in the notebook alone."""
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What Python raises for a text that it cannot compile."""


def make_readable(cell: Cell) -> Cell:
    """A cell as plain Python; where it is none, as many lines of comment."""
    text = strip_commands(cell.source)
    try:
        ast.parse(text)
    except UNREADABLE:
        text = "\n".join("#" * (cell.source.rstrip().count("\n") + 1))
    return Cell(cell.number, text)


def split_statement(statement: ast.stmt) -> Iterator[ast.stmt]:
    """A statement as it is, but an import of several names as one for each, and none from `__future__`.

    Of `if __name__ == "__main__":` what it defines: that is true in a notebook, and not here.
    """
    match statement:
        case ast.Import(names=names):
            yield from (ast.copy_location(ast.Import([name]), statement) for name in names)
        case ast.ImportFrom(module="__future__"):
            return
        case ast.ImportFrom(module=module, names=names, level=level):
            yield from (ast.copy_location(ast.ImportFrom(module, [name], level), statement) for name in names)
        case ast.If(
            test=ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant("__main__")]),
            body=body,
        ):
            yield from (node for inner in body if isinstance(inner, DEFINITIONS) for node in split_statement(inner))
        case _:
            yield statement


def find_names(statements: list[ast.stmt]) -> frozenset[str]:
    """The names that statements define at their top level."""
    try:
        symbols = symtable.symtable(ast.unparse(ast.Module(statements, [])), "cells", "exec").get_symbols()
    except UNREADABLE:  # too deep for a second reading
        return frozenset()
    return frozenset(symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported())
