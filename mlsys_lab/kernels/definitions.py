"""The kernels and constants in a module's text, separated from everything else in it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from mlsys_lab.kernels.language import KernelLanguageError, check_kernel, decorators
from mlsys_lab.kernels.vocabulary import BUILTINS, DIALECTS, MATH, RESERVED

OWN = "@cuda.jit or @triton.jit"
CONSTEXPR = "tl.constexpr"
SPOKEN = ("tl.", "cuda.grid", "cuda.threadIdx", "cuda.blockIdx", "cuda.blockDim", "cuda.shared", "cuda.syncthreads")
"""How a dotted name begins that only kernels use."""
MAKERS = ("int", "float", "abs", "min", "max")
"""Python's own functions that a module may make a constant with."""


@dataclass(frozen=True)
class Kernels:
    """The part of a module that is kernels: a syntax tree to compile, and the names that it defines.

    `refused` are names that it does not define, because they, or what they use, may not be run: each with the reason.
    """

    tree: ast.Module
    kernels: tuple[str, ...]
    constants: tuple[str, ...]
    refused: Mapping[str, KernelLanguageError]


def kernels_of(source: str, filename: str = "<kernels>", elsewhere: frozenset[str] = frozenset()) -> Kernels:
    """Find the kernels and number constants of a module's text and check every one; all else is left out, unrun.

    Of kernels with one name the last counts, and constants take one value after the other, as in all of Python.
    `elsewhere` names kernels and constants that stand in another text. Raises SyntaxError where the text is no Python.
    """
    tree = ast.parse(source, filename)
    refused: dict[str, KernelLanguageError] = {}
    functions: list[ast.FunctionDef] = []
    for node in {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}.values():
        try:
            functions += [_without_annotations(node)] if is_kernel(node) else []
        except KernelLanguageError as error:
            refused[node.name] = error
    constants = list(_constants(tree.body))
    names = [*(node.name for node in functions), *dict.fromkeys(name for name, _ in constants)]
    for name, times in Counter(names).items():
        if times > 1:
            what = f"`{name}` is a kernel and a number"
            refused[name] = KernelLanguageError(_last(tree, name), what, help="keep one of them")
        elif name in RESERVED or name.startswith("__"):
            what = f"`{name}` has a meaning of its own"
            refused[name] = KernelLanguageError(_last(tree, name), what, help="take another name")
    called = {name for function in functions for name in find_calls(function)}
    for node in (one for one in tree.body if isinstance(one, ast.FunctionDef) and not one.decorator_list):
        if (node.name in called or _speaks_as_kernel(node)) and node.name not in elsewhere.union(names):
            refused.setdefault(node.name, plain_function(node.name, node.lineno))
    known = elsewhere.union(names, refused)
    uses: dict[str, set[str]] = {name: set() for name in names}
    for name, given in constants:
        uses[name] |= {part.id for part in ast.walk(given.value) if isinstance(part, ast.Name)}
    for function in functions:
        try:
            uses[function.name] = check_kernel(function, known)
        except KernelLanguageError as error:
            refused.setdefault(function.name, error)
    _spread_refusals(refused, uses)
    numbers = [(name, node) for name, node in constants if name not in refused]
    kept = [node for node in functions if node.name not in refused]
    body: list[ast.stmt] = [*(node for _, node in numbers), *kept]
    defined = tuple(dict.fromkeys(name for name, _ in numbers))
    return Kernels(ast.Module(body, type_ignores=[]), tuple(f.name for f in kept), defined, refused)


def _without_annotations(function: ast.FunctionDef) -> ast.FunctionDef:
    """The kernel with no annotation but Triton's, which mean something; changes it in place.

    What an annotation stores to is no variable of the kernel: for one of Numba they are gone before names are checked.
    """
    if decorators(function)[0] == "cuda.jit":
        function.returns = None
        for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
            one.annotation = None
    return function


def _spread_refusals(refused: dict[str, KernelLanguageError], uses: Mapping[str, set[str]]) -> None:
    """Refuse every kernel that uses a refused one, for the reason of that one; changes `refused` in place."""
    left = {name: used for name, used in uses.items() if name not in refused}
    while spoilt := [name for name, used in left.items() if used & refused.keys()]:
        refused.update({name: refused[min(left.pop(name) & refused.keys())] for name in spoilt})


