"""Extract the kernels and constants of a module's source; nothing is run."""

from __future__ import annotations

import ast
import copy
import textwrap
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from mlsys_checks.sandboxed.kernels.aliases import (
    LIBRARIES,
    find_aliases,
    rename_modules,
    resolve,
    use_own_names,
    walk_top_level,
)
from mlsys_checks.sandboxed.kernels.language import NUMBERS_ONLY, KernelLanguageError, check_kernel, decorators
from mlsys_checks.sandboxed.kernels.vocabulary import ANNOTATIONS, DIALECTS, MATH, RESERVED, TYPE_WORD, TYPES_OF

KERNEL_DECORATORS = "@cuda.jit or @triton.jit"
NOT_A_DEFINITION = "`{}` is neither a kernel nor a number by its text"
WHAT_COUNTS = f"a kernel is a `def` under {KERNEL_DECORATORS}; {NUMBERS_ONLY}"
CONSTEXPR = "tl.constexpr"
MAKERS = ("int", "float", "abs", "min", "max")
"""Built-in functions that a constant may use."""
MAX_STATEMENT = 80
"""Characters of a statement that a message shows."""


@dataclass(frozen=True)
class Kernels:
    """The kernels of a module: a syntax tree to compile, and the names that it defines.

    `refused` maps names that must not run, directly or through what they use, to the reason.
    """

    tree: ast.Module
    kernels: tuple[str, ...]
    constants: tuple[str, ...]
    refused: Mapping[str, KernelLanguageError]


def kernels_of(source: str, filename: str = "<kernels>", others: Mapping[str, str] | None = None) -> Kernels:
    """Find and check the kernels and number constants in a source; everything else is ignored, unrun.

    As in Python, the last kernel of a name counts, and constants take their values in order. A kernel decorator may
    have any imported alias. `others` maps names from elsewhere that kernels cannot use to what they are. Raises
    SyntaxError for invalid Python.
    """
    tree = ast.parse(source, filename)
    aliases = find_aliases(tree.body)
    refused: dict[str, KernelLanguageError] = {}
    functions: list[ast.FunctionDef] = []
    plain: list[tuple[ast.FunctionDef, str]] = []
    for node in {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}.values():
        written = (decorators(node) or [""])[0]
        use_own_names(node, aliases)
        try:
            if is_kernel(node):
                functions.append(_with_plain_annotations(node, aliases))
            else:
                plain.append((node, written))
        except KernelLanguageError as error:
            refused[node.name] = error
    constants = list(_constants(tree.body))
    unmarked = _unmarked(tree.body, frozenset(name for name, _ in constants))
    names = [*(node.name for node in functions), *dict.fromkeys(name for name, _ in constants)]
    for name, times in Counter(names).items():
        if times > 1:
            what = f"`{name}` is a kernel and a number"
            refused[name] = KernelLanguageError(_last(tree, name), what, help="keep one of them")
        elif name in RESERVED or name.startswith("__"):
            what = f"`{name}` has a meaning of its own"
            refused[name] = KernelLanguageError(_last(tree, name), what, help="take another name")
    for node, written in plain:
        if node.name not in names:
            refused.setdefault(node.name, _no_decorator_error(node, written, aliases))
    known = frozenset({*names, *refused})
    bound = {name: node for name, node in _bindings(tree.body) if name not in known}
    others = {**(others or {}), **{name: _describe(node) for name, node in bound.items()}}
    uses: dict[str, set[str]] = {name: set() for name in names}
    for name, given in constants:
        uses[name] |= {part.id for part in ast.walk(given.value) if isinstance(part, ast.Name)}
    for function in functions:
        try:
            uses[function.name] = check_kernel(function, known, others, unmarked)
        except KernelLanguageError as error:
            refused.setdefault(function.name, error)
    _refuse_dependents(refused, uses)
    numbers = [(name, node) for name, node in constants if name not in refused]
    kept = [node for node in functions if node.name not in refused]
    body: list[ast.stmt] = [*(node for _, node in numbers), *kept]
    defined = tuple(dict.fromkeys(name for name, _ in numbers))
    for name, statement in bound.items():
        refused.setdefault(name, _no_kernel_error(name, statement))
    return Kernels(ast.Module(body, type_ignores=[]), tuple(f.name for f in kept), defined, refused)


