"""Exported cells run as one module, statement after statement; one that fails costs what it defines."""

from __future__ import annotations
import __future__

import ast
import copy
import importlib.abc
import importlib.util
import inspect
import linecache
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from math import inf
from types import CodeType, ModuleType
from typing import Any, NoReturn

from mlsys_lab.errors import UnfinishedError
from mlsys_lab.stack.artifact import Artifact, ArtifactError, Cell, Place
from mlsys_lab.stack.cells import UNREADABLE, find_names, make_readable, split_statement
from mlsys_lab.stack.commands import display, get_ipython, strip_commands
from mlsys_lab.stack.limits import OutOfTimeError, time_limit
from mlsys_lab.stack.names import guess_names

LONGEST_TEXT = 300
"""Characters of an exception's text that are shown at most."""
AWAITING = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
"""How cells are compiled: with `await` outside of functions."""
UNANNOTATED = AWAITING | __future__.annotations.compiler_flag
"""How they are where an annotation fails: as text, since it may name what a cell imports that is not exported."""
ANNOTATED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.AnnAssign)
"""Statements that may hold annotations at their top level."""
LEAST_S = 0.05
"""Seconds of processor time that a statement has at least: most are definitions, and take microseconds."""


@dataclass(frozen=True)
class Lost:
    """Code that did not run: why, by cell and line, and the names that it would have defined.

    `is_readable`: it is Python; if not, it is a whole cell and its names are a guess.
    """

    error: ArtifactError | UnfinishedError
    names: frozenset[str]
    is_readable: bool = True


