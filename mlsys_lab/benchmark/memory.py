"""Exact bytes of the torch storages that are alive, counted operation by operation on any device."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

LIFTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default)
"""Operations that hand out a storage which `torch.tensor(data)` filled unseen: what they are given counts as new."""


class track_memory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within the block, `current_bytes` is what storages created in it hold now and `peak_bytes` the most at any time.

    Counts each storage once, however many views it has, from the op that creates it until the last reference to it is
    gone (after the block too, so that leaks show); a storage resized by an op counts with its new size. Storages that
    existed before the block count as nothing. Left out: memory shared with numpy (`torch.from_numpy`), what a kernel
    uses inside one op, sparse layouts, ops of other threads, and what the device's allocator rounds up or caches (for
    that see `torch.cuda.max_memory_allocated`).

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
        self._held: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}  # by address of the storage

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Always False: torch would otherwise import its compiler, for seconds, at the first counted operation."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one torch operation, then count the storages that it created or resized."""
        out = func(*args, **(kwargs or {}))
        given = _storages((args, kwargs))
        for address, storage in given.items():
            if address in self._held and self._held[address][1] != storage.nbytes():
                self._hold(address, storage)
        for address, storage in _storages(out).items():
            new = func in LIFTS or address not in given
            if new and address not in self._held and storage.resizable():  # memory of numpy cannot be resized
                self._hold(address, storage)
        self.peak_bytes = max(self.peak_bytes, self.current_bytes)
        return out

    def _hold(self, address: int, storage: torch.UntypedStorage) -> None:
        self._release(address)
        size_bytes = storage.nbytes()
        self._held[address] = (weakref.ref(storage, lambda _: self._release(address)), size_bytes)
        self.current_bytes += size_bytes

    def _release(self, address: int) -> None:
        if (entry := self._held.pop(address, None)) is not None:
            self.current_bytes -= entry[1]


def _storages(tree: Any) -> dict[int, torch.UntypedStorage]:
    """Storages of all dense tensors in nested containers, by their address."""
    storages = [t.untyped_storage() for t in _tensors(tree) if t.layout is torch.strided and not t.is_meta]
    return {storage._cdata: storage for storage in storages}


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors among what an operation is given or gives: `torch.utils._pytree` knows more and takes longer."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for one in tree:
            yield from _tensors(one)
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))
