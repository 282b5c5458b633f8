"""The language of traced kernels, checked on the syntax tree before any of it runs.

What the tracer records is worth marks only if a submission can neither write the record itself nor fetch an array once
and keep it in Python. A kernel traced for marks therefore gets arithmetic, branches, loops, its own parameters and
locals, constants of its module, other kernels, and the listed names of `cuda`, `tl` and `math`. Excluded is everything
that outlives a thread other than memory, and every way from an object to the interpreter.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from types import MappingProxyType

from mlsys_checks.sandboxed.kernels.aliases import LIBDEVICE
from mlsys_checks.sandboxed.kernels.vocabulary import (
    ANNOTATIONS,
    ATTRIBUTES,
    BUILTINS,
    DIALECTS,
    MODULES,
    NUMBER_TYPES,
    PRINTS_NOTHING,
    REQUESTED,
    RESERVED,
    TYPES_OF,
)
from mlsys_lab.errors import CourseError, did_you_mean

SIMPLE = (ast.Pass, ast.Break, ast.Continue)
COMPOUND = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.Slice)
STATIC_ASSERT = "tl.static_assert"
MATHS = {
    "cuda.jit": "math.exp, math.log, math.sqrt, math.tanh and the like",
    "triton.jit": "tl.exp, tl.log, tl.sqrt and the like; tanh(x) is 2 * tl.sigmoid(2 * x) - 1",
}
"""Replacement of libdevice, by decorator."""
NUMBERS_ONLY = (
    "of its module a kernel uses kernels, numbers and tuples of numbers, all in exported cells; a number is written "
    "out, or made of such by arithmetic, math, int, float, min, max"
)
PRINTERS = ("print", "breakpoint", "display", "input")
HARMLESS = (ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context)


class KernelLanguageError(CourseError):
    """A kernel's source uses something that kernels may not; `line` counts from 1 in the checked source."""

    def __init__(self, line: int, what: str, *, got: object = None, help: str = "") -> None:
        super().__init__(what, got=got, help=help)
        self.line = line


def check_kernel(
    function: ast.FunctionDef,
    known: frozenset[str],
    others: Mapping[str, str] = MappingProxyType({}),
    unmarked: Mapping[str, str] = MappingProxyType({}),
) -> set[str]:
    """Check one kernel; return the names that it uses from its module, whose kernels and constants are `known`.

    `others` maps other names of the module, which kernels cannot use, to what they are; `unmarked` maps those of plain
    numbers, which kernels of Triton cannot. Raises `KernelLanguageError` for the first violation.
    """
    kernel = _Kernel(function, known, others)
    kernel.check()
    if kernel.dialect == "triton.jit":
        kernel.check_constants(unmarked)
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name)} - kernel.locals