class ArtifactLoader(importlib.abc.InspectLoader):
    """Import machinery for an artifact, so that tracebacks and `inspect.getsource` find the learner's lines.

    `lost` holds the statements that failed, and the cells that are no Python. With a limit, a statement has half of the
    processor time that is left of it: one that does not end costs what it defines, too. `endless` holds the numbers of
    such statements, counted from the first cell's first; those that are known from an earlier run are skipped.
    """

    def __init__(self, artifact: Artifact, limit_s: float = inf, endless: Iterable[int] = ()) -> None:
        self.artifact = artifact
        self.filename = f"{artifact.name} (exported cells)"
        self.lost: list[Lost] = []
        self.endless = set(endless)
        self._count = 0
        self._end_s = time.process_time() + limit_s
        self._wait_for: Callable[[Coroutine[Any, Any, None]], None] | None = None

    def get_source(self, fullname: str) -> str:
        """Text of the module, line by line that of the artifact, without notebook commands and what is no Python."""
        return Artifact(self.artifact.name, tuple(map(make_readable, self.artifact.cells))).source

    def exec_module(self, module: ModuleType) -> None:
        """Run cell after cell, statement after statement."""
        vars(module).update(display=display, get_ipython=get_ipython)
        with ExitStack() as self._loops:
            for cell, first in self.artifact.placed_cells():
                self._run_cell(self.read_cell(cell, first), vars(module))

    def read_cell(self, cell: Cell, first: int) -> list[tuple[ast.stmt, CodeType]]:
        """Compile a cell that begins at a line of the module; nothing of one that is no Python, which is lost."""
        try:
            tree = ast.parse("\n" * (first - 1) + strip_commands(cell.source))
            return [(node, self._compile(node)) for statement in tree.body for node in split_statement(statement)]
        except UNREADABLE as error:
            names = frozenset(guess_names(cell.source))
            self.lost.append(Lost(_describe_unreadable(self.artifact, cell, first, error), names, False))
            return []

    def _compile(self, statement: ast.stmt, flags: int = AWAITING) -> CodeType:
        code: CodeType = compile(ast.Module([statement], []), self.filename, "exec", flags, dont_inherit=True)
        return code

    def _run_cell(self, statements: list[tuple[ast.stmt, CodeType]], names: dict[str, Any]) -> None:
        """Run a cell: a statement that fails costs the names that it defines, and those below it run all the same.

        It may fail here only, where there is no Drive, no keyboard and no GPU. What is raised on purpose ends the cell.
        """
        first, self._count = self._count, self._count + len(statements)
        for done, (statement, code) in enumerate(statements):
            try:
                try:
                    self._run(code, names, first + done)
                except Exception:
                    if not isinstance(statement, ANNOTATED) or first + done in self.endless:
                        raise
                    self._run(self._compile(_leave_out_absent(statement, names), UNANNOTATED), names, first + done)
            except (KeyboardInterrupt, OutOfTimeError):
                raise
            except BaseException as error:  # pytest's `skip` and `fail` are no `Exception`
                defined = find_names([statement])
                if isinstance(error, ImportError) and isinstance(statement, ast.Import | ast.ImportFrom):
                    names.update({name: Absent(error) for name in defined if name not in names})
                    continue
                is_meant = not isinstance(error, Exception) or isinstance(statement, ast.Raise)
                left = find_names([node for node, _ in statements[done:]]) if is_meant else defined
                self.lost.append(Lost(self._describe_stop(error, statement), left))
                if is_meant:
                    return

    def _run(self, code: CodeType, names: dict[str, Any], number: int) -> None:
        if number in self.endless:
            raise TimeoutError("it did not end when it was run before")
        left_s = self._end_s - time.process_time()
        try:
            with time_limit(max(left_s / 2, LEAST_S), patience=inf) if left_s < inf else nullcontext():
                awaited = eval(code, names)
                if code.co_flags & inspect.CO_COROUTINE:
                    self._await(awaited)
        except OutOfTimeError as error:
            if left_s == inf:  # it is not this limit that has passed
                raise
            self.endless.add(number)
            raise TimeoutError(str(error)).with_traceback(error.__traceback__) from None

    def _await(self, awaited: Coroutine[Any, Any, None]) -> None:
        """Run a statement that awaits, in one event loop for all cells; most need none.

        The loop has a thread of its own: where a notebook loads an artifact, a loop runs in the main thread already.
        """
        if self._wait_for is None:
            import asyncio
            from concurrent.futures import ThreadPoolExecutor

            thread, runner = self._loops.enter_context(ThreadPoolExecutor(1)), asyncio.Runner()
            self._loops.callback(lambda: thread.submit(runner.close).result())
            self._wait_for = lambda statement: thread.submit(runner.run, statement).result()
        self._wait_for(awaited)

    def _describe_stop(self, error: BaseException, statement: ast.stmt) -> ArtifactError | UnfinishedError:
        place = _find_place(error) or self.artifact.where(statement.lineno)
        if isinstance(error, NotImplementedError | UnfinishedError):
            return UnfinishedError(f"a task that runs on import is not written yet: {place or self.artifact.name}")
        cause = find_cause(error)
        help = "exported cells must run on their own, top to bottom, with nothing from the other cells"
        if isinstance(error, ImportError):
            help = "what is graded can use only packages that the course installs"
        return ArtifactError(
            f"{self.artifact.name}: {place or 'an exported cell'} fails when the exported cells run by themselves",
            got=f"{describe(error)} ({cause.what})" if cause else describe(error),
            help=help,
        )

    def find_lost(self, names: Iterable[str | None]) -> ArtifactError | UnfinishedError | None:
        """Find the error of the last code lost that would have defined one of `names`; None where there is none."""
        return next((lost.error for lost in reversed(self.lost) if lost.names.intersection(names)), None)


