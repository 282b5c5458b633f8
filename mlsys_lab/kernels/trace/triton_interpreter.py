"""What a Triton kernel does to memory, read off Triton's own interpreter.

The source of such a kernel says nothing about threads. Here the elements of a block stand for its lanes, 32 to a
request, numbered along the dimension in which their addresses follow one another (the last, if there is none): the
order in which the compiler gives elements to threads. This is a model. On the device a thread may take several
elements at once in one wider load, and one thread may serve elements of several warps' worth of lanes in turn. A
`tl.debug_barrier()` begins a new phase. Programs run one after another, z fastest.
"""

from __future__ import annotations

import importlib
import inspect
import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import numpy as np
import torch

from mlsys_lab.errors import CourseError, InputError, UnfinishedError, did_you_mean
from mlsys_lab.kernels import triton_launch
from mlsys_lab.kernels.runtime import load_triton
from mlsys_lab.kernels.trace.addresses import POISON, AddressSpace
from mlsys_lab.kernels.trace.events import ACCESS, ARRIVAL, ATOMIC, LOAD, STORE, WARP, Site, Trace
from mlsys_lab.kernels.trace.places import line_of
from mlsys_lab.kernels.triton_launch import interpreting, launching, silent_arithmetic

LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""What a launch on the device takes besides the kernel's own parameters; of no meaning here."""

Handle = Any  # Triton's TensorHandle: a NumPy array and the type of its elements


def record(
    kernel: Any, grid: int | Sequence[int], /, *args: Any, outputs: Sequence[str] = (), **constants: Any
) -> Trace:
    """Run a `@triton.jit` kernel in the interpreter, each of its loads, stores and atomics written down.

    `args` and `constants` are its arguments as for a launch: tensors (also in tuples, or as the base of a tensor
    descriptor), numbers, constants. `outputs` names tensors whose contents mean nothing before; they begin as poison.
    Tensors hold the results afterwards. A load out of bounds gives poison (NaN, −1), a store out of bounds is dropped.
    An autotuned kernel is given one configuration's constants here.

    Raises InputError for arguments that do not fit the kernel and for a kernel that fails, with its line.
    """
    load_triton()
    interpreter = importlib.import_module("triton.runtime.interpreter")
    function = _unwrapped(kernel, interpreter)
    name = function.__name__
    given = _bound(name, inspect.signature(function), args, constants)
    if unknown := [one for one in outputs if one not in given]:
        raise InputError(f"{name} has no such output", got=unknown[0], help=did_you_mean(unknown[0], given))
    space = AddressSpace(tuple(outputs))
    stand_ins = {key: _replaced(value, key, space.stand_in) for key, value in given.items()}
    full = tuple(int(side) for side in ((grid,) if isinstance(grid, int) else grid))
    full += (1,) * (3 - len(full))
    recorder = _Recorder(space, interpreter.interpreter_builder)
    with interpreting(), recorder.hooked(interpreter), silent_arithmetic():
        try:
            interpreter.InterpretedFunction(function)[full](**stand_ins)
        except interpreter.InterpreterError as error:
            raise _told(name, error) from None
    space.copy_back()
    return recorder.trace(name, (full[0], full[1], full[2]))


@contextmanager
def recorded() -> Iterator[list[Trace]]:
    """Within: the traces of all launches of the package's own operations, in order.

    >>> from mlsys_lab.kernels.vector_add.triton_steps import vector_add
    >>> with recorded() as traces:
    ...     _ = vector_add(torch.ones(5), torch.ones(5))
    >>> [(trace.kernel, len(trace.accesses)) for trace in traces]
    [('add_kernel', 15)]
    """
    traces: list[Trace] = []
    with launching(lambda *args, **constants: traces.append(record(*args, **constants))):
        yield traces


def _unwrapped(kernel: Any, interpreter: Any) -> Callable[..., Any]:
    """The Python function of a kernel, without autotuning and heuristics around it."""
    jit = importlib.import_module("triton.runtime.jit")
    inner = kernel
    while isinstance(inner, jit.KernelInterface):
        if isinstance(inner, (interpreter.InterpretedFunction, jit.JITFunction)):
            function: Callable[..., Any] = inner.fn
            return function
        inner = inner.fn
    raise InputError("not a Triton kernel", got=type(kernel).__name__, expected="a function decorated with @triton.jit")