def plain_function(name: str, line: int) -> KernelLanguageError:
    """The error for a function that a launch or a kernel names and that no decorator makes a kernel."""
    return KernelLanguageError(line, f"`{name}` is a plain function, no kernel", help=f"{OWN} in the line above it")


def find_calls(tree: ast.AST) -> set[str]:
    """The names, without a dot, by which a text calls what is no function of Python's."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {function.id for function in calls if isinstance(function, ast.Name)} - BUILTINS


def is_kernel(function: ast.FunctionDef) -> bool:
    """Whether a decorator makes the function a kernel; raises KernelLanguageError if it has other decorators too."""
    dotted = decorators(function)
    if not any(name in DIALECTS for name in dotted):
        if strange := [name for name in dotted if name.startswith("triton.")]:
            what = f"`{function.name}` is no kernel without `@triton.jit`"
            raise KernelLanguageError(function.lineno, what, got=f"@{strange[0]}", help=f"{OWN} alone")
        if strange := [name for name in dotted if name == "jit" or name.endswith("cuda.jit")]:
            what = f"a kernel's decorator goes by another name than `@{strange[0]}`"
            raise KernelLanguageError(function.lineno, what, help="@cuda.jit or @triton.jit")
        return False
    if len(dotted) > 1:
        named = zip(dotted, function.decorator_list, strict=True)
        name, other = next(((name, one) for name, one in named if name not in DIALECTS), (dotted[1], function))
        what = f"`{function.name}` has a decorator beside the one that makes it a kernel"
        raise KernelLanguageError(other.lineno, what, got=f"@{name}", help=f"{OWN} alone: a check gives all constants")
    decorator = function.decorator_list[0]
    if isinstance(decorator, ast.Call) and not all(
        isinstance(value, ast.Constant) for value in [*decorator.args, *(k.value for k in decorator.keywords)]
    ):
        what = f"the decorator of `{function.name}` may hold constants only"
        raise KernelLanguageError(function.lineno, what, help=f"@{dotted[0]} alone, for instance")
    return True


def _speaks_as_kernel(function: ast.FunctionDef) -> bool:
    """Whether a function speaks as only kernels do: of `tl`, or of threads and blocks."""
    dotted = {ast.unparse(node) for node in ast.walk(function) if isinstance(node, ast.Attribute)}
    return any(name.startswith(SPOKEN) for name in dotted)


def _constants(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.Assign]]:
    """Yield (name, assignment) of `NAME = number`, and of what `_is_number` takes for one.

    Annotations are left out. `tl.constexpr(number)`, which Triton's compiler asks of a module's constants, is given as
    the number.
    """
    known: set[str] = set()
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name() as target], value=value):
                pass
            case ast.AnnAssign(target=ast.Name() as target, value=ast.expr() as value):
                pass
            case _:
                continue
        match value:
            case ast.Call(func=function, args=[inner], keywords=[]) if ast.unparse(function) == CONSTEXPR:
                value = inner
        if _is_number(value, known):
            known.add(target.id)
            yield target.id, ast.copy_location(ast.Assign([target], value), node)


def _is_number(node: ast.expr, known: Container[str]) -> bool:
    """Whether an expression is a number, or a tuple of them, by its text alone; `known` are names of such."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float)
        case ast.Name(id=name):
            return name in known
        case ast.Attribute(value=ast.Name("math"), attr="e" | "inf" | "nan" | "pi"):
            return True
        case ast.Call(func=ast.Name("float"), args=[ast.Constant("inf" | "-inf" | "nan")], keywords=[]):
            return True
        case ast.Call(func=ast.Name(name), args=args, keywords=[]):
            return name in MAKERS and all(_is_number(part, known) for part in args)
        case ast.Call(func=ast.Attribute(value=ast.Name("math"), attr=name), args=args, keywords=[]):
            return name in MATH and all(_is_number(part, known) for part in args)
        case ast.BinOp(left=left, right=right):
            return _is_number(left, known) and _is_number(right, known)
        case ast.UnaryOp(operand=operand):
            return _is_number(operand, known)
        case ast.Tuple(elts=parts):
            return all(_is_number(part, known) for part in parts)
    return False


def _last(tree: ast.Module, name: str) -> int:
    lines = [node.lineno for node in tree.body for part in ast.walk(node) if getattr(part, "name", None) == name]
    return max([*lines, *(node.lineno for constant, node in _constants(tree.body) if constant == name)])
