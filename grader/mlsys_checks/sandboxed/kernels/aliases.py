"""Aliases of kernel modules: `import triton as tr` makes `@tr.jit` the same as `@triton.jit`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from mlsys_checks.sandboxed.kernels.vocabulary import MODULES

OWN_NAMES = {
    "mlsys_lab.kernels.numba_language.cuda": "cuda",
    "mlsys_lab.kernels.triton_language.triton": "triton",
    "mlsys_lab.kernels.triton_language.tl": "tl",
    "numba.cuda": "cuda",
    "numba.types": "types",
    "triton.language": "tl",
}
"""Canonical names of modules that kernels import under another path."""
LIBRARIES = frozenset([*MODULES, "triton", "numpy", "numba", "types"])
"""Modules that a kernel may call by an alias."""
LIBDEVICE = "libdevice"


def call_by_own_name(path: str) -> str:
    """Canonical form of a dotted path.

    >>> call_by_own_name("numba.cuda.jit"), call_by_own_name("triton.language"), call_by_own_name("math.exp")
    ('cuda.jit', 'tl', 'math.exp')
    """
    for place, name in OWN_NAMES.items():
        if f"{path}.".startswith(f"{place}."):
            return name + path.removeprefix(place)
    return path


def find_aliases(body: Iterable[ast.stmt]) -> dict[str, str]:
    """What the imports of a text, and plain assignments of what they import, make names stand for, by dotted paths.

    >>> find_aliases(ast.parse("import triton as tr, numba.cuda\\nfrom numba import cuda as c\\nj = c.jit").body)
    {'tr': 'triton', 'numba': 'numba', 'c': 'cuda', 'j': 'cuda.jit'}
    """
    found: dict[str, str] = {}
    top = list(body)
    for node in walk_top_level(top):
        match node:
            case ast.Import(names=names):
                for one in names:
                    whole = one.name if one.asname else one.name.partition(".")[0]
                    found[one.asname or whole] = call_by_own_name(whole)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                found.update({one.asname or one.name: call_by_own_name(f"{module}.{one.name}") for one in names})
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if _root(value) in found:
                    found[name] = resolve(value, found)
                elif node in top:  # `except ImportError: name = None` takes no name away
                    found.pop(name, None)
    return found


def walk_top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module in order, including those in `if`, `try`, `with` and loops, but not in functions."""
    for node in body:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for part in ast.iter_child_nodes(node):
                if isinstance(part, ast.stmt):
                    yield from walk_top_level([part])
                elif isinstance(part, ast.ExceptHandler | ast.match_case):
                    yield from walk_top_level(part.body)


def resolve(node: ast.expr, aliases: Mapping[str, str]) -> str:
    """The canonical dotted path of an expression; for anything but a dotted name, its text."""
    text, root = ast.unparse(node), _root(node)
    return call_by_own_name(aliases[root] + text.removeprefix(root)) if root in aliases else call_by_own_name(text)


def use_own_names(function: ast.FunctionDef, aliases: Mapping[str, str]) -> None:
    """Rename modules and decorators of a kernel to their canonical names, in place."""
    function.decorator_list = [_rename(one, aliases) for one in function.decorator_list]
    stored = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    mine = stored | {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    rename_modules(function, {name: path for name, path in aliases.items() if name not in mine})


def rename_modules(tree: ast.AST, aliases: Mapping[str, str]) -> None:
    """Rename the kernel modules in a tree to their canonical names, in place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            path = aliases.get(node.id, node.id)
            if path in LIBRARIES:
                node.id = path
            elif LIBDEVICE in path.split("."):
                node.id = LIBDEVICE


def _rename(decorator: ast.expr, aliases: Mapping[str, str]) -> ast.expr:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    if not _root(called):
        return decorator
    renamed = ast.copy_location(ast.parse(resolve(called, aliases), mode="eval").body, called)
    for node in ast.walk(renamed):
        ast.copy_location(node, called)
    if isinstance(decorator, ast.Call):
        decorator.func = renamed
        return decorator
    return renamed


def _root(node: ast.expr) -> str:
    """The first name of a dotted name; "" for any other expression."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
