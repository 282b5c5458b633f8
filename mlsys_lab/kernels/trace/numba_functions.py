"""Copy a kernel's Python function with the simulator in place of `numba.cuda`; the kernel's module is unchanged."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from types import CellType, CodeType, FrameType, FunctionType
from typing import Any

import numpy as np

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.trace.cells import KernelError
from mlsys_lab.kernels.trace.numba_numbers import BUILTINS, as_numba, hold_numbers, stand_in
from mlsys_lab.kernels.trace.numba_turns import COUNTER, Turns, count_turns

_MARK = "simulated kernel"
"""Key in the globals of copied functions that identifies them; it cannot clash with a Python name."""


VARYING = ("blockDim", "gridDim", "blockIdx", "threadIdx", "shape", "size", "ndim")
"""Attributes of `cuda` and of arrays that are known only when a kernel runs."""
CONSTANTS = ("LOAD_CONST", "KW_NAMES", "RETURN_CONST")
"""Instructions with texts and names of keyword arguments, which name no variable and no attribute."""


def python_function(kernel: Any) -> FunctionType:
    """The Python function under `@cuda.jit`; InputError if it is not a kernel."""
    function = getattr(kernel, "py_func", kernel)
    if not isinstance(function, FunctionType):
        raise InputError("not a kernel", got=type(kernel).__name__, expected="a function with @cuda.jit")
    return function


def simulate(function: FunctionType, cuda: Any, turns: Turns | None = None) -> FunctionType:
    """Copy a kernel's function so that `cuda` means the simulator, in it and in the kernels that it calls.

    With `turns`, the copies report their loops and calls to it.
    """
    return _copy(function, cuda, turns, {})


def _copy(
    function: FunctionType, cuda: Any, turns: Turns | None, made: dict[FunctionType, FunctionType]
) -> FunctionType:
    if function in made:
        return made[function]
    code = hold_numbers(count_turns(function) if turns else function.__code__)
    own: Any = function  # of its builtins, which may be fewer than Python's, the type stubs know nothing
    names: dict[str, Any] = {
        _MARK: True,
        COUNTER: turns,
        "__builtins__": own.__builtins__,
        "__name__": function.__module__,
    }
    cells = [CellType() for _ in function.__closure__ or ()]
    copy = FunctionType(code, names, function.__name__, as_numba(function.__defaults__), tuple(cells) or None)
    copy.__kwdefaults__ = function.__kwdefaults__
    made[function] = copy
    _check_shapes(function.__code__)

    def translate(name: str, value: Any) -> Any:
        if value is sys.modules.get("numba.cuda"):
            return cuda
        if isinstance(inner := getattr(value, "py_func", None), FunctionType):
            called = _copy(inner, cuda, turns, made)
            return turns.note_calls(called) if turns else called
        if isinstance(value, np.ndarray) and value.ndim:
            raise InputError(f"{function.__name__} reads the array {name} from outside", help="pass it as an argument")
        return stand_in(value)

    for name in set(_globals_of(function.__code__)):
        if name in function.__globals__:
            names[name] = translate(name, function.__globals__[name])
        elif name in BUILTINS:
            names[name] = BUILTINS[name]
    for name, cell, old in zip(function.__code__.co_freevars, cells, function.__closure__ or (), strict=True):
        cell.cell_contents = translate(name, old.cell_contents)
    return copy


def _check_shapes(code: CodeType) -> None:
    """Refuse what Numba would: a shared or local array whose shape is not made of constants and their names.

    Between the name `array` and the next call lie the instructions that make its arguments.
    """
    before, inside, varies = "", False, False
    varying = set(VARYING)  # and variables of their values
    for instruction in dis.get_instructions(code):
        names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
        if instruction.opname in CONSTANTS:
            names = ()
        found = not varying.isdisjoint(name for name in names if isinstance(name, str))
        varies = found or (varies and not instruction.starts_line)
        if varies and instruction.opname.startswith("STORE_FAST"):
            varying.update(names)
        if inside and (instruction.opname == "BINARY_OP" or found):
            raise KernelError(
                code.co_filename,
                _line(instruction),
                "the shape of a shared or local array has to be a constant",
                help="a number of the module, such as PITCH = TILE + 1 outside of the kernel",
            )
        if instruction.opname.startswith("CALL"):
            inside = False
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            inside = inside or (before in ("shared", "local") and instruction.argval == "array")
            before = instruction.argval


def _line(instruction: dis.Instruction) -> int:
    return (instruction.positions and instruction.positions.lineno) or 0


def _globals_of(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(constant)


def find_kernels(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frame of a simulated kernel, then those of the kernels that called it."""
    while frame is not None:
        if _MARK in frame.f_globals:
            yield frame
        frame = frame.f_back


def locate(error: BaseException) -> tuple[str, int]:
    """File and line of the innermost kernel that an error came through; ("", 0) if it came through none."""
    found, traceback = ("", 0), error.__traceback__
    while traceback is not None:
        if _MARK in traceback.tb_frame.f_globals:
            found = traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
        traceback = traceback.tb_next
    return found
