"""Arrays as a kernel of Numba sees them: elements by integer indices, a shape, a size, a type, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from operator import index
from typing import Any, NoReturn

import numpy as np

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.trace.events import ATOMIC, LOAD, STORE

Touch = Callable[[int, "Memory", int], None]
"""Type of the function told of each access: its kind, the array, and the element counted along memory."""


def poison(dtype: np.dtype[Any]) -> Any:
    """Value of memory that nobody has written: NaN, or an integer type's largest."""
    if dtype.kind in "fc":
        return dtype.type(np.nan)
    return True if dtype.kind == "b" else int(np.iinfo(dtype).max)


class Memory:
    """A contiguous array. Integers come out as Python's, which like Numba's do not wrap at 8, 16 or 32 bits.

    Loads from outside give `poison`, stores to it are dropped. Indices count along memory as on the device, where
    [0, n] of a row of n elements is [1, 0]. Negative ones lie outside, in front of the array, as in CUDA C++; Numba
    alone counts them from the end.
    """

    __iter__ = None  # NumPy's would never end: no index is refused
    __contains__ = None

    def __init__(self, name: str, values: np.ndarray, touch: Touch, number: int = 0) -> None:
        self.shape, self.ndim, self.size, self.dtype = values.shape, values.ndim, values.size, values.dtype
        self._name, self._touch, self.number = name, touch, number
        self._values = values.reshape(-1)
        self._read = self._values.item if self.dtype.kind in "iub" else self._values.__getitem__
        self._pitches = tuple(prod(self.shape[axis + 1 :]) for axis in range(self.ndim))
        self._pitch = self._pitches[0]

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, key: Any) -> Any:
        element = self.element(key)
        self._touch(LOAD, self, element)
        return self.load(element)

    def __setitem__(self, key: Any, value: Any) -> None:
        element = self.element(key)
        self._touch(STORE, self, element)
        self.store(element, value)

    def update(self, key: Any, change: Callable[[Any], Any]) -> Any:
        """Atomically replace an element by what `change` makes of it; returns the old value."""
        element = self.element(key)
        self._touch(ATOMIC, self, element)
        old = self.load(element)
        self.store(element, change(old))
        return old

    def load(self, element: int) -> Any:
        """Value of an element, without a record of the access."""
        return self._read(element) if 0 <= element < self.size else poison(self.dtype)

    def store(self, element: int, value: Any) -> None:
        """Set an element, without a record of the access."""
        if 0 <= element < self.size:
            try:
                self._values[element] = value
            except OverflowError:  # the device keeps the low bits
                self._values[element] = np.asarray(value).astype(self.dtype)

    def element(self, key: Any) -> int:
        """Position of an index, counted in elements from the first; InputError for what is not an index."""
        if type(key) is int and self.ndim == 1:
            return key
        try:
            if self.ndim == 1:
                return index(key[0] if type(key) is tuple and len(key) == 1 else key)
            if self.ndim == 2:
                row, column = key
                element: int = index(row * self._pitch + column)
                return element
            if len(key) == self.ndim:
                return sum(index(one) * pitch for one, pitch in zip(key, self._pitches, strict=True))
        except (TypeError, ValueError):
            pass  # not integers, or not as many as there are dimensions: told in the kernel's words below
        self._refuse(key)

    def _refuse(self, key: Any) -> NoReturn:
        indices = "one integer" if self.ndim == 1 else f"{self.ndim} integers"
        raise InputError(f"{self._name} is indexed by {indices} in a kernel", got=_shown(key))


class Guarded(Memory):
    """An array of a launch that is not recorded: an index outside of its dimension raises InputError."""

    def __getitem__(self, key: Any) -> Any:
        return self._read(self.element(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.store(self.element(key), value)

    def element(self, key: Any) -> int:
        """Position of an index, counted in elements from the first; InputError for one out of bounds."""
        if type(key) is int:
            if self.ndim == 1 and 0 <= key < self.size:
                return key
        elif self.ndim == 2 and type(key) is tuple and len(key) == 2:
            row, column = key
            if type(row) is type(column) is int and 0 <= row < self.shape[0] and 0 <= column < self.shape[1]:
                return row * self._pitch + column
        element = super().element(key)
        keys = key if type(key) is tuple else (key,)
        for one, extent in zip(keys, self.shape, strict=True):
            if not 0 <= one < extent:
                raise InputError(f"{self._name}[{_shown(key)}] is out of bounds", expected=f"within shape {self.shape}")
        return element


def _shown(key: Any) -> str:
    return ", ".join(map(str, key)) if isinstance(key, tuple) else str(key)
