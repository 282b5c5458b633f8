"""Recorder of each load, store and atomic of a kernel in Triton's interpreter."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from mlsys_lab.kernels import triton_arithmetic, triton_launch
from mlsys_lab.kernels.trace.addresses import AddressSpace
from mlsys_lab.kernels.trace.events import (
    ACCESS,
    ACQUIRE,
    ADDRESS,
    ARRIVAL,
    ATOMIC,
    LOAD,
    MASK,
    NO_LOCK,
    RELEASE,
    STORE,
    STORED,
    WARP,
    Site,
    Trace,
)
from mlsys_lab.kernels.trace.triton_undefined import UndefinedLanes, poison
from mlsys_lab.kernels.triton_arithmetic import replace_members

HERE = str(Path(__file__).parent)
"""Folder of the microscope."""

Handle = Any  # Triton's TensorHandle: a NumPy array and the type of its elements


class Recorder:
    """Recorder that replaces the methods of Triton's interpreter that access memory."""

    def __init__(self, space: AddressSpace, builder: Any) -> None:
        self.space, self.builder = space, builder
        self.kind: int | None = None  # of what the interpreter makes out of plain loads and stores
        self.phase = self.requests = 0
        self.program: tuple[int, ...] | None = None
        self.widest = 1
        self.filled = False  # whether the current load has `other`
        self.sites: dict[tuple[str, int], int] = {}
        self.rows: list[np.ndarray] = []
        self.undefined = UndefinedLanes(builder, self._site, self._block, self._take_lock)
        self.exchanged = False  # whether the last access was a successful compare-and-swap of one element
        self.scratch = np.zeros(16, dtype=np.uint8)

    @contextmanager
    def hook_into(self, interpreter: Any) -> Iterator[None]:
        """Replace the interpreter's methods by the recorder's in the body of a `with`."""
        hooks: dict[str, Callable[..., Any]] = {
            "create_masked_load": self._load,
            "create_masked_store": self._store,
            "create_atomic_rmw": self._update,
            "create_atomic_cas": self._exchange,
            "create_atomic_load": self._as_atomic,
            "create_atomic_store": self._as_atomic,
            "create_barrier": self._barrier,
        }
        semantic = interpreter.interpreter_semantic
        members = {
            name: _with_original(hook, getattr(self.builder, name))
            for name, hook in hooks.items()
            if hasattr(self.builder, name)
        }
        with (
            replace_members(self.builder, members),
            replace_members(interpreter, {"_implicit_cvt": _with_original(self._convert, interpreter._implicit_cvt)}),
            replace_members(semantic, {"load": _with_original(self._fill, semantic.load)}),
            self.undefined.hook_into(interpreter),
        ):
            yield

    def _convert(self, original: Callable[..., Any], argument: Any) -> Any:
        value = original(argument)
        if isinstance(argument, torch.Tensor):
            value.handle.data = np.array([self.space.address(argument)], dtype=np.uint64)
        return value

    def _fill(self, original: Callable[..., Any], ptrs: Any, mask: Any = None, other: Any = None, *rest: Any) -> Any:
        """Remember whether a load has `other`: Triton drops it if it is a single 0."""
        self.filled = other is not None
        try:
            return original(ptrs, mask, other, *rest)
        finally:
            self.filled = False

    def _load(
        self, original: Callable[..., Any], ptrs: Handle, mask: Handle, other: Handle | None, *rest: Any
    ) -> Handle:
        real, inside, outside = self._note(LOAD, ptrs, mask)
        found = original(real, inside, other, *rest)
        off = ~(inside.data | outside)
        # A masked-off lane is undefined without `other`; the interpreter gives 0.
        undefined = np.zeros_like(off) if self.filled or other is not None else off
        self.undefined.inherit(found, other, off)
        self.undefined.mark(found, undefined)
        self.undefined.mark(found, outside, fault=True)
        return poison(found, undefined | outside)

    def _store(self, original: Callable[..., Any], ptrs: Handle, value: Handle, mask: Handle, *rest: Any) -> None:
        real, inside, _ = self._note(STORE, ptrs, mask, value)
        original(real, self._poison_stored(ptrs, value, inside), inside, *rest)

    def _update(
        self, original: Callable[..., Any], operation: Any, ptrs: Handle, value: Handle, mask: Handle, *rest: Any
    ) -> Handle:
        role = RELEASE if operation.name == "XCHG" else NO_LOCK
        real, inside, outside = self._note(ATOMIC, ptrs, mask, role=role)
        found = original(operation, real, self._poison_stored(ptrs, value, inside), inside, *rest)
        self.undefined.mark(found, ~inside.data)
        self.undefined.mark(found, outside, fault=True)
        return poison(found, outside)

    def _exchange(
        self, original: Callable[..., Any], ptrs: Handle, compared: Handle, value: Handle, *rest: Any
    ) -> Handle:
        everywhere = type(ptrs)(np.ones(ptrs.data.shape, dtype=bool), ptrs.dtype)
        real, inside, outside = self._note(ATOMIC, ptrs, everywhere)
        real.data = np.where(inside.data, real.data, np.uint64(self.scratch.ctypes.data))
        self._poison_stored(ptrs, compared, inside)
        found = original(real, compared, self._poison_stored(ptrs, value, inside), *rest)
        self.exchanged = found.data.size == 1 and bool((found.data == compared.data).all())
        self.undefined.mark(found, outside, fault=True)
        return poison(found, outside)

    def _poison_stored(self, ptrs: Handle, value: Handle, inside: Handle) -> Handle:
        """Replace the undefined lanes of a stored value by poison, and note them."""

        def describe(lane: int) -> str:
            buffer, offset, *_ = self.space.find(ptrs.data.reshape(-1)[lane : lane + 1], _itemsize(ptrs))
            target = self.space.buffers[buffer[0]]
            return f"{target.describe(int(offset[0]))} of {target.name}"

        undefined = self.undefined.note(value, STORED, inside.data, describe)
        return poison(type(value)(value.data, value.dtype), undefined)

    def _take_lock(self) -> None:
        """Mark the compare-and-swap before a branch as acquiring a lock, if nothing was accessed since."""
        if self.exchanged:
            self.rows[-1]["role"] = ACQUIRE

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
        """Restart at phase 0 when another program of the grid starts."""
        if self.program != (now := tuple(self.builder.grid_idx)):
            self.program, self.phase = now, 0

    def _note(
        self, kind: int, ptrs: Handle, mask: Handle, value: Handle | None = None, role: int = NO_LOCK
    ) -> tuple[Handle, Handle, np.ndarray]:
        """Record one access; return its real pointers, the mask of lanes in bounds, and the lanes out of bounds."""
        self._follow()
        self.exchanged = False
        itemsize = _itemsize(ptrs)
        buffer, offset, there, places = self.space.find(ptrs.data, itemsize)
        asked = np.broadcast_to(np.asarray(getattr(mask, "data", mask), dtype=bool), ptrs.data.shape)
        self.undefined.note(ptrs, ADDRESS, asked)
        self.undefined.note(mask, MASK, np.ones(asked.shape, dtype=bool))
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
        rows["role"] = role
        if value is not None:
            stored = np.broadcast_to(value.data, ptrs.data.shape).transpose(order).reshape(-1)[lanes]
            rows["value"] = stored.view(f"i{stored.itemsize}").astype(np.int64) + 1
        self.rows.append(rows)
        self.requests += -(-asked.size // WARP)
        self.widest = max(self.widest, asked.size)
        if kind != LOAD:
            self.space.mark_stored(buffer[inside])
        handle = type(ptrs)
        return handle(places.astype(np.uint64), ptrs.dtype), handle(inside, ptrs.dtype), asked & ~there

    def _block(self) -> int:
        (x, y, z), (nx, ny, _) = self.builder.grid_idx, self.builder.grid_dim
        return int(x + nx * (y + ny * z))

    def _site(self) -> int:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and is_machinery(frame.f_code.co_filename):
            frame = frame.f_back
        assert frame is not None, "an access comes from a kernel"
        return self.sites.setdefault((frame.f_code.co_filename, frame.f_lineno), len(self.sites))

    def trace(self, kernel: str, grid: tuple[int, int, int]) -> Trace:
        """The trace of all recorded accesses."""
        sites = tuple(Site(file, line, linecache.getline(file, line).strip()) for file, line in self.sites)
        accesses = np.concatenate(self.rows) if self.rows else np.empty(0, dtype=ACCESS)
        block = (self.widest, 1, 1)
        buffers, arrivals, words = tuple(self.space.buffers), np.empty(0, dtype=ARRIVAL), ("program", "lane")
        undefined = tuple(self.undefined.effects.values())
        return Trace(kernel, grid, block, buffers, sites, accesses, arrivals, words, undefined)


def _with_original(hook: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `hook` so that it gets `original` first, and keyword arguments by position."""
    return lambda *args, **keywords: hook(original, *args, *keywords.values())


def _lanes(addresses: np.ndarray, itemsize: int) -> list[int]:
    """Dimensions of a block of addresses, ordered so that the contiguous one comes last."""

    def follow(axis: int) -> bool:
        steps = np.diff(addresses.astype(np.int64), axis=axis)
        return steps.size > 0 and bool((steps == itemsize).all())

    return sorted(range(addresses.ndim), key=follow)


def _itemsize(ptrs: Handle) -> int:
    """Bytes of the element that a pointer points to."""
    return max(1, int(ptrs.get_element_ty().primitive_bitwidth) // 8)


def is_machinery(file: str) -> bool:
    """Whether a source file belongs to Triton or to the microscope rather than to a kernel."""
    triton = str(Path(sys.modules["triton"].__file__ or "").parent)
    return file.startswith((HERE, triton)) or file in (triton_launch.__file__, triton_arithmetic.__file__)
