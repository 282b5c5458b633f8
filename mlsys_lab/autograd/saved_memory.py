"""Memory of the saved tensors: how many bytes a graph keeps alive for its backward pass."""

from __future__ import annotations

import torch

from mlsys_lab.autograd.graph import Node, nodes
from mlsys_lab.autograd.tensor import Tensor


def saved_storages(root: Tensor) -> dict[int, int]:
    """Address and size in bytes of every storage that the graph of `root` has saved tensors in, each once.

    Storage of leaves (parameters) does not count: it is alive with or without the graph. A view counts with its full
    storage, which it keeps alive. A checkpointed function counts with its inputs.
    """
    leaves: set[int] = set()
    saved: dict[int, int] = {}
    for node in nodes(root.node):
        leaves.update(_address(target.data) for target in node.targets() if not isinstance(target, Node))
        for array, _ in node.saved:
            storage = array.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes()
    return {address: size for address, size in saved.items() if size and address not in leaves}


def saved_bytes(root: Tensor) -> int:
    """Bytes that the graph of `root` saves for its backward pass; 0 once the backward pass has released the graph.

    >>> x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> saved_bytes(x + 1), saved_bytes(x.exp())
    (0, 12)
    """
    return sum(saved_storages(root).values())


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
