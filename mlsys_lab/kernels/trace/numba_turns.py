"""Position of a lane in its kernel: loop iterations, call stack and instruction, which decide warp reconvergence.

Lanes of a warp that diverge at a branch reconverge where the branch ends, and iterate a loop together: a lane that
skips the rest of an iteration waits for the next one, and a lane that has left the loop waits after it (for structured
code this is reconvergence at the immediate post-dominator; lanes that have left or returned are not waited for). So
lanes execute an instruction together if the iterations of all enclosing loops are equal. Python does not expose the
iteration of a loop; an instrumented copy of the kernel's code counts it.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import dis
import linecache
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from mlsys_lab.errors import InputError

COUNTER = "turns of loops"
"""Name of the launch's `Turns` in instrumented code; it cannot clash with a Python name."""

ENDED = sys.maxsize
"""Iteration number of a loop's `else`: after all iterations, for every lane."""


class Lane(Protocol):
    """Type of a thread that keeps its position: each enclosing loop and each call on its stack, outermost first.

    A loop is its instruction and its iteration, from 1; a call is its instruction.
    """

    path: list[int]


class Host(Protocol):
    """Type of the launch that a kernel runs in, as `Turns` needs it."""

    @property
    def thread(self) -> Lane:
        """The running thread."""


class Instructions:
    """Numbering of the instructions of kernels' code."""

    def __init__(self) -> None:
        self._numbers: dict[int, list[int]] = {}  # by code

    def __call__(self, frame: FrameType) -> int:
        """Number of a frame's current instruction, in execution order."""
        numbers = self._numbers.get(id(frame.f_code))
        if numbers is None:
            numbers = self._numbers[id(frame.f_code)] = _number_instructions(frame.f_code)
        return numbers[frame.f_lasti >> 1]


class Turns:
    """Callbacks of instrumented code, which keep the running thread's path."""

    def __init__(self, host: Host, place: Instructions) -> None:
        self._host, self._place = host, place

    def enter(self) -> None:
        """Record that the thread enters a loop."""
        self._host.thread.path += (self._place(sys._getframe(1)), 0)

    def begin(self) -> None:
        """Record that an iteration of the innermost loop starts."""
        self._host.thread.path[-1] += 1

    def end(self) -> None:
        """Record that the innermost loop's `else` starts."""
        self._host.thread.path[-1] = ENDED

    def leave(self) -> None:
        """Note that the thread is behind the innermost loop."""
        del self._host.thread.path[-2:]

    def note_calls(self, function: FunctionType) -> Callable[..., Any]:
        """Wrap a kernel that others call: while it runs, the call is in the thread's path."""

        def call(*args: Any, **keywords: Any) -> Any:
            path = self._host.thread.path
            before = len(path)
            path.append(self._place(sys._getframe(1)))
            try:
                return function(*args, **keywords)
            finally:
                del path[before:]

        return call


_trees: WeakKeyDictionary[FunctionType, ast.FunctionDef] = WeakKeyDictionary()


def set_tree(function: FunctionType, tree: ast.FunctionDef) -> None:
    """Say of which syntax tree a function was compiled, where that is not what its file's text gives."""
    _trees[function] = copy.deepcopy(tree)


def count_turns(function: FunctionType) -> CodeType:
    """Code of a function that tells `COUNTER` of its loops; its own code if it has none.

    Raises InputError where the text that the function was made of cannot be found.
    """
    code, first = function.__code__, function.__code__.co_firstlineno
    if not any("JUMP_BACKWARD" in instruction.opname for instruction in dis.get_instructions(code)):
        return code
    if function in _trees:
        return _compile(_Counting().visit(copy.deepcopy(_trees[function])), code)
    for text in _find_texts(function):
        for node in ast.walk(_parse(text)):
            if isinstance(node, ast.FunctionDef) and (node.name, _first_line(node)) == (code.co_name, first):
                node.decorator_list = []
                if _is_same(_compile(node, code), code):
                    return _compile(_Counting().visit(node), code)
    raise InputError(
        f"the text of {function.__name__}, which has loops, cannot be found or has changed since it was loaded",
        got=code.co_filename,
        help="write it into a file or a cell of a notebook, and load it again",
    )