class Absent:
    """Stand-in for a name that could not be imported: raises the error of its import once it is used."""

    def __init__(self, error: ImportError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._error

    def __call__(self, *arguments: object, **options: object) -> NoReturn:
        """Raise the error of the import."""
        raise self._error


def load(
    artifact: Artifact,
    module_name: str = "learner_artifact",
    loader_of: Callable[[Artifact], ArtifactLoader] = ArtifactLoader,
) -> ModuleType:
    """Run the exported cells as a module, or of them what another kind of loader runs.

    A cell that is no Python, or a statement that raises an exception, costs the names that it would have defined:
    `find_lost` tells why a module lacks a name. A package that is missing costs only what uses it.
    """
    loader = loader_of(artifact)
    linecache.cache.pop(loader.filename, None)  # of another text that went by this name
    spec = importlib.util.spec_from_loader(module_name, loader, origin=loader.filename)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = loader.filename
    sys.modules[module_name] = module  # dataclasses and pickle look a class's module up by name
    loader.exec_module(module)
    return module


def lost_cells(artifact: object) -> list[Lost]:
    """Statements of a loaded artifact that failed, and cells of it that are no Python."""
    loader = getattr(artifact, "__loader__", None)
    return loader.lost if isinstance(loader, ArtifactLoader) else []


def find_endless(artifact: object) -> list[int]:
    """Find the numbers of a loaded artifact's statements that did not end; another `ArtifactLoader` can skip them."""
    loader = getattr(artifact, "__loader__", None)
    return sorted(loader.endless) if isinstance(loader, ArtifactLoader) else []


def find_lost(artifact: object, names: Iterable[str]) -> ArtifactError | UnfinishedError | None:
    """Find why a loaded artifact lacks `names`: the error of code that would, or may, have defined one, or None."""
    lost = lost_cells(artifact)
    certain = [cell.error for cell in lost if cell.names.intersection(names)]
    possible = [cell.error for cell in lost if not cell.is_readable]
    return next(iter([*certain[::-1], *possible[::-1]]), None)


def find_cause(error: BaseException) -> ArtifactError | UnfinishedError | None:
    """Find why a name is not defined, where that is the error: the code that would define it failed or does not count.

    It does not count where its cell is not exported.
    """
    if not isinstance(error, NameError) or not error.name:
        return None
    loaders = [frame.f_globals.get("__loader__") for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [loader for loader in loaders if isinstance(loader, ArtifactLoader)]
    if not own:
        return None
    cell = dict(own[-1].artifact.elsewhere).get(error.name)
    unmarked = (
        ArtifactError(f"cell {cell} defines it and does not begin with `#| export`") if cell is not None else None
    )
    return own[-1].find_lost([error.name]) or unmarked


def find_elsewhere(artifact: object, names: Iterable[str]) -> dict[str, int]:
    """Find which of `names` a cell seems to define that is not exported, and the number of that cell."""
    loader = getattr(artifact, "__loader__", None)
    known = dict(loader.artifact.elsewhere) if isinstance(loader, ArtifactLoader) else {}
    return {name: known[name] for name in names if name in known}


def place_of(code: CodeType, names: Mapping[str, Any], line: int) -> Place | None:
    """The cell and line in the learner's exported cells of a line of code that sees `names`; None for other code."""
    loader = names.get("__loader__")
    if isinstance(loader, ArtifactLoader) and code.co_filename == loader.filename:
        return loader.artifact.where(line)
    return None


def name_cell(filename: str) -> str:
    """The running notebook's cell whose code goes by a file name, as "cell In[3]"; "" for other code."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    named = getattr(shell.compile, "format_code_name", lambda _: None)(filename) if shell is not None else None
    return f"{named[0].lower()} {named[1]}" if named else ""


def describe(error: BaseException) -> str:
    """One line of bounded length for an exception that a learner's code raised, whatever its `__str__` does."""
    kind = type(error).__name__
    try:
        said = " ".join(str(error).split())
    except Exception as broken:
        said = f"(its text cannot be shown: {type(broken).__name__})"
    said = said if len(said) <= LONGEST_TEXT else said[:LONGEST_TEXT] + " …"
    return f"{kind}: {said}" if said else kind


def _leave_out_absent(statement: ast.stmt, names: Mapping[str, Any]) -> ast.stmt:
    """A definition without those of its decorators that come from a package which is missing."""
    if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return statement
    absent = {name for name, value in names.items() if isinstance(value, Absent)}
    bare = copy.copy(statement)
    bare.decorator_list = [
        one for one in statement.decorator_list if absent.isdisjoint(getattr(node, "id", "") for node in ast.walk(one))
    ]
    return bare


def _find_place(error: BaseException) -> Place | None:
    """The innermost of the learner's lines that an error passed through; None if it passed through none."""
    frames = traceback.walk_tb(error.__traceback__)
    places = [place_of(frame.f_code, frame.f_globals, line) for frame, line in frames]
    return next((place for place in reversed(places) if place is not None), None)


def _describe_unreadable(artifact: Artifact, cell: Cell, first: int, error: Exception | MemoryError) -> ArtifactError:
    line = error.lineno if isinstance(error, SyntaxError) else None
    place = artifact.where(line or first) or f"cell {cell.number}"
    magic = isinstance(place, Place) and place.text.lstrip().startswith("%%")
    got = error.msg if isinstance(error, SyntaxError) else describe(error)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    expected = f"a cell that parses with Python {version}, which runs the checks"
    help = f"run the cell in the notebook; if it runs there, its Python is newer than {version}"
    if magic:
        got, help = "a command that makes the cell something else than Python", "move it to a cell without `#| export`"
    return ArtifactError(f"{artifact.name}: syntax error in {place}", got=got, expected=expected, help=help)
