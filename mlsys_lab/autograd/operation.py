"""How an operation comes on the tape: its result, an edge for each operand, and what the backward pass needs."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch

from mlsys_lab.autograd.graph import Edge, GradMode, Node, Vjp, grad_mode, tracked_operands
from mlsys_lab.autograd.tensor import Tensor


def record(data: torch.Tensor, *edges: tuple[Any, Vjp]) -> Tensor:
    """Put an operation on the tape: a tensor of `data`, with one edge (operand, vjp) for each operand.

    Operands that need no gradient (constants among them) leave no edge; without edges, or within `no_grad`, nothing is
    put on the tape.
    """
    out: Tensor = Tensor.__new__(Tensor)
    out.data = data
    out.grad = None
    out.node = None
    out.requires_grad = False
    if (noted := tracked_operands.get()) is not None:
        arrays = (array for edge in edges for array in captured_arrays(edge))
        noted.extend(weakref.ref(array if array._base is None else array._base) for array in arrays)
    if (mode := grad_mode.get()) is not GradMode.OFF:
        live: list[Edge] = [
            (operand.node or operand, vjp)
            for operand, vjp in edges
            if isinstance(operand, Tensor) and operand.requires_grad
        ]
        out.requires_grad = bool(live) and data.is_floating_point()  # whole numbers have no slope
        if out.requires_grad and mode is GradMode.TAPE:
            out.node = Node(tuple(live), (array for _, vjp in live for array in captured_arrays(vjp)))
    return out


def captured_arrays(held: object) -> Iterator[torch.Tensor]:
    """Yield every torch tensor in `held`: in containers, in Tensors, and in the variables that functions capture."""
    if isinstance(held, torch.Tensor):
        yield held
    elif isinstance(held, Tensor):
        yield held.data
    elif isinstance(held, FunctionType):
        for cell in held.__closure__ or ():
            with contextlib.suppress(ValueError):  # a variable that is assigned only after the function was made
                yield from captured_arrays(cell.cell_contents)
        yield from captured_arrays(held.__defaults__ or ())
    elif isinstance(held, (tuple, list)):
        for part in held:
            yield from captured_arrays(part)
