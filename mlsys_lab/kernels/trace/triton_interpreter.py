"""Record the memory accesses of a Triton kernel in Triton's own interpreter.

A Triton kernel's source does not mention threads. Here the elements of a block are its lanes, 32 per request, numbered
along the dimension in which their addresses are contiguous (the last, if there is none): the order in which the
compiler assigns elements to threads. This is a model. On the device a thread may access several elements in one
wider load, and one thread may process the elements of several warps of lanes in turn. A `tl.debug_barrier()` starts a
new phase. Programs run one after another, z fastest.
"""

from __future__ import annotations

import importlib
import inspect
import linecache
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from types import FrameType, TracebackType
from typing import Any

import numpy as np
import torch

from mlsys_lab.errors import CourseError, InputError, UnfinishedError, did_you_mean
from mlsys_lab.kernels.runtime import load_triton
from mlsys_lab.kernels.trace.addresses import AddressSpace
from mlsys_lab.kernels.trace.cells import locate_in_cell
from mlsys_lab.kernels.trace.events import Site, Trace
from mlsys_lab.kernels.trace.triton_recorder import Recorder, is_machinery
from mlsys_lab.kernels.triton_launch import enable_interpreter, replace_launches, silence_arithmetic

LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Launch options other than the kernel's own parameters; ignored by the interpreter."""
NO_ADDRESS = re.compile(r"Unsupported ptr type .* in `(tl\.\w+)`")
"""Triton's message for a load, store or atomic whose address is not a pointer."""
INSTEAD = {
    "'int' object is not iterable": (
        "an address or a block, used as a list",
        "tl.load(pointer + offsets) for elements; tl.max(x, axis=0) and the like for a block",
    ),
    "acc.type.element_ty == out_dtype": (
        "a sum that `tl.dot` cannot add to",
        "a block of the product's shape in the type of its result: float32, or float16 with `out_dtype=tl.float16`",
    ),
    "must be of type tl.constexpr": ("", "a constant: a parameter marked `: tl.constexpr`"),
    "Expected dtype ['fp32', 'fp64'] but got": ("", "`.to(tl.float32)` before it"),
    "invalid operands of type pointer": ("", "a whole number as the offset: `//` divides, `/` gives a float"),
    "unsupported operand type(s) for @": ("", "tl.dot(a, b)"),
}
"""Part of a message of Triton's that lacks cause or remedy: the cause ("" keeps Triton's words), and what to write."""


def record(kernel: Any, grid: Any, /, *args: Any, outputs: str | Sequence[str] = (), **constants: Any) -> Trace:
    """Run a `@triton.jit` kernel in the interpreter and return the trace of its loads, stores and atomics.

    `grid` is one to three integers, or a function of the arguments by name. `args` and `constants` are the arguments
    as for a launch: tensors (also in tuples, or as the base of a tensor descriptor), numbers, constants. `outputs`
    names uninitialized tensors; they start as poison. Tensors hold the results afterwards. An out-of-bounds load gives
    poison (NaN, −1), an out-of-bounds store is dropped. An autotuned kernel takes one configuration's constants here.

    Raises InputError for arguments that do not match the kernel, and with its line for a kernel that fails.
    """
    load_triton()
    interpreter = importlib.import_module("triton.runtime.interpreter")
    function = _unwrap(kernel, interpreter)
    name = function.__name__
    given = _bind(name, inspect.signature(function), args, constants)
    sides = _sides(grid, given)
    outputs = (outputs,) if isinstance(outputs, str) else outputs
    if unknown := [one for one in outputs if one not in given]:
        raise InputError(f"{name} has no such output", got=unknown[0], help=did_you_mean(unknown[0], given))
    space = AddressSpace(tuple(outputs))
    stand_ins = {key: _replace_tensors(value, key, space.stand_in) for key, value in given.items()}
    recorder = Recorder(space, interpreter.interpreter_builder)
    with enable_interpreter(), recorder.hook_into(interpreter), silence_arithmetic():
        try:
            interpreter.InterpretedFunction(function)[sides](**stand_ins)
        except interpreter.InterpreterError as error:
            raise _explain(name, error) from None
    space.copy_back()
    return recorder.trace(name, sides)


