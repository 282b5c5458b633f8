"""Check whether Numba's compiler accepts a kernel for an H100, on any machine, even if kernels are simulated.

Only Numba's front end runs, which infers types and emits LLVM IR; NVIDIA's back end is not called and need not be
installed. The front end rejects code that the simulator accepts: a tuple that grows, a variable that is None before it
is a number, a list. It takes some hundredths of a second.
"""

from __future__ import annotations

import importlib
import linecache
import math
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from types import CellType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.runtime import load_numba
from mlsys_lab.kernels.trace.cells import locate_in_cell
from mlsys_lab.kernels.trace.events import Site
from mlsys_lab.kernels.trace.numba_functions import python_function

ARCHITECTURE = (9, 0)
"""Compute capability of an H100."""
DATA_LAYOUT = (
    "e-p:64:64:64-i1:8:8-i8:8:8-i16:16:16-i32:32:32-i64:64:64-i128:128:128-f32:32:32-f64:64:64-"
    "v16:16:16-v32:32:32-v64:64:64-v128:128:128-n16:32:64"
)
"""LLVM data layout of NVIDIA's compiler (NVVM IR specification, "Data Layout")."""
IR_VERSION = (2, 0, 3, 2)
"""Versions of NVVM IR and of its debug information; written into the output, which is not used."""

ANY_WANTED = "what the compiler takes, not the simulator alone"
WANTED = {
    r"^\w+Error: ": ANY_WANTED,  # an exception of another library, which says little of the kernel
    r"Cannot unify|add\((Uni)?Tuple": "one type for a variable, also through a loop; a tuple's length is part of it",
    r"getitem\(Tuple": "a constant as the index of a tuple of several types; a variable picks from one type only",
    "to none": "a kernel that returns nothing: what it finds it stores into an array",
    r"\bnone\b": "a number to begin with, for None is of another type",
    r"NRT|\b[Ll]ist\b|append|Dict": "no list and no new array: variables, a tuple of constants, or cuda.local.array",
    "array_allocate": "no new arrays: a loop over the elements",
    r"setitem\(array.*, array\(": "a number to store, not an array: a variable is one or the other on all paths",
    r" array\(": "constants as the shape of a shared or local array",
}
"""What Numba accepts instead, by a pattern in its reason."""
BOLD = re.compile(r"\x1b\[\d*m")
"""Escape codes in Numba's messages if colorama is installed."""

_accepted: set[tuple[Any, ...]] = set()


class _RefusedError(Exception):
    """A kernel that Numba rejects: its copies, and Numba's messages, with source lines at the end."""

    def __init__(self, copies: _Copies, said: str) -> None:
        super().__init__(said)
        self.copies, self.said = copies, BOLD.sub("", said)


class _Layout:
    """Stand-in for NVIDIA's compiler, of which Numba needs only this before calling it."""

    data_layout = DATA_LAYOUT

    def get_ir_version(self) -> tuple[int, ...]:
        return IR_VERSION


def check_compiles(kernel: Any, *args: Any) -> None:
    """Raise InputError if Numba rejects a launch, with the source line and Numba's reason.

    `kernel` is a function under `@cuda.jit`, compiled or simulated; `args` are a launch's arguments, of which only
    types matter (of an array its dtype, dimensions and order). Accepted launches are cached. If the installed Numba
    cannot compile without a GPU (`compiler_works`), everything is accepted; if it can, its errors are the kernel's
    fault, since they also occur on a GPU.
    """
    function = python_function(kernel)
    types = tuple(_type_of(value) for value in args)
    if (key := (*_parts(function), *types)) in _accepted or not compiler_works():
        return
    try:
        _compile(function, types)
    except _RefusedError as refused:
        raise _explain(function, refused) from None
    _accepted.add(key)


@cache
def compiler_works() -> bool:
    """Whether Numba compiles a known-good kernel on this machine; the first call loads the compiler."""
    cuda, types = load_numba(), importlib.import_module("numba.types")

    def root(value: Any) -> Any:
        return math.sqrt(value)

    called = cuda.jit(device=True)(root)

    def probe(x: Any) -> None:
        part = cuda.shared.array(32, types.float32)
        part[cuda.threadIdx.x] = called(x[cuda.grid(1)])
        cuda.syncthreads()
        cuda.atomic.add(x, 0, cuda.shfl_down_sync(0xFFFFFFFF, part[0], 1))

    try:
        _compile(python_function(probe), (_type_of(np.zeros(1, np.float32)),))
    except Exception:  # whatever it is, it is no learner's doing
        return False
    return True


