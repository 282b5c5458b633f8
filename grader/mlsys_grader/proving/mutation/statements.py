"""Operators on a statement, and on a whole function. Each yields texts that may take its place."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from mlsys_grader.proving.mutation.code import Function, Operator
from mlsys_grader.proving.mutation.shown import DIGEST, Shown, place_of

BY_NOTHING = "0"
BY_FORM = 'str([getattr(x, "shape", type(x)) for x in given])'
BY_OBJECT = "(id(given[0]), id(kept.setdefault(id(given[0]), given[0])))"
"""What a hasty cache takes for the key of a call: nothing at all, shapes and types, or the object of a method."""


def drop_statement(node: ast.AST, function: Function) -> Iterator[str]:
    """Nothing in the place of a statement, unless it is the first to bind a name."""
    match node:
        case ast.Assign() | ast.AnnAssign():
            bound = [
                part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
            ]
            known = {argument.arg for argument in function.parameters}
            if all(name in known or function.bound[name] < node.lineno for name in bound):
                yield "pass"
        case ast.AugAssign() | ast.For() | ast.While() | ast.Break() | ast.Continue() | ast.Raise() | ast.Assert():
            yield "pass"
        case ast.Expr(value) if not isinstance(value, ast.Constant):
            yield "pass"
        case ast.Return() if node is not function.node.body[-1]:
            yield "pass"
        case ast.With():
            yield _block("if True:", node.body)


def drop_guard(node: ast.AST, function: Function) -> Iterator[str]:
    """A condition that always holds, and one that never does."""
    if isinstance(node, ast.If):
        for always in (True, False):
            changed = copy.copy(node)
            changed.test = ast.Constant(always)
            yield ast.unparse(changed)


def stop_after_one_round(node: ast.AST, function: Function) -> Iterator[str]:
    """A loop that is left at the end of its first round."""
    if isinstance(node, ast.For | ast.While) and not function.is_kernel:
        changed = copy.copy(node)
        changed.body = [*node.body, ast.Break()]
        yield ast.unparse(changed)


STATEMENTS: tuple[Operator, ...] = (drop_statement, drop_guard, stop_after_one_round)


def remember_results(node: ast.AST, function: Function) -> Iterator[str]:
    """A function that answers what it answered first: to whatever it is asked, to arguments of these shapes, or, if it
    is a method, of this object.
    """
    answers = any(isinstance(part, ast.Return) and part.value is not None for part in ast.walk(function.node))
    if node is function.node and answers and not function.is_kernel:
        for key in (BY_OBJECT,) if "." in function.name else (BY_NOTHING, BY_FORM):
            cached = f"lambda f, kept={{}}: lambda *given, **named: kept.setdefault({key}, f(*given, **named))"
            yield _decorated(function.node, cached)


def know_only(shown: Shown) -> tuple[Operator, ...]:
    """Operators for solutions that were made for what public cases show, and for nothing else."""

    def ignore_argument(node: ast.AST, function: Function) -> Iterator[str]:
        """Set an argument to the first value that learners see it have, always or where it has none of those values."""
        if node is not function.node:
            return
        for argument in function.parameters:
            values = shown.values.get((function.name, argument.arg), ())
            yield from (_with_line(function.node, f"{argument.arg} = {value!r}") for value in values[:1])
            if len(values) > 1 and not function.is_kernel and set(map(type, values)) != {bool}:
                known, first = f"({', '.join(map(repr, values))})", repr(values[0])
                line = f"{argument.arg} = {argument.arg} if {argument.arg} in {known} else {first}"
                yield _with_line(function.node, line)

    def cut_loop(node: ast.AST, function: Function) -> Iterator[str]:
        """A loop that has no more rounds than learners see it have."""
        if isinstance(node, ast.expr) and (most := shown.rounds.get(place_of(node))):
            yield f'__import__("itertools").islice({ast.unparse(node)}, {most})'

    def answer_shown(node: ast.AST, function: Function) -> Iterator[str]:
        """A function that answers nothing but the calls that learners see."""
        if node is function.node and (calls := shown.calls.get(function.name)):
            known = ", ".join(map(str, calls))
            chosen = f"lambda f: lambda *given, **named: f(*given, **named) if {DIGEST} in ({known},) else None"
            yield _decorated(function.node, chosen)

    return ignore_argument, cut_loop, answer_shown


def _with_line(function: ast.FunctionDef, line: str) -> str:
    """A definition whose body begins with another line."""
    changed = copy.copy(function)
    documented = ast.get_docstring(function) is not None
    changed.body = [*function.body[:documented], *ast.parse(line).body, *function.body[documented:]]
    return ast.unparse(changed)


def _decorated(function: ast.FunctionDef, decorator: str) -> str:
    """A definition with one more decorator, below those that it has."""
    changed = copy.copy(function)
    changed.decorator_list = [*function.decorator_list, ast.parse(decorator, mode="eval").body]
    return ast.unparse(changed)


def _block(head: str, body: list[ast.stmt]) -> str:
    lines = "\n".join(ast.unparse(statement) for statement in body).split("\n")
    return "\n".join([head, *(f"    {line}" for line in lines)])