class _Kernel:
    """Checker of one kernel's syntax tree; collects the names that the kernel uses."""

    def __init__(self, function: ast.FunctionDef, known: frozenset[str], others: Mapping[str, str]) -> None:
        self.function, self.known, self.others = function, known, others
        self.dialect = decorators(function)[0]
        arguments = function.args
        self.parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        stored = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and _is_store(node)}
        self.locals = stored | {one.arg for one in self.parameters}

    def check(self) -> None:
        """Raise KernelLanguageError for the first violation."""
        arguments = self.function.args
        if arguments.vararg or arguments.kwarg:
            self.refuse(self.function, "a kernel has a fixed number of parameters", "*args or **kwargs")
        for default in [*arguments.defaults, *(one for one in arguments.kw_defaults if one)]:
            if not isinstance(default, ast.Constant):
                self.refuse(default, "a parameter's default has to be a constant")
        if self.dialect == "triton.jit":  # Numba ignores annotations
            self.check_annotations()
        if getattr(self.function, "type_params", None):  # since Python 3.12
            self.refuse(self.function, "a kernel has no type parameters")
        for name in self.locals:
            if name.startswith("__") or name in RESERVED:
                self.refuse(self.function, f"`{name}` cannot be the name of a variable of `{self.function.name}`")
        for statement in self.function.body:
            self.check_statement(statement)

    def check_annotations(self) -> None:
        for one in self.parameters:
            if one.annotation is not None and ast.unparse(one.annotation) not in ANNOTATIONS:
                what = "an annotation that a kernel's parameter cannot have"
                self.refuse(one.annotation, what, help=f"none, or {', '.join(sorted(ANNOTATIONS))}")
        if self.function.returns is not None and ast.unparse(self.function.returns) != "None":
            self.refuse(
                self.function.returns, "a kernel's return annotation can only be a name", help="`None`, or none"
            )

    def check_constants(self, unmarked: Mapping[str, str]) -> None:
        for node in ast.walk(self.function):
            if isinstance(node, ast.Name) and node.id in unmarked.keys() - self.locals:
                what = f"`{node.id}` is a plain number, which Triton's compiler refuses in a kernel"
                self.refuse(node, what, got=unmarked[node.id], help=f"{node.id} = tl.constexpr(number)")

    def check_statement(self, node: ast.stmt) -> None:
        """Check a statement with the statements inside it."""
        match node:
            case ast.Assign(targets=targets, value=value):
                if len(targets) > 1 and self.dialect == "triton.jit":
                    self.refuse(node, "Triton has no `a = b = …`", help="one assignment for each variable")
                for target in targets:
                    self.check_target(target)
                self.check_expression(value)
            case ast.AugAssign(target=target, value=value):
                self.check_target(target)
                self.check_expression(value)
            case ast.AnnAssign(target=ast.Name(), annotation=annotation, value=value) if value is not None:
                self.check_expression(annotation)
                self.check_expression(value)
            case ast.If(test=test, body=body, orelse=orelse) | ast.While(test=test, body=body, orelse=orelse):
                self.check_expression(test)
                self.check_block(body, orelse)
            case ast.For(target=ast.Name(), iter=ast.Call() as call, body=body, orelse=orelse):
                if ast.unparse(call.func) not in ("range", "tl.range", "tl.static_range"):
                    self.refuse(
                        call, "a loop of a kernel runs over a range", help="range(…), tl.range(…) or tl.static_range(…)"
                    )
                self.check_expression(call)
                self.check_block(body, orelse)
            case ast.For():
                self.refuse(
                    node, "a loop of a kernel runs one variable over a range", help="for i in range(start, end, step)"
                )
            case ast.Expr(value=ast.Constant()):
                pass  # a docstring
            case ast.Expr(value=ast.Call() as call):
                self.check_expression(call)
            case ast.Expr(value=ast.Name() | ast.Attribute() as value):
                self.refuse(node, f"`{ast.unparse(value)}` is not called", help=f"{ast.unparse(value)}()")
            case ast.Raise(exc=ast.Call(func=ast.Name("NotImplementedError"), args=[ast.Constant(str())], keywords=[])):
                pass  # the placeholder of an unwritten task
            case ast.Assert(test=test, msg=None | ast.Constant(str())) if self.dialect == "cuda.jit":
                self.check_expression(test)
            case ast.Return(value=value):
                if value is not None:
                    self.check_expression(value)
            case _ if not isinstance(node, SIMPLE):
                self.refuse(node, f"a kernel has no `{_describe_construct(node)}`")

    def check_block(self, *bodies: list[ast.stmt]) -> None:
        for body in bodies:
            for node in body:
                self.check_statement(node)

    def check_target(self, node: ast.expr) -> None:
        match node:
            case ast.Name():
                pass
            case ast.Tuple(elts=elements):
                for element in elements:
                    self.check_target(element)
            case ast.Subscript() if self.dialect == "triton.jit":
                self.refuse(node, "Triton stores to no element of a variable", help="tl.store, or a block by tl.where")
            case ast.Subscript(value=ast.Name() | ast.Subscript() as array, slice=index):
                self.check_expression(array)
                self.check_expression(index)
            case _:
                what = "a kernel stores to variables and to elements of arrays only"
                self.refuse(node, what, help="array[row, column] = value")

    def check_expression(self, node: ast.expr) -> None:
        match node:
            case ast.Constant(value=value):
                if isinstance(value, str | bytes | complex) or value is ...:
                    self.refuse(node, "a kernel computes with numbers only")
            case ast.Name(id=name):
                self.check_name(node, name)
            case ast.Attribute():
                self.check_attribute(node)
            case ast.Call(func=ast.Name("float"), args=[ast.Constant("inf" | "-inf" | "nan")], keywords=[]):
                pass
            case ast.Call(func=function, args=[test, ast.Constant(str())]) if ast.unparse(function) == STATIC_ASSERT:
                self.check_expression(test)
            case ast.Call(func=function, args=args, keywords=keywords):
                self.check_callee(function)
                for argument in args:
                    self.check_argument(argument)
                if keywords and isinstance(function, ast.Name) and function.id in BUILTINS:
                    self.refuse(keywords[0].value, f"`{function.id}` takes no keywords in a kernel")
                for keyword in keywords:
                    self.check_keyword(keyword)
            case ast.Subscript(value=value, slice=index):
                self.check_expression(value)
                self.check_expression(index)
            case ast.List():
                own = "cuda.shared.array(shape, float32) of a block, cuda.local.array(shape, float32) of a thread"
                own = own if self.dialect == "cuda.jit" else "a block, such as tl.zeros"
                self.refuse(node, "a kernel has no lists", help=own)
            case _ if isinstance(node, COMPOUND):
                for part in ast.iter_child_nodes(node):
                    if not isinstance(part, HARMLESS):
                        assert isinstance(part, ast.expr)
                        self.check_expression(part)
            case _:
                self.refuse(node, f"a kernel has no {_describe_construct(node)}")

    def check_argument(self, node: ast.expr) -> None:
        """Check an argument of a call: an expression, or a list that is a Triton shape."""
        for part in node.elts if isinstance(node, ast.List) and self.dialect == "triton.jit" else [node]:
            self.check_expression(part)

    def check_callee(self, node: ast.expr) -> None:
        """Check a callee: a function of the language or another kernel."""
        if not isinstance(node, ast.Name | ast.Attribute):
            self.refuse(node, "a kernel calls functions by their names")
        if isinstance(node, ast.Name) and node.id in self.locals:
            self.refuse(node, "a kernel calls other kernels and the functions of its language, no variables")
        self.check_expression(node)

    def check_keyword(self, node: ast.keyword) -> None:
        if node.arg is None:
            self.refuse(node.value, "a kernel writes its arguments out", "**")
        elif node.arg.startswith("_") or node.arg == "member":  # Triton's internal arguments
            self.refuse(node.value, f"`{node.arg}=` is no argument for a kernel to give")
        match node.value:
            case ast.Constant(str()):  # padding_option="zero"
                pass
            case ast.IfExp(test=test, body=ast.Constant(str()), orelse=ast.Constant(str())):
                self.check_expression(test)
            case argument:
                self.check_argument(argument)

    def check_name(self, node: ast.Name, name: str) -> None:
        """Check a plain name: local, from the kernel's module, or of the language."""
        if name not in self.locals | self.known | BUILTINS | NUMBER_TYPES:
            if name in self.others and not self.find_local_name(name):
                what = f"`{name}` is nothing that kernel `{self.function.name}` can use"
                self.refuse(node, what, got=self.others[name], help=NUMBERS_ONLY)
            advice = f"of Python's own functions it has {', '.join(sorted(BUILTINS))}"
            if name in PRINTERS:
                advice = PRINTS_NOTHING
            elif not hasattr(builtins, name):
                near = self.find_local_name(name) or did_you_mean(name, self.locals | self.known | BUILTINS)
                advice = near or "no parameter, variable, number or kernel of an exported cell has this name"
            raise KernelLanguageError(
                node.lineno, f"`{name}` is nothing that kernel `{self.function.name}` can use", help=advice
            )

    def check_attribute(self, node: ast.Attribute) -> None:
        """Check a dotted name: one of the language, or an attribute of a kernel value."""
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            root = root.value
        dotted = ast.unparse(node) if isinstance(root, ast.Name) else ""
        module, _, path = dotted.partition(".")
        if LIBDEVICE in dotted.split("."):
            what = "a kernel in these checks has no libdevice"
            self.refuse(node, what, got=dotted, help=MATHS[self.dialect])
        if self.dialect == "cuda.jit" and module not in self.locals | self.known and _is_number_type(module, path):
            return
        if module in MODULES:
            if module not in DIALECTS[self.dialect]:
                what = f"`{module}` is no part of a kernel under `@{self.dialect}`"
                self.refuse(node, what, help=self.find_local_name(node.attr))
            if path not in MODULES[module]:
                near = f"{module}.{node.attr}" if node.attr in MODULES[module] else did_you_mean(path, MODULES[module])
                what = f"`{dotted}` is not among what a kernel in these checks may use"
                self.refuse(node, what, help=REQUESTED.get(dotted, near))
        elif node.attr in NUMBER_TYPES and self.dialect == "cuda.jit":  # torch.float32
            self.refuse(node, f"a kernel calls `{ast.unparse(node)}` by another name", help=f"`{node.attr}` alone")
        elif node.attr not in ATTRIBUTES[self.dialect]:
            what = f"`.{node.attr}` is not among what a kernel in these checks may use"
            self.refuse(node, what, help=self.find_local_name(node.attr))
        else:
            near = self.find_local_name(node.attr)
            if near and isinstance(node.value, ast.Name) and node.value.id not in self.locals | self.known:  # torch.exp
                self.refuse(node, f"`{dotted}` is nothing that kernel `{self.function.name}` can use", help=near)
            self.check_expression(node.value)

    def find_local_name(self, name: str) -> str:
        """Translate a name of another module to this kernel's dialect; "" if there is none."""
        found = [f"{module}.{name}" for module in DIALECTS[self.dialect] if name in MODULES[module]]
        return found[0] if found else 'float("inf")' if name == "inf" else ""

    def refuse(self, node: ast.AST, what: str, got: object = None, help: str = "") -> None:
        line = getattr(node, "lineno", self.function.lineno)
        advice = help or f"kernel `{self.function.name}` may hold arithmetic, branches, loops, loads and stores"
        raise KernelLanguageError(line, what, got=got, help=advice)


def decorators(function: ast.FunctionDef) -> list[str]:
    """A function's decorators as dotted names."""
    return [ast.unparse(one.func if isinstance(one, ast.Call) else one) for one in function.decorator_list]


def _is_number_type(module: str, name: str) -> bool:
    """Whether a dotted name is one of Numba's names for a number type."""
    library = TYPES_OF.get(module)
    return library is not None and name in NUMBER_TYPES and (library, name) != ("numpy", "boolean")


def _is_store(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _describe_construct(node: ast.AST) -> str:
    """A syntax construct in a programmer's words, for messages."""
    names = {"JoinedStr": "f-string", "ListComp": "comprehension", "GeneratorExp": "generator", "NamedExpr": "`:=`"}
    kind = type(node).__name__
    return names.get(kind, kind.lower())
