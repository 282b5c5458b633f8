"""The tape: what an operation leaves behind for the way back, and the pass that consumes it.

A `Node` is one recorded operation. For each operand that needs a gradient it has an edge (target, vjp): where the
gradient goes, and the vector-Jacobian product that takes the gradient of the result to the gradient of the operand.
A vjp is a closure, and what it captures is exactly what the graph keeps alive: a product captures the other factor, a
sum captures nothing but shapes. Nothing is saved for an operand that needs no gradient, because its vjp is dropped.

Nodes are numbered as they are written, so numbers fall along every edge and the order of writing, reversed, is an order
to go back in. The pass is a priority queue over these numbers: no recursion and no sorting beforehand. PyTorch's engine
orders its nodes by the same means (`sequence_nr`).
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

import torch

from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.autograd.tensor import Tensor

Vjp = Callable[[torch.Tensor], torch.Tensor]
Edge = tuple["Node | Tensor", Vjp]

numbers = itertools.count()
recording: ContextVar[bool] = ContextVar("recording", default=True)


class Node:
    """One recorded operation. An edge leads to the node that made an operand, or to the operand if it is a leaf."""

    __slots__ = ("edges", "number")

    def __init__(self, edges: tuple[Edge, ...]) -> None:
        self.number = next(numbers)
        self.edges: tuple[Edge, ...] | None = edges

    @property
    def op(self) -> str:
        """Name of the operation that wrote this node, such as "mul"; "released" after a backward pass."""
        return self.edges[0][1].__qualname__.partition(".")[0] if self.edges else "released"

    def gradients(self, grad: torch.Tensor) -> Iterator[tuple[Node | Tensor, torch.Tensor]]:
        """From the result's gradient `grad`, yield for each operand the pair (node or leaf to send it to, gradient)."""
        if self.edges is None:
            raise released_error()
        for target, vjp in self.edges:
            yield target, vjp(grad)

    def release(self) -> None:
        """Drop the closures of the vjps, and with them every array that only they kept alive."""
        self.edges = None

    def targets(self) -> Iterator[Node | Tensor]:
        """The nodes and leaves that this node sends gradients to."""
        return (target for target, _ in self.edges or ())

    def held(self) -> Iterator[object]:
        """What this node keeps alive for the backward pass: the closures of its vector-Jacobian products."""
        return (vjp for _, vjp in self.edges or ())


def released_error() -> InputError:
    """The error to raise when a second backward pass meets a graph that the first has released."""
    return InputError(
        "the graph of this tensor has been released by an earlier backward()",
        help="compute the tensor again, or call the earlier one as backward(retain_graph=True)",
    )


@contextlib.contextmanager
def set_recording(mode: bool) -> Iterator[None]:
    """Switch recording on the tape on (True) or off (False) for the body of a `with`, in this thread only."""
    token = recording.set(mode)
    try:
        yield
    finally:
        recording.reset(token)


@contextlib.contextmanager
def no_grad() -> Iterator[None]:
    """`with no_grad():` computes without recording: results need no gradient and hold no graph. Also a decorator."""
    with set_recording(False):
        yield


def propagate(
    root: Node | Tensor, grad: torch.Tensor, *, retain_graph: bool = False, older_than: int = 0
) -> list[tuple[Node, torch.Tensor]]:
    """Carry `grad`, the gradient of `root`, back along the tape; leaves add what reaches them to their `grad`.

    Nodes numbered below `older_than` are not entered: what reaches them is returned, so that a pass over a piece of
    the graph (`checkpoint`) can hand its results to the pass over the whole. Every other node is released once passed.
    """
    arrived: dict[Node, torch.Tensor] = {}
    queue: list[tuple[int, Node]] = []
    border: list[tuple[Node, torch.Tensor]] = []

    def deliver(target: Node | Tensor, grad: torch.Tensor, source: torch.Tensor) -> None:
        if not isinstance(target, Node):
            _accumulate(target, grad, source)
        elif target in arrived:
            arrived[target] = arrived[target] + grad
        else:
            arrived[target] = grad
            heapq.heappush(queue, (-target.number, target))

    deliver(root, grad, grad)
    while queue:
        _, node = heapq.heappop(queue)
        grad = arrived.pop(node)
        if node.number < older_than:
            border.append((node, grad))
            continue
        for target, share in node.gradients(grad):
            deliver(target, share, grad)
        if not retain_graph:
            node.release()
    return border


def _accumulate(leaf: Tensor, grad: torch.Tensor, source: torch.Tensor) -> None:
    """Add to a leaf's gradient, in storage of its own: a vjp may return its argument `source` or a view of it."""
    if leaf.grad is not None:
        leaf.grad += grad
    elif grad.untyped_storage().data_ptr() == source.untyped_storage().data_ptr() or not grad.is_contiguous():
        leaf.grad = grad.clone(memory_format=torch.contiguous_format)
    else:
        leaf.grad = grad


def nodes(root: Node | None) -> list[Node]:
    """Every node that a backward pass from `root` would visit, in the order of the visit; empty for None."""
    if root is None:
        return []
    found, stack = {root}, [root]
    while stack:
        for target in stack.pop().targets():
            if isinstance(target, Node) and target not in found:
                found.add(target)
                stack.append(target)
    return sorted(found, key=lambda node: -node.number)