def _type_of(value: Any) -> Any:
    """Numba's type of an argument; an array is one that a GPU has a copy of, which can be written."""
    numba = importlib.import_module("numba")
    if isinstance(value, np.ndarray):
        order = "C" if value.flags.c_contiguous else "F" if value.flags.f_contiguous else "A"
        dtype = importlib.import_module("numba.np.numpy_support").from_dtype(value.dtype)
        return numba.types.Array(dtype, value.ndim, order)
    return numba.typeof(value)


def _parts(function: FunctionType) -> Iterator[Any]:
    """Everything that a kernel is made of: its text and that of the kernels that it calls, and the values of names."""
    waiting, found = [function], set[FunctionType]()
    while waiting:
        if (one := waiting.pop()) not in found:
            found.add(one)
            yield one.__code__
            for name, value in _names_of(one).items():
                if isinstance(inner := getattr(value, "py_func", None), FunctionType):
                    waiting.append(inner)
                else:
                    yield name, repr(value)


def _names_of(function: FunctionType) -> dict[str, Any]:
    """The names from outside that a function uses, with their values."""
    used = _names_in(function.__code__)
    found = {name: function.__globals__[name] for name in used if name in function.__globals__}
    cells = function.__closure__ or ()
    return found | {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells, strict=True)}


def _names_in(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names_in, inner))


class _Copies:
    """A kernel and all that it calls, as functions for the compiler; each stands in a file of its own, by number."""

    def __init__(self, function: FunctionType, simulator: Any, cuda: Any) -> None:
        self._originals: list[FunctionType] = []
        self._kernels: dict[FunctionType, Any] = {}
        self._simulator, self._cuda = simulator, cuda
        self.kernel = self._copy(function)
        self._fill(self.kernel, function)

    def find_site(self, text: str) -> Site | None:
        """The line of a kernel that a message of Numba's names first, which is the innermost; None if it names none."""
        if (found := re.search(r'<kernel (\d+)>(?: \(|", line )(\d+)', text)) is None:
            return None
        function, line = self._originals[int(found[1])], int(found[2])
        file = function.__code__.co_filename
        site = Site(file, line, linecache.getline(file, line).strip())
        return locate_in_cell(site, function.__globals__.get("__loader__"))

    def _copy(self, function: FunctionType) -> FunctionType:
        """The function with a code of its own and without the names from outside."""
        self._originals.append(function)
        code = _in_file(function.__code__, f"<kernel {len(self._originals) - 1}>")
        cells = tuple(CellType() for _ in function.__closure__ or ())
        names = {"__name__": function.__module__}
        copy = FunctionType(code, names, function.__name__, function.__defaults__, cells or None)
        copy.__kwdefaults__ = function.__kwdefaults__
        return copy

    def _fill(self, copy: FunctionType, function: FunctionType) -> None:
        """Give a copy what its names mean outside."""
        cells = dict(zip(copy.__code__.co_freevars, copy.__closure__ or (), strict=True))
        for name, value in _names_of(function).items():
            if name in cells:
                cells[name].cell_contents = self._translate(value)
            else:
                copy.__globals__[name] = self._translate(value)

    def _translate(self, value: Any) -> Any:
        """A name's value as the compiler takes it."""
        if value is self._simulator:
            return self._cuda
        if not isinstance(inner := getattr(value, "py_func", None), FunctionType):
            return value
        if inner not in self._kernels:
            copy = self._copy(inner)
            self._kernels[inner] = self._cuda.jit(device=True)(copy)
            self._fill(copy, inner)  # now, for it may call itself
        return self._kernels[inner]


def _compile(function: FunctionType, types: tuple[Any, ...]) -> None:
    simulator = load_numba()
    numba = importlib.import_module("numba")
    with _compiler() as cuda, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copies = _Copies(function, simulator, cuda)
        compile_cuda = sys.modules["numba.cuda.compiler"].compile_cuda
        try:
            compile_cuda(copies.kernel, numba.types.void, types, cc=ARCHITECTURE)
        except Exception as error:
            raise _RefusedError(copies, "\n".join([_say(error), *_places(error)])) from None