@contextmanager
def record_launches() -> Iterator[list[Trace]]:
    """Collect the traces of all launches of this package's operations in the body of a `with`, in order.

    >>> from mlsys_lab.kernels.vector_add.triton_steps import vector_add
    >>> with record_launches() as traces:
    ...     _ = vector_add(torch.ones(5), torch.ones(5))
    >>> [(trace.kernel, len(trace.accesses)) for trace in traces]
    [('add_kernel', 15)]
    """
    traces: list[Trace] = []
    with replace_launches(lambda *args, **constants: traces.append(record(*args, **constants))):
        yield traces


def _unwrap(kernel: Any, interpreter: Any) -> Callable[..., Any]:
    """The Python function of a kernel, without autotuning and heuristics."""
    jit = importlib.import_module("triton.runtime.jit")
    inner = kernel
    while isinstance(inner, jit.KernelInterface):
        if isinstance(inner, (interpreter.InterpretedFunction, jit.JITFunction)):
            function: Callable[..., Any] = inner.fn
            return function
        inner = inner.fn
    raise InputError("not a Triton kernel", got=type(kernel).__name__, expected="a function decorated with @triton.jit")


def _bind(name: str, signature: inspect.Signature, args: Any, constants: dict[str, Any]) -> dict[str, Any]:
    try:
        bound = signature.bind(*args, **{k: v for k, v in constants.items() if k not in LAUNCH_OPTIONS})
    except TypeError as error:
        known = ", ".join(signature.parameters)
        raise InputError(
            f"`{name}` does not have the parameters of the launch ({error})",
            got=f"{name}({known})",
            expected=f"{len(args)} parameters{''.join(f', {one}' for one in constants)}",
        ) from None
    bound.apply_defaults()
    return dict(bound.arguments)


def _sides(grid: Any, given: dict[str, Any]) -> tuple[int, int, int]:
    asked = grid(given) if callable(grid) else grid
    sides = tuple(asked) if isinstance(asked, tuple | list) else (asked,)
    if not 1 <= len(sides) <= 3 or not all(isinstance(side, int | np.integer) and side >= 0 for side in sides):
        got = asked if isinstance(asked, int | float | tuple | list) else type(asked).__name__
        raise InputError("grid of a launch", got=got, expected="one to three integers")
    x, y, z = (*map(int, sides), 1, 1)[:3]
    return x, y, z


def _replace_tensors(value: Any, name: str, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Any:
    """Replace each tensor in an argument by `change(name, tensor)`."""
    if isinstance(value, torch.Tensor):
        return change(name, value)
    if isinstance(value, tuple):
        items = [_replace_tensors(item, f"{name}[{index}]", change) for index, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if is_dataclass(value) and not isinstance(value, type) and hasattr(value, "base"):
        return replace(value, base=change(name, value.base))
    if isinstance(value, np.ndarray | list):
        raise InputError(f"{name} must be a tensor", got=type(value).__name__, help=f"torch.as_tensor({name})")
    return value


def _explain(name: str, error: BaseException) -> CourseError:
    """The error for an exception in a kernel, with the kernel's source line."""
    cause: BaseException = error
    at = ""
    while True:
        for frame, number in _frames(cause.__traceback__):
            file = frame.f_code.co_filename
            if not is_machinery(file) and (found := linecache.getline(file, number).strip()):
                at = f" at {locate_in_cell(Site(file, number, found), frame.f_globals.get('__loader__'))}"
        if cause.__cause__ is None:
            break
        cause = cause.__cause__
    if isinstance(cause, CourseError):
        return cause
    innermost = [frame.f_code.co_filename for frame, _ in _frames(cause.__traceback__)][-1]
    if isinstance(cause, NotImplementedError) and not is_machinery(innermost):  # an unfinished task
        return UnfinishedError(str(cause))
    if (matched := NO_ADDRESS.match(str(cause))) is not None:
        expected = "an array's parameter plus offsets; no numbers that were loaded"
        return InputError(f"{name} fails{at}", got=f"`{matched[1]}` of what is no address", expected=expected)
    said = str(cause).strip() or f"Triton holds it to `{_last_line(cause)}`"
    got, expected = next((words for part, words in INSTEAD.items() if part in said), ("", ""))
    return InputError(
        f"{name} fails{at}", got=got or f"{type(cause).__name__}: {said}".splitlines()[0], expected=expected or None
    )


def _last_line(error: BaseException) -> str:
    """The text of the line that raised an error."""
    frame, number = [*_frames(error.__traceback__)][-1]
    return linecache.getline(frame.f_code.co_filename, number).strip()


def _frames(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next