def _bound(name: str, signature: inspect.Signature, args: Any, constants: dict[str, Any]) -> dict[str, Any]:
    try:
        bound = signature.bind(*args, **{k: v for k, v in constants.items() if k not in LAUNCH_OPTIONS})
    except TypeError as error:
        raise InputError(f"arguments of {name}", got=str(error), expected=f"{name}{signature}") from None
    bound.apply_defaults()
    return dict(bound.arguments)


def _replaced(value: Any, name: str, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Any:
    """An argument with each tensor in it changed."""
    if isinstance(value, torch.Tensor):
        return change(name, value)
    if isinstance(value, tuple):
        items = [_replaced(item, f"{name}[{index}]", change) for index, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if is_dataclass(value) and not isinstance(value, type) and hasattr(value, "base"):
        return replace(value, base=change(name, value.base))
    return value


class _Recorder:
    """Stands in front of the few methods of Triton's interpreter that touch memory."""

    def __init__(self, space: AddressSpace, builder: Any) -> None:
        self.space, self.builder = space, builder
        self.kind: int | None = None  # of what the interpreter makes out of plain loads and stores
        self.phase = self.requests = 0
        self.program: tuple[int, ...] | None = None
        self.widest = 1
        self.sites: dict[tuple[str, int], int] = {}
        self.rows: list[np.ndarray] = []
        self.scratch = np.zeros(16, dtype=np.uint8)

    @contextmanager
    def hooked(self, interpreter: Any) -> Iterator[None]:
        """Put the recorder in the way of the interpreter, and out of it again."""
        hooks: dict[str, Callable[..., Any]] = {
            "create_masked_load": self._load,
            "create_masked_store": self._store,
            "create_atomic_rmw": self._update,
            "create_atomic_cas": self._exchange,
            "create_atomic_load": self._as_atomic,
            "create_atomic_store": self._as_atomic,
            "create_barrier": self._barrier,
        }
        convert = interpreter._implicit_cvt
        for name, hook in hooks.items():
            if (original := getattr(self.builder, name, None)) is not None:
                setattr(self.builder, name, _before(hook, original))
        interpreter._implicit_cvt = _before(self._convert, convert)
        try:
            yield
        finally:
            interpreter._implicit_cvt = convert
            for name in hooks:
                vars(self.builder).pop(name, None)

    def _convert(self, original: Callable[..., Any], argument: Any) -> Any:
        value = original(argument)
        if isinstance(argument, torch.Tensor):
            value.handle.data = np.array([self.space.address(argument)], dtype=np.uint64)
        return value

    def _load(
        self, original: Callable[..., Any], ptrs: Handle, mask: Handle, other: Handle | None, *rest: Any
    ) -> Handle:
        real, inside, outside = self._note(LOAD, ptrs, mask)
        found = original(real, inside, other, *rest)
        return _poisoned(found, outside)

    def _store(self, original: Callable[..., Any], ptrs: Handle, value: Handle, mask: Handle, *rest: Any) -> None:
        real, inside, _ = self._note(STORE, ptrs, mask)
        original(real, value, inside, *rest)

    def _update(
        self, original: Callable[..., Any], operation: Any, ptrs: Handle, value: Handle, mask: Handle, *rest: Any
    ) -> Handle:
        real, inside, outside = self._note(ATOMIC, ptrs, mask)
        return _poisoned(original(operation, real, value, inside, *rest), outside)

    def _exchange(self, original: Callable[..., Any], ptrs: Handle, *rest: Any) -> Handle:
        everywhere = type(ptrs)(np.ones(ptrs.data.shape, dtype=bool), ptrs.dtype)
        real, inside, outside = self._note(ATOMIC, ptrs, everywhere)
        real.data = np.where(inside.data, real.data, np.uint64(self.scratch.ctypes.data))
        return _poisoned(original(real, *rest), outside)

    def _as_atomic(self, original: Callable[..., Any], *args: Any) -> Any:
        self.kind = ATOMIC
        try:
            return original(*args)
        finally:
            self.kind = None

    def _barrier(self, original: Callable[..., Any], *args: Any) -> None:
        self._follow()
        self.phase += 1
        original(*args)

    def _follow(self) -> None:
        """Begin at phase 0 when another program has begun."""
        if self.program != (now := tuple(self.builder.grid_idx)):
            self.program, self.phase = now, 0

    def _note(self, kind: int, ptrs: Handle, mask: Handle) -> tuple[Handle, Handle, np.ndarray]:
        """Write one access down: where it truly goes, the lanes that may, and those that lie out of bounds."""
        self._follow()
        itemsize = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        buffer, offset, there, places = self.space.find(ptrs.data, itemsize)
        asked = np.broadcast_to(np.asarray(getattr(mask, "data", mask), dtype=bool), ptrs.data.shape)
        inside = asked & there
        order = _lanes(ptrs.data, itemsize)
        lanes = np.flatnonzero(asked.transpose(order))
        rows = np.zeros(len(lanes), dtype=ACCESS)
        rows["request"] = self.requests + lanes // WARP
        rows["kind"] = kind if self.kind is None else self.kind
        rows["site"] = self._site()
        rows["block"] = self._block()
        rows["thread"] = lanes
        rows["phase"] = self.phase
        rows["buffer"] = buffer.transpose(order).reshape(-1)[lanes]
        rows["offset"] = offset.transpose(order).reshape(-1)[lanes]
        self.rows.append(rows)
        self.requests += -(-asked.size // WARP)
        self.widest = max(self.widest, asked.size)
        if kind != LOAD:
            self.space.stored(buffer[inside])
        handle = type(ptrs)
        return handle(places.astype(np.uint64), ptrs.dtype), handle(inside, ptrs.dtype), asked & ~there

    def _block(self) -> int:
        (x, y, z), (nx, ny, _) = self.builder.grid_idx, self.builder.grid_dim
        return int(x + nx * (y + ny * z))

    def _site(self) -> int:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and _is_machinery(frame.f_code.co_filename):
            frame = frame.f_back
        assert frame is not None, "an access comes from a kernel"
        return self.sites.setdefault((frame.f_code.co_filename, frame.f_lineno), len(self.sites))

    def trace(self, kernel: str, grid: tuple[int, int, int]) -> Trace:
        """All that was written down."""
        sites = tuple(Site(file, line, linecache.getline(file, line).strip()) for file, line in self.sites)
        accesses = np.concatenate(self.rows) if self.rows else np.empty(0, dtype=ACCESS)
        block = (self.widest, 1, 1)
        buffers, arrivals, words = tuple(self.space.buffers), np.empty(0, dtype=ARRIVAL), ("program", "lane")
        return Trace(kernel, grid, block, buffers, sites, accesses, arrivals, words)


def _before(hook: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """`hook`, which gets `original` first; keywords of the interpreter's own calls come in their order."""
    return lambda *args, **keywords: hook(original, *args, *keywords.values())


def _lanes(addresses: np.ndarray, itemsize: int) -> list[int]:
    """The dimensions of a block, those along which addresses follow one another last."""

    def follow(axis: int) -> bool:
        steps = np.diff(addresses.astype(np.int64), axis=axis)
        return steps.size > 0 and bool((steps == itemsize).all())

    return sorted(range(addresses.ndim), key=follow)


def _poisoned(found: Handle, outside: np.ndarray) -> Handle:
    if outside.any():
        data = np.array(found.data).reshape(outside.shape)
        data[outside] = np.frombuffer(bytes([POISON]) * data.itemsize, dtype=data.dtype)[0]
        found.data = data
    return found


def _is_machinery(file: str) -> bool:
    """Whether a frame belongs to Triton or to the recorder rather than to a kernel."""
    triton = str(Path(sys.modules["triton"].__file__ or "").parent)
    return file in (__file__, triton_launch.__file__) or file.startswith(triton)


def _told(name: str, error: BaseException) -> CourseError:
    """What went wrong in a kernel, and at which of its lines."""
    cause: BaseException = error
    where, text = "line 0", ""
    while True:
        for frame, number in _frames(cause.__traceback__):
            file = frame.f_code.co_filename
            if not _is_machinery(file) and (found := linecache.getline(file, number).strip()):
                where, text = line_of(frame.f_globals.get("__loader__"), number), found
        if cause.__cause__ is None:
            break
        cause = cause.__cause__
    if isinstance(cause, CourseError):
        return cause
    if isinstance(cause, NotImplementedError):  # a task that is still to do
        return UnfinishedError(str(cause))
    what = f"{type(cause).__name__}: {cause}".splitlines()[0]
    return InputError(f"{name} fails at {where}, `{text}`", got=what)


def _frames(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next