def _in_file(code: CodeType, file: str) -> CodeType:
    """A code and all that is defined in it as if it stood in `file`."""
    inner = (_in_file(constant, file) if isinstance(constant, CodeType) else constant for constant in code.co_consts)
    return code.replace(co_filename=file, co_consts=tuple(inner))


def _places(error: BaseException) -> list[str]:
    """The places in kernels at which Numba was, the innermost first; some of its messages do not say where."""
    found, traceback = list[str](), error.__traceback__
    while traceback is not None:
        names = traceback.tb_frame.f_locals
        found += [str(names.get("loc")), *(str(getattr(names.get(name), "loc", "")) for name in ("self", "inst"))]
        traceback = traceback.tb_next
    return found[::-1]


def _say(error: Exception) -> str:
    """What Numba says of a kernel; where it stops without a word for its user, the exception by its type."""
    errors = importlib.import_module("numba.core.errors")
    if isinstance(error, errors.NumbaError) or type(error).__name__ == errors.UnsupportedBytecodeError.__name__:
        return str(error)
    return f"{type(error).__name__}: {error}"


def _explain(function: FunctionType, refused: _RefusedError) -> InputError:
    """The error for what Numba refuses, of whose message a line is the reason and the rest says where."""
    at = f" at {site}" if (site := refused.copies.find_site(refused.said)) else ""
    reason = _reason(refused.said)
    return InputError(
        f"Numba refuses to compile `{function.__name__}` for a GPU{at}",
        got=reason,
        expected=next((text for pattern, text in WANTED.items() if re.search(pattern, reason)), ANY_WANTED),
    )


def _reason(said: str) -> str:
    """The reason in a message of Numba's, in its own words, without places and without the numbers of its variables."""
    if call := re.search(r">{3} (.+)", said):
        return f"no implementation of {call[1]}"
    lines = (line for line in said.splitlines() if line.strip() and not line.startswith("Failed in "))
    reason = re.split(r", defined at | ?\(?Raised from |\. Raised", next(lines, "no reason"))[0]
    return re.sub(r" for '\$\S+'", "", re.sub(r"'(\w+)\.\d+'", r"'\1'", reason))


@contextmanager
def _compiler() -> Iterator[Any]:
    """Let `numba.cuda` be the one that compiles, for an H100, wherever it was imported to simulate."""
    config = importlib.import_module("numba.core.config")
    with ExitStack() as stack:
        if config.ENABLE_CUDASIM:
            stack.enter_context(patch.object(config, "ENABLE_CUDASIM", 0))
            stack.enter_context(_modules_in_place())
        cuda = importlib.import_module("numba.cuda")
        nvvm = importlib.import_module("numba.cuda.cudadrv.nvvm")
        dispatcher = importlib.import_module("numba.cuda.dispatcher")
        importlib.import_module("numba.cuda.compiler")
        device = SimpleNamespace(compute_capability=ARCHITECTURE)
        stack.enter_context(patch.object(nvvm, "NVVM", _Layout))
        stack.enter_context(patch.object(dispatcher, "get_current_device", lambda: device))
        yield cuda


_compiling: dict[str, ModuleType] = {}
"""Modules below `numba.cuda` that compile, while those that simulate stand under their names."""


@contextmanager
def _modules_in_place() -> Iterator[None]:
    """Put the modules that compile, as far as they are loaded, in the place of those that simulate."""
    numba = importlib.import_module("numba")
    simulating = _take_modules()
    simulator = vars(numba).pop("cuda")
    sys.modules.update(_compiling)
    if "numba.cuda" in _compiling:
        numba.cuda = _compiling["numba.cuda"]  # type: ignore[attr-defined]
    try:
        yield
    finally:
        _compiling.update(_take_modules())
        sys.modules.update(simulating)
        numba.cuda = simulator  # type: ignore[attr-defined]


def _take_modules() -> dict[str, ModuleType]:
    """Take `numba.cuda` and all that is below it out of the loaded modules."""
    names = [name for name in sys.modules if name == "numba.cuda" or name.startswith("numba.cuda.")]
    return {name: sys.modules.pop(name) for name in names}
