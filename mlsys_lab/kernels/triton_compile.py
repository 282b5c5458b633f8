"""Check whether Triton's compiler accepts a kernel for an H100, on any machine, even if kernels are interpreted.

Only the compiler's front end runs, which rejects code that the interpreter accepts: a variable that changes its type in
a loop, an `if` on a block, a name that only one branch defines. It takes some hundredths of a second. What may fail
behind it (shared memory that does not suffice, say) depends on sizes of launches that are real.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import importlib
import inspect
import linecache
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.runtime import load_triton
from mlsys_lab.kernels.trace.cells import locate_in_cell
from mlsys_lab.kernels.trace.events import Site
from mlsys_lab.kernels.triton_members import Members, original_members, read_members, restore_members

ARCHITECTURE = 90
"""Compute capability of an H100, times 10."""
NUMBERS = (int, float, tuple)
"""What a kernel's module may hold as a constant."""

_trees: WeakKeyDictionary[FunctionType, ast.FunctionDef] = WeakKeyDictionary()
_accepted: dict[tuple[Any, ...], str] = {}


def set_tree(kernel: Any, tree: ast.FunctionDef) -> None:
    """Register a kernel's syntax tree, with its file's line numbers; otherwise its source is read from the file."""
    _trees[kernel.fn] = copy.deepcopy(tree)


def check_compiles(kernel: Any, *args: Any, **constants: Any) -> str:
    """Return Triton's IR of a launch; raise InputError if Triton rejects it, with the source line and Triton's reason.

    `kernel` is a function under `@triton.jit`, compiled or interpreted; `args` and `constants` are those of a launch,
    of which types count and constants, not the numbers. What was accepted once is not compiled again.
    """
    load_triton()
    signature = inspect.signature(kernel.fn)
    given = signature.bind(*args, **constants)
    given.apply_defaults()
    types, fixed = _types(signature, given.arguments)
    key = (*_parts(kernel.fn), *types.items(), *fixed.items())
    if key not in _accepted:
        _accepted[key] = _compile(_Copies(kernel.fn), types, fixed)
    return _accepted[key]


def _parts(function: FunctionType) -> Iterator[Any]:
    """Everything that a kernel is made of: itself, the kernels that it calls, and the constants of both."""
    waiting, found = [function], set[FunctionType]()
    while waiting:
        if (one := waiting.pop()) not in found:
            found.add(one)
            yield one
            used = {name: one.__globals__[name] for name in one.__code__.co_names if name in one.__globals__}
            waiting += [value.fn for value in used.values() if _is_kernel(value)]
            constants = (*NUMBERS, importlib.import_module("triton.language").constexpr)
            yield from ((name, repr(value)) for name, value in used.items() if isinstance(value, constants))