def _with_plain_annotations(function: ast.FunctionDef, aliases: Mapping[str, str]) -> ast.FunctionDef:
    """Drop annotations that mean nothing to Triton, in place.

    A name used only in an annotation is no variable of the kernel: for Numba annotations go before names are checked.
    """
    is_triton = decorators(function)[0] == "triton.jit"
    if not is_triton or (function.returns and _is_plain(_annotation_text(function.returns, aliases))):
        function.returns = None
    for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
        one.annotation = _for_triton(one.annotation, aliases) if is_triton and one.annotation else None
    return function


def _for_triton(node: ast.expr, aliases: Mapping[str, str]) -> ast.expr | None:
    """A parameter's annotation in Triton's terms; None for a name that Triton ignores, such as `torch.Tensor`.

    Anything else stays, to be refused.
    """
    text = _annotation_text(node, aliases)
    if text in ANNOTATIONS:
        written = ast.parse(text, mode="eval").body
        for part in ast.walk(written):
            ast.copy_location(part, node)
        return written
    return None if _is_plain(text) and not TYPE_WORD.search(text) else node


def _annotation_text(node: ast.expr, aliases: Mapping[str, str]) -> str:
    """What an annotation names, in canonical form; a string annotation stands for its content."""
    return str(node.value) if isinstance(node, ast.Constant) else resolve(node, aliases)


def _is_plain(text: str) -> bool:
    """Whether an annotation is a name, possibly dotted."""
    return all(word.isidentifier() for word in text.split("."))


def _refuse_dependents(refused: dict[str, KernelLanguageError], uses: Mapping[str, set[str]]) -> None:
    """Refuse every kernel that uses a refused one, for the same reason; changes `refused` in place."""
    left = {name: used for name, used in uses.items() if name not in refused}
    while spoilt := [name for name, used in left.items() if used & refused.keys()]:
        refused.update({name: refused[min(left.pop(name) & refused.keys())] for name in spoilt})


def _no_decorator_error(function: ast.FunctionDef, written: str, aliases: Mapping[str, str]) -> KernelLanguageError:
    """The error for a function that is used as a kernel but has no kernel decorator.

    written: its decorator in the source, "" for none; `aliases` are imported names, and a decorator that is none of
    them is reported as such.
    """
    name = function.name
    if not written:
        what = f"`{name}` is a plain function, no kernel"
        return KernelLanguageError(function.lineno, what, help=f"{KERNEL_DECORATORS} in the line above it")
    line, root = function.decorator_list[0].lineno, written.partition(".")[0]
    if written.endswith("jit") and root not in aliases and root not in LIBRARIES:
        what = f"no exported cell imports `{root}`, by which `{name}` is to be a kernel"
        return KernelLanguageError(line, what, got=f"@{written}", help=f"import it there, or {KERNEL_DECORATORS}")
    for_cpu = decorators(function)[0].startswith("numba.")
    why = "compiles for a CPU" if for_cpu else "is none of the decorators that make one"
    return KernelLanguageError(line, f"`{name}` is no kernel: `@{written}` {why}", help=KERNEL_DECORATORS)


def is_kernel(function: ast.FunctionDef) -> bool:
    """Whether a function has a kernel decorator; raises KernelLanguageError if it has others too."""
    dotted = decorators(function)
    if not any(name in DIALECTS for name in dotted):
        if strange := [name for name in dotted if name.startswith("triton.")]:
            what = f"`{function.name}` is no kernel without `@triton.jit`"
            raise KernelLanguageError(function.lineno, what, got=f"@{strange[0]}", help=f"{KERNEL_DECORATORS} alone")
        return False
    if len(dotted) > 1:
        named = zip(dotted, function.decorator_list, strict=True)
        name, other = next(((name, one) for name, one in named if name not in DIALECTS), (dotted[1], function))
        what = f"`{function.name}` has a decorator beside the one that makes it a kernel"
        raise KernelLanguageError(
            other.lineno, what, got=f"@{name}", help=f"{KERNEL_DECORATORS} alone: a check gives all constants"
        )
    decorator = function.decorator_list[0]
    if isinstance(decorator, ast.Call) and not all(
        isinstance(value, ast.Constant) for value in [*decorator.args, *(k.value for k in decorator.keywords)]
    ):
        what = f"the decorator of `{function.name}` may hold constants only"
        raise KernelLanguageError(function.lineno, what, help=f"@{dotted[0]} alone, for instance")
    return True