class _Counting(ast.NodeTransformer):
    """Statements around and in each loop that tell of it."""

    def __init__(self) -> None:
        self._left = 0  # enclosing loops that a `break` or `continue` here also leaves: those in whose `else` it stands

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        return self._count(node)

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        return self._count(node)

    def visit_Break(self, node: ast.Break) -> list[ast.stmt]:
        return [*(_tell("leave", node) for _ in range(self._left)), node]

    def visit_Continue(self, node: ast.Continue) -> list[ast.stmt]:
        return [*(_tell("leave", node) for _ in range(self._left)), node]

    def _count(self, node: ast.For | ast.While) -> list[ast.stmt]:
        counting, left = copy.copy(node), self._left
        self._left = 0
        counting.body = [_tell("begin", node), *self._visit_all(node.body)]
        self._left = left + 1
        if node.orelse:
            counting.orelse = [_tell("end", node), *self._visit_all(node.orelse)]
        self._left = left
        return [_tell("enter", node), counting, _tell("leave", node)]

    def _visit_all(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for one in statements:
            visited = self.visit(one)
            found += visited if isinstance(visited, list) else [visited]
        return found


def _tell(what: str, there: ast.stmt) -> ast.stmt:
    """A statement that calls a method of `Turns`, where another begins.

    No two have one place: a loop's number is that of its `enter`, which lies before all instructions of the loop.
    """
    call = ast.Expr(ast.Call(ast.Attribute(ast.Name(COUNTER, ast.Load()), what, ast.Load()), [], []))
    call.lineno = call.end_lineno = there.lineno
    call.col_offset = there.col_offset
    call.end_col_offset = there.col_offset + ("enter", "begin", "end", "leave").index(what)
    return ast.fix_missing_locations(call)


def _find_texts(function: FunctionType) -> Iterator[str]:
    """Yield what may be the text of a function's file: what Python shows of it, and what its loader has."""
    yield "".join(linecache.getlines(function.__code__.co_filename, function.__globals__))
    get_source = getattr(function.__globals__.get("__loader__"), "get_source", None)
    if get_source is not None:
        with contextlib.suppress(ImportError):
            yield get_source(function.__module__) or ""


def _parse(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module([], [])


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])


def _compile(node: ast.FunctionDef, like: CodeType) -> CodeType:
    """Code of a function that stands where the code `like` stands: below the same variables of functions around it."""
    around = [ast.Assign([ast.Name(name, ast.Store())], ast.Constant(None)) for name in like.co_freevars]
    nothing = ast.arguments([], [], None, [], [], None, [])
    outer = ast.copy_location(ast.FunctionDef("around", nothing, [*around, node], []), node)
    module = ast.fix_missing_locations(ast.Module([outer], []))
    made = compile(module, like.co_filename, "exec", dont_inherit=True)
    for name in (outer.name, node.name):
        (made,) = (one for one in made.co_consts if isinstance(one, CodeType) and one.co_name == name)
    return made


def _is_same(one: CodeType, other: CodeType) -> bool:
    """Whether two codes use the same names and constants; instructions also differ by what a module imports."""
    parts = ("co_consts", "co_names", "co_varnames", "co_freevars")
    return all(getattr(one, part) == getattr(other, part) for part in parts)


def _number_instructions(code: CodeType) -> list[int]:
    """For each unit of a function's code the number of its instruction: a frame may stand in its cache.

    What the compiler wrote twice (a loop's test, the end of a function behind a branch) has the number of the last.
    """
    instructions = list(dis.get_instructions(code))
    last = {_identity(one): one.offset for one in instructions}
    starts = [one.offset for one in instructions]
    ends = [*starts[1:], len(code.co_code)]
    return [
        last[_identity(one)]
        for one, start, end in zip(instructions, starts, ends, strict=True)
        for _ in range(start, end, 2)
    ]


def _identity(instruction: dis.Instruction) -> object:
    """What an instruction does and for which text; itself, where Python keeps no columns."""
    positions = instruction.positions
    known = positions is not None and None not in positions
    return (instruction.opname, positions) if known else instruction.offset
