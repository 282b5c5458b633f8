"""Virtual addresses for a traced Triton kernel, so that no access can harm this process.

Triton kernels see addresses, not arrays. Each argument gets a copy for the kernel to work on and a virtual address so
far from the others that even an index that is wrong by gigabytes is attributed to that argument.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.trace.events import Buffer

ADDRESS_SHIFT = 40
"""Virtual addresses of arguments are multiples of 2 to this power."""

POISON = 0xFF
"""Byte value of uninitialized memory: NaN as a float of any width, −1 as an integer."""

PADDING_BYTES = 64
"""Padding bytes after each copy, so that an argument without elements has its own address."""


class AddressSpace:
    """Copies of a launch's arrays, and a map from virtual addresses to their bytes."""

    def __init__(self, outputs: tuple[str, ...] = ()) -> None:
        self.buffers: list[Buffer] = []
        self._outputs = outputs
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.Tensor]] = {}
        self._standing: dict[int, int] = {}  # where an argument's copy begins, and its index in `buffers`
        self._starts: list[int] = []
        self._stored: set[int] = set()

    def stand_in(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Assign `tensor` a virtual address; return a one-element tensor at the start of its copy.

        Arguments that share storage share the copy; those that start at the same byte are one buffer.
        """
        copy = self._copy(tensor)
        first = copy[tensor.storage_offset() * tensor.itemsize :][: tensor.itemsize].view(tensor.dtype)
        buffer = Buffer(
            name,
            "global",
            tuple(tensor.shape),
            tensor.itemsize,
            tuple(stride * tensor.itemsize for stride in tensor.stride()),
            initialized=name not in self._outputs,
        )
        if not buffer.initialized:
            _view(copy, tensor).fill_(-1)
        if (seen := self._standing.get(first.data_ptr())) is None:
            self._standing[first.data_ptr()] = len(self.buffers)
            self.buffers.append(buffer)
            self._starts.append(first.data_ptr())
        elif buffer.size_bytes > self.buffers[seen].size_bytes:
            self.buffers[seen] = buffer
        return first

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key = storage.data_ptr() or -1 - len(self._storages)  # without bytes a storage has no address
        if key not in self._storages:
            copy = torch.full((storage.nbytes() + PADDING_BYTES,), POISON, dtype=torch.uint8)
            copy[: storage.nbytes()] = _bytes(storage)
            self._storages[key] = storage, copy
        return self._storages[key][1]

    def address(self, stand_in: Any) -> int:
        """The virtual address of the tensor that `stand_in` was made for."""
        return self._standing[stand_in.data_ptr()] + 1 << ADDRESS_SHIFT

    def find(self, addresses: np.ndarray, itemsize: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """For each virtual address: buffer, offset in bytes, whether it is in bounds, and its address in the copies.

        An address near no argument is attributed to the nearest. Raises InputError for elements of another width.
        """
        if not self.buffers:
            raise InputError("the kernel touches memory", got="no array among its arguments")
        signed = addresses.astype(np.int64)
        buffer = np.clip((signed + (1 << ADDRESS_SHIFT - 1) >> ADDRESS_SHIFT) - 1, 0, len(self.buffers) - 1)
        offset = signed - (buffer + 1 << ADDRESS_SHIFT)
        for index in np.flatnonzero(np.bincount(buffer.ravel())):
            if (width := self.buffers[index].itemsize) != itemsize:
                raise InputError(f"elements of {self.buffers[index].name}", got=f"{itemsize} bytes", expected=width)
        sizes = np.asarray([one.size_bytes for one in self.buffers], dtype=np.int64)
        inside = (offset >= 0) & (offset + itemsize <= sizes[buffer])
        return buffer, offset, inside, np.asarray(self._starts, dtype=np.int64)[buffer] + offset

    def mark_stored(self, buffers: np.ndarray) -> None:
        """Mark these buffers as stored to, for `copy_back`."""
        self._stored.update(np.flatnonzero(np.bincount(buffers)).tolist())

    def copy_back(self) -> None:
        """Copy all buffers that were stored to back into the caller's arguments."""
        starts = [self._starts[index] for index in self._stored]
        for storage, copy in self._storages.values():
            if any(0 <= start - copy.data_ptr() < len(copy) for start in starts):
                _bytes(storage).copy_(copy[: storage.nbytes()])


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _view(copy: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The elements of `like` in the copy of its storage, as integers of equal width."""
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[like.itemsize]
    empty = torch.empty(0, dtype=integers)
    return empty.set_(copy.untyped_storage(), like.storage_offset(), like.shape, like.stride())
