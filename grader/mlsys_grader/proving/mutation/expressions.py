"""Operators on one expression. Each yields texts that may take its place; an empty text drops a bound of a slice."""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Iterator
from typing import Any

from mlsys_grader.proving.mutation.code import Function, Operator

TURNED: dict[type, str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "/",
    ast.Mod: "//",
    ast.Pow: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}
"""Each operation and what it is mistaken for."""
COMPARED: dict[type, tuple[str, ...]] = {
    ast.Lt: ("<=", ">"),
    ast.LtE: ("<", ">="),
    ast.Gt: (">=", "<"),
    ast.GtE: (">", "<="),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
FUNCTIONS = {
    "max": "min",
    "min": "max",
    "maximum": "minimum",
    "minimum": "maximum",
    "amax": "amin",
    "argmax": "argmin",
    "argmin": "argmax",
    "ceil": "floor",
    "floor": "ceil",
    "round": "int",
    "any": "all",
    "all": "any",
    "mean": "sum",
    "sum": "max",
    "median": "mean",
    "exp": "exp2",
    "log": "log2",
}
"""Functions and methods that take the same arguments, and do something else."""
TYPES = {
    "float64": "float32",
    "float32": "float16",
    "float16": "bfloat16",
    "bfloat16": "float16",
    "int64": "int32",
    "int32": "int16",
}
LIMITS = frozenset({"min", "max", "maximum", "minimum", "where", "clip", "clamp"})
"""What keeps a value within limits: the value alone may take its place."""
MOST_ROUNDS = (1, 2, 4)
"""Rounds that a loop is cut to."""


def shift_constant(node: ast.AST, function: Function) -> Iterator[str]:
    """A number one more, one less and half; True for False."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, int | float) or not math.isfinite(node.value):
        return
    value = node.value
    if isinstance(value, bool):
        yield repr(not value)
        return
    yield from (repr(value + 1), repr(value - 1))
    if half := value // 2 if isinstance(value, int) else value / 2:
        yield repr(half)


def mistake_name(node: ast.AST, function: Function) -> Iterator[str]:
    """Another name of the same kind: BLOCK_N for BLOCK_M, k for q."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        other = function.next_alike.get(node.id)
        if other is not None and function.bound.get(other, 0) <= node.lineno:
            yield other


def change_operation(node: ast.AST, function: Function) -> Iterator[str]:
    """The opposite operation, either operand alone, and the operands the other way round where that matters."""
    if isinstance(node, ast.BinOp):
        left, right = f"({ast.unparse(node.left)})", f"({ast.unparse(node.right)})"
        if turned := TURNED.get(type(node.op)):
            yield f"{left} {turned} {right}"
        yield left
        if not isinstance(node.left, ast.BinOp):  # of a chain one term at a time, not all but the last
            yield right
        if isinstance(node.op, ast.Sub | ast.Div | ast.MatMult):
            yield ast.unparse(ast.BinOp(node.right, node.op, node.left))
    if isinstance(node, ast.UnaryOp):
        yield ast.unparse(node.operand)


def change_comparison(node: ast.AST, function: Function) -> Iterator[str]:
    """A comparison with or without equality, and turned round."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = f"({ast.unparse(node.left)})", f"({ast.unparse(node.comparators[0])})"
        yield from (f"{left} {sign} {right}" for sign in COMPARED[type(node.ops[0])])


def change_condition(node: ast.AST, function: Function) -> Iterator[str]:
    """One part of a condition dropped, `and` for `or`, one branch of a choice for both."""
    if isinstance(node, ast.BoolOp):
        for i in range(len(node.values)):
            left = node.values[:i] + node.values[i + 1 :]
            yield ast.unparse(ast.BoolOp(node.op, left) if len(left) > 1 else left[0])
        yield ast.unparse(ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values))
    if isinstance(node, ast.IfExp):
        yield from (ast.unparse(node.body), ast.unparse(node.orelse))


def change_arguments(node: ast.AST, function: Function) -> Iterator[str]:
    """Two neighbouring arguments of a call in each other's place; one that has a name left out, or the last of some."""
    if not isinstance(node, ast.Call):
        return
    for i in range(len(node.args) - 1):
        if not any(isinstance(argument, ast.Starred) for argument in node.args[i : i + 2]):
            call = copy.copy(node)
            call.args = [*node.args[:i], node.args[i + 1], node.args[i], *node.args[i + 2 :]]
            yield ast.unparse(call)
    if len(node.args) > 1:
        call = copy.copy(node)
        call.args = node.args[:-1]
        yield ast.unparse(call)
    for i in range(len(node.keywords)):
        call = copy.copy(node)
        call.keywords = node.keywords[:i] + node.keywords[i + 1 :]
        yield ast.unparse(call)


def change_call(node: ast.AST, function: Function) -> Iterator[str]:
    """Another function; what a call is given for what it gives, where it has one argument, is a method or a limit."""
    if not isinstance(node, ast.Call):
        return
    name = _name_of(node.func)
    if other := FUNCTIONS.get(name):
        call = copy.copy(node)
        call.func = _renamed(node.func, other)
        yield ast.unparse(call)
    if name in LIMITS:
        yield from (ast.unparse(argument) for argument in node.args if not isinstance(argument, ast.Starred))
    elif len(node.args) == 1 and not isinstance(node.args[0], ast.Starred):
        yield ast.unparse(node.args[0])
    if isinstance(node.func, ast.Attribute):
        owner = node.func.value
        if not isinstance(owner, ast.Name) or owner.id in function.next_alike:  # not of a module
            yield ast.unparse(owner)


def change_type(node: ast.AST, function: Function) -> Iterator[str]:
    """A narrower type of numbers, or one of fewer digits."""
    if isinstance(node, ast.Attribute) and node.attr in TYPES:
        yield ast.unparse(_renamed(node, TYPES[node.attr]))


def change_range(node: ast.AST, function: Function) -> Iterator[str]:
    """A range that ends one sooner or later, after a few rounds, or runs backwards."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) != "range" or node.keywords:
        return
    parts = [ast.unparse(argument) for argument in node.args]
    if 1 <= len(parts) <= 3 and not any(isinstance(argument, ast.Starred) for argument in node.args):
        start, stop = parts[0] if len(parts) > 1 else "0", parts[min(1, len(parts) - 1)]
        step = parts[2] if len(parts) > 2 else "1"
        yield from (f"range({start}, ({stop}) {change}, {step})" for change in ("- 1", "+ 1"))
        yield from (f"range({start}, min({stop}, {start} + {most} * {step}), {step})" for most in MOST_ROUNDS)
    if not function.is_kernel:
        yield f"reversed({ast.unparse(node)})"


def drop_bound(node: ast.AST, function: Function) -> Iterator[str]:
    """A slice from the beginning, to the end, or without its step (asked of each of its bounds)."""
    if isinstance(node, ast.Slice):
        for bound in ("lower", "upper", "step"):
            if getattr(node, bound) is not None:
                whole = copy.copy(node)
                setattr(whole, bound, None)
                yield ast.unparse(whole)


def work_in_place(node: ast.AST, function: Function) -> Iterator[str]:
    """A result written into the array or the list that it is made of, where that is an argument or part of one."""
    inplace: dict[type, str] = {ast.Add: "iadd", ast.Sub: "isub", ast.Mult: "imul", ast.Div: "itruediv"}
    if function.is_kernel:
        return
    match node:
        case ast.BinOp(left=old, op=operation, right=other) if type(operation) in inplace and _is_given(old, function):
            yield f"{ast.unparse(old)}.__{inplace[type(operation)]}__({ast.unparse(other)})"
        case ast.Call(func=ast.Name("sorted" | "reversed" as name), args=[old]) if _is_given(old, function):
            method = ast.Attribute(old, "sort" if name == "sorted" else "reverse")
            yield f"{ast.unparse(ast.Call(method, [], node.keywords))} or {ast.unparse(old)}"
        case ast.List(elts=[ast.Starred(value=old), *_, last]) if _is_given(old, function):
            method = ast.Attribute(old, "append")
            yield f"{ast.unparse(ast.Call(method, [last], []))} or {ast.unparse(old)}"


EXPRESSIONS: tuple[Operator, ...] = (
    shift_constant,
    mistake_name,
    change_operation,
    change_comparison,
    change_condition,
    change_arguments,
    change_call,
    change_type,
    change_range,
    drop_bound,
    work_in_place,
)


def _is_given(node: ast.expr, function: Function) -> bool:
    """Whether a value is an argument of the function, or part of one."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name) and node.id in {argument.arg for argument in function.parameters}


def _name_of(function: ast.expr) -> str:
    """What a call calls, without the module or the object that it is of."""
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def _renamed(node: ast.expr, name: str) -> Any:
    other = copy.copy(node)
    setattr(other, "attr" if isinstance(node, ast.Attribute) else "id", name)
    return other