class _Copies:
    """A kernel and all that it calls, as functions for the compiler with globals of their own."""

    def __init__(self, function: FunctionType) -> None:
        self._made: dict[FunctionType, Any] = {}
        self._functions: dict[str, FunctionType] = {}  # by the text that the compiler is given
        self.kernel = self._make(function)

    def site(self, text: str, line: int) -> Site | None:
        """Where a line of a text stands; None for a text that is not of these kernels."""
        if (function := self._functions.get(text)) is None:
            return None
        file = function.__code__.co_filename
        site = Site(file, line, linecache.getline(file, line).strip())
        return locate_in_cell(site, function.__globals__.get("__loader__"))

    def _make(self, function: FunctionType) -> Any:
        if function in self._made:
            return self._made[function]
        tree = _tree_of(function)
        names: dict[str, Any] = {"__name__": function.__module__}
        jit = importlib.import_module("triton.runtime.jit").JITFunction
        made = self._made[function] = jit(_define(ast.unparse(tree), names, function))
        made.parse = lambda: ast.Module([copy.deepcopy(tree)], [])
        self._functions[made.src] = function
        for name in {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & function.__globals__.keys():
            names[name] = self._translate(function.__globals__[name])
        return made

    def _translate(self, value: Any) -> Any:
        """A global of a kernel as the compiler takes it; numbers have to be marked as constant."""
        if _is_kernel(value):
            return self._make(value.fn)
        return importlib.import_module("triton.language").constexpr(value) if isinstance(value, NUMBERS) else value


def _is_kernel(value: Any) -> bool:
    return type(value).__module__.startswith("triton.") and isinstance(getattr(value, "fn", None), FunctionType)


def _tree_of(function: FunctionType) -> ast.FunctionDef:
    """A kernel's definition without its decorators, with the line numbers of its file."""
    if (known := _trees.get(function)) is not None:
        return known
    lines, first = inspect.getsourcelines(function)
    (tree,) = ast.parse(textwrap.dedent("".join(lines))).body
    assert isinstance(tree, ast.FunctionDef)
    tree.decorator_list = []
    ast.increment_lineno(tree, first - 1)
    return tree


def _define(text: str, names: dict[str, Any], function: FunctionType) -> FunctionType:
    """Define the function of a text, whose globals are `names`; Triton finds the text as that of a file."""
    file = f"<compiled {hashlib.sha256(text.encode()).hexdigest()}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), {**function.__globals__}, found := dict[str, Any]())
    made = found[function.__name__]
    defined = FunctionType(made.__code__, names, made.__name__, made.__defaults__)
    defined.__kwdefaults__, defined.__annotations__ = made.__kwdefaults__, made.__annotations__
    return defined


def _types(signature: inspect.Signature, given: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Types of a launch's arguments by Triton's names, and the values of its constants."""
    parameters = signature.parameters
    fixed = {name: value for name, value in given.items() if "constexpr" in str(parameters[name].annotation)}
    types = {name: "constexpr" if name in fixed else _type(parameters[name], value) for name, value in given.items()}
    return types, fixed


def _type(parameter: inspect.Parameter, value: Any) -> str:
    """Type of an argument by Triton's name: what its parameter's annotation says, which must be possible."""
    jit = importlib.import_module("triton.runtime.jit")
    own: str = jit.mangle_type(value)
    annotated: str = jit.KernelParam(0, parameter, False, False).annotation_type or own
    if annotated != own and (own.startswith("*") or (own.startswith("fp") and annotated[0] in "iu")):
        what = f"parameter `{parameter.name}` is annotated with a type that its argument does not have"
        raise InputError(what, got=annotated, expected=f"{own}, or no annotation")
    return annotated


def _compile(copies: _Copies, types: dict[str, str], fixed: dict[str, Any]) -> str:
    compiler = importlib.import_module("triton.compiler.compiler")
    errors = importlib.import_module("triton.compiler.errors")
    ir = importlib.import_module("triton._C.libtriton").ir
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", ARCHITECTURE, 32)
    backend, context = compiler.make_backend(target), ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source = compiler.ASTSource(copies.kernel, types, fixed, {})
    with _compiler_members(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = backend.parse_options({})
        functions, modules = backend.get_codegen_implementation(options), backend.get_module_map()
        try:
            return str(source.make_ir(target, options, functions, modules, context))
        except errors.CompilationError as error:
            raise _explain(copies, error) from None


def _explain(copies: _Copies, error: Any) -> InputError:
    """The error for what Triton refuses: the innermost line of the kernels, and the innermost message."""
    cause, site, said = error, None, ""
    while cause is not None:
        if (text := getattr(cause, "src", None)) is not None:
            site = copies.site(text, cause.node.lineno) or site
        said = getattr(cause, "error_message", str(cause) or type(cause).__name__) or said
        cause = cause.__cause__
    at = f" at {site}" if site else ""
    return InputError(
        f"Triton refuses to compile `{copies.kernel.__name__}` for a GPU{at}",
        got=" ".join(said.split()),
        expected="what the compiler takes, not the interpreter alone",
    )


@contextmanager
def _compiler_members() -> Iterator[None]:
    """Let Triton's language be as the compiler needs it, wherever it was imported to interpret."""
    triton = importlib.import_module("triton")
    before = read_members()
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = False
        restore_members(_members_to_compile())
        try:
            yield
        finally:
            restore_members(before)


@cache
def _members_to_compile() -> Members:
    """The language's members, with functions for the compiler in place of interpreted ones."""
    tl = importlib.import_module("triton.language")
    jit = importlib.import_module("triton.runtime.jit").JITFunction
    interpreted = importlib.import_module("triton.runtime.interpreter").InterpretedFunction
    originals = original_members()
    values = (value for _, members in originals for value in members.values())
    made = {value: jit(value.fn) for value in values if isinstance(value, interpreted)}
    methods = {value.fn.__name__: new for value, new in made.items()}
    found = []
    for place, members in originals:
        own = {
            name: made.get(value, value) if isinstance(value, interpreted) else value for name, value in members.items()
        }
        if place is tl.tensor:  # x.sum() forwards to tl.sum(x)
            own |= {name: methods[name] for name in own.keys() & methods.keys() if not tl.core.is_builtin(own[name])}
        found.append((place, own))
    return tuple(found)
