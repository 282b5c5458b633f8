"""A stand-in for a GPU: torch's "meta" device, whose tensors have shapes and no values.

It refuses what a GPU refuses, operations on tensors of the device and of the host together, and counts what would wait
for the device: everything that brings its values to the host. What waits within an operation, such as `nonzero`, is an
error. So a program that runs here keeps its tensors where they belong, and it is known how often a step of it waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DEVICE = "meta"
READS = {
    getattr(torch.Tensor, name): name
    for name in ("__bool__", "__float__", "__index__", "__int__", "cpu", "item", "numpy", "tolist")
}
aten = torch.ops.aten
MOVES = (aten._to_copy.default, aten.copy_.default)
INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
"""Operations that take indices from the host, too, into tensors on a GPU."""


class _Devices(TorchDispatchMode):
    """Refuses operations on tensors of several devices; numbers, tensors without axes, are at home on each."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Always False: torch would otherwise import its compiler, for seconds, at the first operation."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (args[0], args[2:]) if func in INDEXING and args[0].is_meta else (args, kwargs)
        devices = {one.device.type for one in tree_leaves(given) if isinstance(one, torch.Tensor) and one.ndim}
        assert len(devices) < 2 or func in MOVES, f"{func} of tensors on {' and '.join(sorted(devices))}"
        return func(*args, **(kwargs or {}))


class _Reads(TorchFunctionMode):
    """Answers every read with zeros, and counts it by its method's name."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS and args[0].is_meta:
            self.reads[READS[func]] += 1
            return func(torch.zeros(args[0].shape, dtype=args[0].dtype), *args[1:], **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@contextmanager
def pretended_gpu() -> Iterator[Counter[str]]:
    """Within the block `DEVICE` acts as a GPU; gives the number of reads of its values so far, by method."""
    with _Devices(), _Reads() as mode:
        yield mode.reads
