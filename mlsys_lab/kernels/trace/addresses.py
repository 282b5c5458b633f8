"""Made-up addresses for a traced Triton kernel: whatever it does with them, no memory of this process is harmed.

Triton's kernels see addresses, not arrays. Each argument gets one of its own, so far from all others that even an
index that is wrong by gigabytes is known for an index into that argument. A copy of the argument stands behind it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.trace.events import Buffer

APART = 40
"""Power of two of which the distance of two arguments' addresses is a multiple."""

POISON = 0xFF
"""Value of every byte that a kernel should not have read: NaN as a float of any width, −1 as an integer."""

SPARE = 64
"""Bytes behind each copy, so that an argument without elements has an address of its own."""


class AddressSpace:
    """Copies of a launch's arrays, and a map from made-up addresses to their bytes."""

    def __init__(self, outputs: tuple[str, ...] = ()) -> None:
        self.buffers: list[Buffer] = []
        self._outputs = outputs
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.Tensor]] = {}
        self._standing: dict[int, int] = {}  # where an argument's copy begins, and its index in `buffers`
        self._starts: list[int] = []
        self._stored: set[int] = set()

    def stand_in(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Give `tensor` an address: a tensor of one element at the beginning of its copy.

        Arguments that share storage share the copy; those that begin at the same byte are one buffer.
        """
        copy = self._copied(tensor)
        first = copy[tensor.storage_offset() * tensor.itemsize :][: tensor.itemsize].view(tensor.dtype)
        buffer = Buffer(
            name,
            "global",
            tuple(tensor.shape),
            tensor.itemsize,
            tuple(stride * tensor.itemsize for stride in tensor.stride()),
            written=name not in self._outputs,
        )
        if not buffer.written:
            _view(copy, tensor).fill_(-1)
        if (seen := self._standing.get(first.data_ptr())) is None:
            self._standing[first.data_ptr()] = len(self.buffers)
            self.buffers.append(buffer)
            self._starts.append(first.data_ptr())
        elif buffer.size_bytes > self.buffers[seen].size_bytes:
            self.buffers[seen] = buffer
        return first

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key = storage.data_ptr() or -1 - len(self._storages)  # without bytes a storage has no address
        if key not in self._storages:
            copy = torch.full((storage.nbytes() + SPARE,), POISON, dtype=torch.uint8)
            copy[: storage.nbytes()] = _bytes(storage)
            self._storages[key] = storage, copy
        return self._storages[key][1]

    def address(self, stand_in: Any) -> int:
        """The made-up address that stands for the tensor `stand_in` was made for."""
        return self._standing[stand_in.data_ptr()] + 1 << APART

    def find(self, addresses: np.ndarray, itemsize: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """For each made-up address: buffer, offset in bytes, whether an element is there, and its place in the copies.

        An address near none of the arguments is counted to the nearest. InputError for elements of another width.
        """
        if not self.buffers:
            raise InputError("the kernel touches memory", got="no array among its arguments")
        signed = addresses.astype(np.int64)
        buffer = np.clip((signed + (1 << APART - 1) >> APART) - 1, 0, len(self.buffers) - 1)
        offset = signed - (buffer + 1 << APART)
        for index in np.flatnonzero(np.bincount(buffer.ravel())):
            if (width := self.buffers[index].itemsize) != itemsize:
                raise InputError(f"elements of {self.buffers[index].name}", got=f"{itemsize} bytes", expected=width)
        sizes = np.asarray([one.size_bytes for one in self.buffers], dtype=np.int64)
        inside = (offset >= 0) & (offset + itemsize <= sizes[buffer])
        return buffer, offset, inside, np.asarray(self._starts, dtype=np.int64)[buffer] + offset

    def stored(self, buffers: np.ndarray) -> None:
        """Mark these buffers as written to, for `copy_back`."""
        self._stored.update(np.flatnonzero(np.bincount(buffers)).tolist())

    def copy_back(self) -> None:
        """Copy the new values of all buffers that were written to into the caller's arguments."""
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
