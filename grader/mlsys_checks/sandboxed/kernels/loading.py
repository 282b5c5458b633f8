"""Load only a learner's kernels: of the exported cells, nothing but what `kernels.definitions` accepts is run.

Where the tracer counts for marks, or a clock does, nothing else of a submission may have run in the process: it could
have replaced the tracer, or called a library for the timed work.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import importlib
import linecache
import math
import os
from collections.abc import Iterable, Iterator
from functools import partial
from types import FunctionType, ModuleType
from typing import Any, NoReturn

from mlsys_checks.sandboxed.kernels.definitions import Kernels, kernels_of
from mlsys_checks.sandboxed.kernels.vocabulary import BUILTINS, NUMBER_TYPES, TYPES_OF
from mlsys_lab.errors import MissingToolError
from mlsys_lab.kernels import triton_compile
from mlsys_lab.kernels.numba_compile import compiler_works
from mlsys_lab.kernels.runtime import load_numba, load_triton, triton_interprets
from mlsys_lab.kernels.trace import numba_turns
from mlsys_lab.kernels.trace.numba_functions import python_function
from mlsys_lab.stack.artifact import Artifact, ArtifactError
from mlsys_lab.stack.loading import ArtifactLoader, Lost, load

NOT_EXPORTED = "cell {} defines it and does not begin with `#| export`"


class KernelLoader(ArtifactLoader):
    """Loader that runs an artifact's kernels and number constants, and skips all other code."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the checked definitions in a module with only the names that kernels may use."""
        for cell, first in self.artifact.placed_cells():
            self.read_cell(cell, first)
        others = {name: NOT_EXPORTED.format(cell) for name, cell in self.artifact.elsewhere}
        kernels = kernels_of(self.get_source(module.__name__), self.filename, others)
        vars(module).update(_names(kernels), __getattr__=partial(self._raise_missing, kernels))
        self._run_cell([(node, self._compile(node)) for node in kernels.tree.body], vars(module))
        self._drop_dependents(vars(module), kernels.tree)
        linecache.lazycache(self.filename, vars(module))  # error messages find the line's text
        for kernel, checked in _kernels(module, kernels.tree):
            if not _is_triton(kernel):
                numba_turns.set_tree(python_function(kernel), checked)
                continue
            triton_compile.set_tree(kernel, checked)
            if triton_interprets():
                self._interpret(kernel, checked)
            else:
                _compile(kernel, checked, module, kernels.constants)

    def _drop_dependents(self, names: dict[str, Any], tree: ast.Module) -> None:
        """Remove kernels that use a failed constant or a removed kernel, for the same reason."""
        for lost in self.lost:  # the list grows
            for node in tree.body:
                used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
                missing = used & (lost.names - names.keys())
                if isinstance(node, ast.FunctionDef) and missing and names.pop(node.name, None):
                    self.lost.append(Lost(lost.error, frozenset({node.name})))

    def _interpret(self, kernel: Any, checked: ast.FunctionDef) -> None:
        """Make Triton's interpreter run exactly the checked source.

        It recompiles a kernel from source lines found by number, which may show other text: that of a docstring, or of
        a line break that only some tools count.
        """
        interpreter = importlib.import_module("triton.runtime.interpreter")
        if (function := _function_of(kernel)) is not None:
            rewriter = interpreter.FunctionRewriter(function)
            rewriter.filename = self.filename
            text = ast.fix_missing_locations(rewriter.ast_transformer.visit(ast.Module([checked], [])))
            interpreter.InterpretedFunction.rewritten_fn[function] = rewriter._compile_and_exec(text)

    def _raise_missing(self, kernels: Kernels, name: str) -> NoReturn:
        """Raise the error for a missing name: ArtifactError for a refused kernel, else AttributeError."""
        if (error := kernels.refused.get(name)) is None:
            raise AttributeError(f"{self.artifact.name} does not define {name!r}")
        raise ArtifactError(f"{error.what} ({self.artifact.where(error.line)})", got=error.got, help=error.help)


def load_kernels(artifact: Artifact) -> ModuleType:
    """The artifact's kernels and number constants as a module; nothing else of it runs.

    A cell with a syntax error is lost (`loading.find_lost`). Access to a kernel that violates the kernel language, or
    calls one that does, raises `ArtifactError` with cell and line.
    """
    return load(artifact, "learner_kernels", KernelLoader)


def _function_of(value: Any) -> FunctionType | None:
    """The Python function inside what `@cuda.jit`, `@triton.jit` or a decorator above it returned; else None."""
    inner = value
    while type(inner).__module__.partition(".")[0] in ("numba", "numba_cuda", "triton"):
        inner = getattr(inner, "py_func", None) or getattr(inner, "fn", None)
    return inner if inner is not value and isinstance(inner, FunctionType) else None


def _kernels(module: ModuleType, tree: ast.Module) -> Iterator[tuple[Any, ast.FunctionDef]]:
    """The kernels of a module, each with its checked source, without the decorator."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in vars(module):
            checked = copy.deepcopy(node)
            checked.decorator_list = []
            yield vars(module)[node.name], checked


def _is_triton(kernel: Any) -> bool:
    return type(kernel).__module__.startswith("triton.")


def _compile(kernel: Any, checked: ast.FunctionDef, module: ModuleType, constants: Iterable[str]) -> None:
    """Make Triton compile exactly the checked source, with the module's number constants as when interpreted.

    Triton would look up the source by line number, and rejects global numbers that are not marked as constants.
    """
    kernel._unsafe_update_src(ast.unparse(checked))
    constexpr = vars(module)["tl"].constexpr
    for name in {node.id for node in ast.walk(checked) if isinstance(node, ast.Name)}.intersection(constants):
        if not isinstance(vars(module)[name], constexpr):
            vars(module)[name] = constexpr(vars(module)[name])


def import_interpreters() -> None:
    """Import the libraries that run and compile kernels without a GPU.

    Calls no driver and starts no thread, so forking stays safe.
    """
    os.environ.update(TRITON_INTERPRET="1", NUMBA_ENABLE_CUDASIM="1")
    for load_one in (load_numba, load_triton, compiler_works):
        with contextlib.suppress(MissingToolError):
            load_one()


def _names(kernels: Kernels) -> dict[str, Any]:
    """Names available to a module of kernels; imports Numba and Triton only if a kernel needs them."""
    known = [*BUILTINS, NotImplementedError.__name__]
    found: dict[str, Any] = {"__builtins__": {name: getattr(builtins, name) for name in known}, "math": math}
    used = {node.id for node in ast.walk(kernels.tree) if isinstance(node, ast.Name)}
    if "cuda" in used:
        found["cuda"] = load_numba()
        from numba import types

        found.update({name: getattr(types, name) for name in NUMBER_TYPES})
        found.update({name: importlib.import_module(TYPES_OF[name]) for name in used & TYPES_OF.keys()})
    if "triton" in used:
        found["triton"], found["tl"] = load_triton()
    return found
