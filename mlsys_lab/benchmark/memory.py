"""Exact bytes of live torch storages, counted operation by operation on any device."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

LIFTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default)
"""Operations that return a storage which `torch.tensor(data)` filled outside dispatch: their inputs count as new."""


class track_memory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the bytes of storages created in the `with` block: `current_bytes` now, `peak_bytes` at the maximum.

    Each storage counts once, however many views it has, from the op that creates it until its last reference is gone
    (also after the block, so that leaks show); a storage resized by an op counts with its new size. Storages that
    existed before the block are not counted. Not included: memory shared with numpy (`torch.from_numpy`), a kernel's
    workspace within one op, sparse layouts, ops of other threads, and what the device's allocator rounds up or caches
    (for that see `torch.cuda.max_memory_allocated`).

    >>> with track_memory() as m:
    ...     x = torch.zeros(1000)
    ...     y = (x + 1).sum()
    >>> m.peak_bytes, m.current_bytes
    (8004, 4004)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current_bytes = 0
        self.peak_bytes = 0
        self._live: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}  # by address of the storage

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Always False: torch would otherwise import its compiler, for seconds, at the first counted operation."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one torch operation, then count the storages that it created or resized."""
        out = func(*args, **(kwargs or {}))
        given = _storages((args, kwargs))
        for address, storage in given.items():
            if address in self._live and self._live[address][1] != storage.nbytes():
                self._track(address, storage)
        for address, storage in _storages(out).items():
            new = func in LIFTS or address not in given
            if new and address not in self._live and storage.resizable():  # memory of numpy cannot be resized
                self._track(address, storage)
        self.peak_bytes = max(self.peak_bytes, self.current_bytes)
        return out

    def _track(self, address: int, storage: torch.UntypedStorage) -> None:
        self._release(address)
        size_bytes = storage.nbytes()
        self._live[address] = (weakref.ref(storage, lambda _: self._release(address)), size_bytes)
        self.current_bytes += size_bytes

    def _release(self, address: int) -> None:
        if (entry := self._live.pop(address, None)) is not None:
            self.current_bytes -= entry[1]


def _storages(tree: Any) -> dict[int, torch.UntypedStorage]:
    """Storages of all dense tensors in nested containers, by their address."""
    storages = [t.untyped_storage() for t in _tensors(tree) if t.layout is torch.strided and not t.is_meta]
    return {storage._cdata: storage for storage in storages}


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in an operation's arguments or results; faster than the more general `torch.utils._pytree`."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for one in tree:
            yield from _tensors(one)
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))
