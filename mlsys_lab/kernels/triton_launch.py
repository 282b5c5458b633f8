"""Launch Triton kernels: on the device of their tensors, in the interpreter, or under a recorder."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import isfunction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from mlsys_lab.errors import CourseError, InputError
from mlsys_lab.kernels.runtime import triton_interprets
from mlsys_lab.kernels.triton_arithmetic import follow_compiler
from mlsys_lab.kernels.triton_members import read_members, restore_members

ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
BINARY = tuple(f"__{name}__" for name in (*ARITHMETIC, *COMPARISONS))
"""Python's names of the binary operators between a constant and a block."""
RECORDER = str(Path(__file__).parent / "trace")
"""Folder of the microscope, which records memory accesses."""
_replacement: ContextVar[Callable[..., None] | None] = ContextVar("replacement of launch", default=None)


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    device: torch.device,
    *args: Any,
    outputs: Sequence[str] = (),
    **constants: Any,
) -> None:
    """Run `kernel` over `grid`, the numbers of programs along x, y and z; a no-op if one of them is 0.

    `outputs` names the parameters whose tensors are uninitialized, for recorders. Raises InputError for tensors on the
    CPU where kernels are compiled.
    """
    if 0 in grid:
        return
    if (replacement := _replacement.get()) is not None:
        replacement(kernel, grid, *args, outputs=outputs, **constants)
    elif triton_interprets():
        with enable_interpreter(), silence_arithmetic():
            try:
                kernel[grid](*args, **constants)
            except Exception as error:
                if (ours := _find_course_error(error)) is not None:
                    raise ours from None
                raise
    elif device.type == "cuda":
        with torch.cuda.device(device):
            kernel[grid](*args, **constants)
    else:
        raise InputError(
            "a compiled Triton kernel needs arrays on the GPU",
            got=device,
            help="or start Python with TRITON_INTERPRET=1",
        )


@contextmanager
def replace_launches(replacement: Callable[..., None]) -> Iterator[None]:
    """Call `replacement(kernel, grid, *args, outputs=…, **constants)` for every launch in the body of a `with`."""
    token = _replacement.set(replacement)
    try:
        yield
    finally:
        _replacement.reset(token)


@contextmanager
def enable_interpreter() -> Iterator[None]:
    """Interpret kernels in the body of a `with`, even if Triton was imported to compile.

    Then Triton's library (`tl.sum` …) and a kernel's helpers are functions for the compiler and refuse to be called.
    This is so on a machine with a GPU, and if torch imported Triton first, as its optimizers do.
    """
    interpreter = importlib.import_module("triton.runtime.interpreter")
    triton, tl = sys.modules["triton"], sys.modules["triton.language"]
    with _patch_once(interpreter, tl), follow_compiler(interpreter), _defer_to_tensors(tl):
        if isinstance(tl.sum, interpreter.InterpretedFunction):
            yield
            return
        with _allow_python_calls(interpreter, tl), triton.knobs.runtime.scope():
            triton.knobs.runtime.interpret = True
            yield


def _truth(block: Any) -> bool:
    """Truth value of a number in a kernel; Triton's own library may also ask for a block's, meaning that it exists.

    Raises ValueError if a kernel takes it of several elements, by `and`, `or`, `not` or `if`: the interpreter would
    treat every block as true.
    """
    values = block.handle.data
    if values.size == 1:
        return bool(values.item())
    caller = sys._getframe(1)
    while caller.f_back and caller.f_code.co_filename.startswith(RECORDER):
        caller = caller.f_back
    if not caller.f_code.co_filename.startswith(str(Path(sys.modules["triton"].__file__ or "").parent)):
        raise ValueError(f"{values.size} elements are not true or false as one: blocks take &, | and ~, or tl.where")
    return True


@contextmanager
def _patch_once(interpreter: Any, tl: Any) -> Iterator[None]:
    """Let the interpreter patch `tl` once per launch.

    It would do so again at each call of a helper, such as `tl.sum`, which takes longer than everything else together.
    """
    original, done = interpreter._patch_lang, set[int]()

    def patch(function: Any) -> Any:
        seen = {id(value) for value in function.__globals__.values() if value is tl or value is tl.core}
        if seen <= done:
            return SimpleNamespace(restore=lambda: None)
        done.update(seen)
        scope = original(function)
        tl.tensor.__index__ = lambda self: self.handle.data.item()  # Triton 3.6 asks NumPy for what 2.4 refuses
        scope.set_attr(tl.tensor, "__bool__", _truth)
        for name, member in dict(vars(tl.tensor)).items():
            if isfunction(member) and name in vars(tl.math):  # x.exp(), which the interpreter forgets
                scope.set_attr(tl.tensor, name, getattr(tl.math, name))
        return scope

    interpreter._patch_lang = patch
    try:
        yield
    finally:
        interpreter._patch_lang = original


@contextmanager
def _defer_to_tensors(tl: Any) -> Iterator[None]:
    """Let `CONSTANT * block` equal `block * CONSTANT`, as in the compiler.

    Python calls the constant's method first, and Triton's (3.6 to 3.9) returns a constant whose value is a block.
    """

    def defer(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda constant, other: NotImplemented if isinstance(other, tl.tensor) else original(constant, other)

    before = {name: vars(tl.constexpr)[name] for name in BINARY}
    for name, original in before.items():
        setattr(tl.constexpr, name, defer(original))
    try:
        yield
    finally:
        for name, original in before.items():
            setattr(tl.constexpr, name, original)


def _find_course_error(error: BaseException) -> CourseError | None:
    """The CourseError that an interpreter's error was raised from, or None."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return cause if isinstance(cause, CourseError) else None


@contextmanager
def _allow_python_calls(interpreter: Any, tl: Any) -> Iterator[None]:
    """Let functions decorated for the compiler be called from Python, as the interpreter does."""
    jit = importlib.import_module("triton.runtime.jit").JITFunction
    before = read_members()
    call = jit.__call__
    jit.__call__ = lambda self, *args, **keywords: interpreter.InterpretedFunction(self.fn)(*args, **keywords)
    for name, member in dict(vars(tl.tensor)).items():
        if isinstance(member, jit):
            setattr(tl.tensor, name, lambda *args, member=member, **keywords: member(*args, **keywords))
    try:
        yield
    finally:
        jit.__call__ = call
        restore_members(before)


@contextmanager
def silence_arithmetic() -> Iterator[None]:
    """Silence NumPy's warnings of overflow and NaN, which a GPU does not raise."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