def _bindings(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield each name bound outside functions with its last statement, except top-level functions and imports."""
    top = list(body)
    for node in walk_top_level(top):
        match node:
            case ast.FunctionDef(name=name) if node not in top:
                yield name, node
            case ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node
            case ast.ImportFrom(names=names):
                called = (one.asname or one.name for one in names)
                yield from ((name, node) for name in called if name not in LIBRARIES and name not in TYPES_OF)
            case ast.Assign(targets=targets):
                stored = (part for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
                yield from ((part.id, node) for part in stored if isinstance(part.ctx, ast.Store))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                yield name, node


def _describe(node: ast.stmt) -> str:
    """A binding statement in one line between backticks."""
    return f"`{textwrap.shorten(ast.unparse(node).splitlines()[0], MAX_STATEMENT, placeholder=' …')}`"


def _no_kernel_error(name: str, node: ast.stmt) -> KernelLanguageError:
    """The error for a name that a launch uses and that is bound to something else than a kernel or number."""
    match node:
        case ast.FunctionDef():
            what, help = (
                f"`{name}` is defined inside of another statement",
                "define kernels at the left margin of a cell",
            )
        case ast.Assign(value=ast.Name(id=other)):
            what, help = f"`{name}` is another name of `{other}`", f"define the kernel itself as `{name}`"
        case ast.ImportFrom():
            what, help = f"`{name}` is imported", "write it in an exported cell"
        case ast.Assign() | ast.AnnAssign():
            what, help = NOT_A_DEFINITION.format(name), WHAT_COUNTS
        case _:
            what, help = f"`{name}` is no kernel", f"a kernel is a `def` under {KERNEL_DECORATORS}"
    return KernelLanguageError(node.lineno, what, help=help)


def _constants(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.Assign]]:
    """Yield (name, assignment) for each `NAME = number` as `_is_number` defines it.

    Annotations are dropped. `tl.constexpr(number)`, which Triton's compiler requires for globals, becomes the number;
    `math` may have any alias.
    """
    statements = list(body)
    aliases, known = find_aliases(statements), set[str]()
    for node in statements:
        match node:
            case ast.Assign(targets=[ast.Name() as target], value=value):
                pass
            case ast.AnnAssign(target=ast.Name() as target, value=ast.expr() as value):
                pass
            case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=right):
                value = ast.copy_location(ast.BinOp(ast.Name(name, ast.Load()), op, right), node)
                ast.fix_missing_locations(value)
            case _:
                continue
        match value:
            case ast.Call(func=function, args=[inner], keywords=[]) if ast.unparse(function) == CONSTEXPR:
                value = inner
        value = copy.deepcopy(value)
        rename_modules(value, aliases)
        if _is_number(value, known):
            known.add(target.id)
            yield target.id, ast.copy_location(ast.Assign([target], value), node)


def _unmarked(body: Iterable[ast.stmt], constants: Container[str]) -> dict[str, str]:
    """Those of the constants that are plain numbers, which Triton's compiler refuses in a kernel, with their text.

    A constant is marked by `tl.constexpr(number)`, or computed from one that is.
    """
    found: dict[str, str] = {}
    marked = {CONSTEXPR}
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                parts = ast.walk(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                parts = ast.walk(value)
            case ast.AugAssign(target=ast.Name(id=name)):
                parts = ast.walk(node)
            case _:
                continue
        if any(ast.unparse(part) in marked for part in parts if isinstance(part, ast.Name | ast.Attribute)):
            marked.add(name)
            found.pop(name, None)
        elif name in constants:
            marked.discard(name)
            found[name] = _describe(node)
    return found


def _is_number(node: ast.expr, known: Container[str]) -> bool:
    """Whether an expression is a number or a tuple of them, judged by its text; `known` are names of constants."""
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
