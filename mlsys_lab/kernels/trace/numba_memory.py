"""Arrays as a simulated Numba kernel sees them: elements by integer indices, shape, size and dtype only."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from math import prod
from operator import index
from typing import Any

import numpy as np

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.trace.events import ATOMIC, LOAD, STORE
from mlsys_lab.kernels.trace.numba_numbers import Convert, as_numba

Touch = Callable[[int, "Memory", int], None]
"""Type of the callback for each access: its kind, the array, and the element's position in memory."""


def poison(dtype: np.dtype[Any]) -> Any:
    """Value of uninitialized memory: NaN, or an integer type's largest value."""
    if dtype.kind in "fc":
        return dtype.type(np.nan)
    return True if dtype.kind == "b" else int(np.iinfo(dtype).max)


class Memory:
    """An array, or a view of one. Integers load as Python's, which like Numba's do not wrap at 8, 16 or 32 bits.

    As in Numba, an index below 0 counts from the end of its dimension, and fewer indices than dimensions, or slices,
    give a view. Nothing else is checked on the device: [0, n] of a row of n elements is [1, 0]. Loads from outside the
    underlying array give `poison`, stores to it are dropped.
    """

    __iter__ = None  # NumPy's would never end: no index is refused
    __contains__ = None
    __array_ufunc__ = None  # nor is a view a number for NumPy to calculate with

    def __init__(self, name: str, values: np.ndarray, touch: Touch, number: int = 0) -> None:
        self.dtype, self._name, self._touch, self.number = values.dtype, name, touch, number
        self._values = _flatten(values)
        self._read = self._values.item if self.dtype.kind in "iub" and self.dtype.itemsize > 2 else self._read_number
        self._place(0, values.shape, tuple(stride // values.itemsize for stride in values.strides))

    def _read_number(self, element: int) -> Any:
        return as_numba(self._values[element])

    def _place(self, first: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        """Make this the view whose element [0, …, 0] is element `first` of the whole array; strides in elements."""
        self.shape, self.ndim, self.size = shape, len(shape), prod(shape)
        self._first, self._strides = first, strides

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, key: Any) -> Any:
        try:
            element = self.element(key)
        except (TypeError, ValueError):
            return self._view(key)
        self._touch(LOAD, self, element)
        return self.load(element)

    def __setitem__(self, key: Any, value: Any) -> None:
        element = self._changed(key)
        self.store(element, value)
        self._touch(STORE, self, element)

    def update(self, key: Any, change: Callable[[Any], Any]) -> Any:
        """Atomically replace an element's value by `change(value)` and return the old value."""
        element = self._changed(key)
        self._touch(ATOMIC, self, element)
        old = self.load(element)
        self.store(element, change(old))
        return old

    def load(self, element: int) -> Any:
        """Value of an element, without recording the access."""
        return self._read(element) if 0 <= element < len(self._values) else as_numba(poison(self.dtype))

    def bits(self, element: int) -> int:
        """A number for an element's value, equal for equal values; 0 if out of bounds."""
        return hash(self._values[element].tobytes()) | 1 if 0 <= element < len(self._values) else 0

    def store(self, element: int, value: Any) -> None:
        """Set an element, without recording the access."""
        if 0 <= element < len(self._values):
            try:
                self._values[element] = value
            except (OverflowError, ValueError):  # the device keeps the low bits
                self._values[element] = Convert(self.dtype)(value)

    def element(self, key: Any) -> int:
        """Position in memory of an index, in elements; TypeError or ValueError if it does not name an element."""
        if self.ndim == 1:
            one = key if type(key) is int else index(key[0] if type(key) is tuple and len(key) == 1 else key)
            return self._first + (one + self.size if one < 0 else one) * self._strides[0]
        if self.ndim == 2:
            (row, column), (rows, columns), (down, right) = key, self.shape, self._strides
            if type(row) is type(column) is int:
                row, column = row + rows if row < 0 else row, column + columns if column < 0 else column
                return self._first + row * down + column * right
        indices = zip(key, self.shape, self._strides, strict=True)
        return self._first + sum((index(one) + n if one < 0 else index(one)) * stride for one, n, stride in indices)

    def _changed(self, key: Any) -> int:
        """Position of the one element that a kernel changes; InputError if the key does not name exactly one."""
        try:
            return self.element(key)
        except (TypeError, ValueError):
            indices = "one integer" if self.ndim == 1 else f"{self.ndim} integers"
            what = f"a kernel changes one element of {self._name} at a time, by {indices}"
            raise InputError(what, got=_format_key(key)) from None

    def _view(self, key: Any) -> Memory:
        """The view that integers and slices select."""
        keys = key if type(key) is tuple else (key,)
        first = self._first
        left: list[tuple[int, int]] = []  # length and stride of each dimension of the view
        for axis, one in enumerate(keys[: self.ndim]):
            n, stride = self.shape[axis], self._strides[axis]
            if isinstance(one, slice):
                start, stop, step = one.indices(n)
                first += start * stride
                left.append((len(range(start, stop, step)), step * stride))
            elif hasattr(one, "__index__"):
                first += (index(one) + n if one < 0 else index(one)) * stride
            else:
                left = []
                break
        left += zip(self.shape[len(keys) :], self._strides[len(keys) :], strict=True)
        if len(keys) > self.ndim or not left:
            indices = "one integer" if self.ndim == 1 else f"{self.ndim} integers"
            raise InputError(f"{self._name} is indexed by {indices} in a kernel", got=_format_key(key))
        view = copy(self)
        view._place(first, tuple(n for n, _ in left), tuple(stride for _, stride in left))
        return view


class Guarded(Memory):
    """An array of an unrecorded launch; raises InputError for an out-of-bounds index."""

    def element(self, key: Any) -> int:
        """Position in memory of an index, in elements; InputError if out of bounds."""
        element = super().element(key)
        keys = key if type(key) is tuple else (key,)
        for one, extent in zip(keys, self.shape, strict=True):
            if not -extent <= one < extent:
                raise InputError(
                    f"{self._name}[{_format_key(key)}] is out of bounds", expected=f"within shape {self.shape}"
                )
        return element


def _flatten(values: np.ndarray) -> np.ndarray:
    """The memory from an array's first element to its last, as one contiguous dimension."""
    if values.flags.c_contiguous:
        return values.reshape(-1)
    span = 1 + sum((n - 1) * stride for n, stride in zip(values.shape, values.strides, strict=True)) // values.itemsize
    return np.lib.stride_tricks.as_strided(values, (span,), (values.itemsize,))


def _format_key(key: Any) -> str:
    return ", ".join(map(str, key)) if isinstance(key, tuple) else str(key)
