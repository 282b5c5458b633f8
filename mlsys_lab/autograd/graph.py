"""The tape: nodes that the forward pass records, and the backward pass that consumes them.

A `Node` is one recorded operation. For each operand that needs a gradient it has an edge (target, vjp): where the
gradient goes, and the vector-Jacobian product (VJP) that takes the gradient of the result to that of the operand.
A vjp is a closure, and the tensors that it captures are the saved tensors, which the graph keeps alive: a product saves
the other factor, a sum saves only shapes. An operand that needs no gradient has no vjp, so nothing is saved for it.
The node notes the version counter of each saved tensor, so that the backward pass detects a later in-place change.

Nodes are numbered in the order of recording, so numbers decrease along every edge, and decreasing numbers are a
topological order for the backward pass. It is a priority queue over these numbers: no recursion, and no sort in
advance. PyTorch's engine orders its nodes in the same way (`sequence_nr`).
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from enum import IntEnum
from typing import Protocol

import torch

from mlsys_lab.errors import InputError

Vjp = Callable[[torch.Tensor], torch.Tensor]
Edge = tuple["Node | Leaf", Vjp]

sequence_numbers = itertools.count()


class Leaf(Protocol):
    """A tensor that no operation made; the backward pass adds to its `grad`."""

    data: torch.Tensor
    grad: torch.Tensor | None


class GradMode(IntEnum):
    """What an operation records: nothing, whether its result needs a gradient, or a node on the tape."""

    OFF = 0
    REQUIRES_GRAD_ONLY = 1
    TAPE = 2


grad_mode: ContextVar[GradMode] = ContextVar("grad_mode", default=GradMode.TAPE)


tracked_operands: ContextVar[list[weakref.ref[torch.Tensor]] | None] = ContextVar("tracked_operands", default=None)


@contextlib.contextmanager
def track_operands() -> Iterator[list[weakref.ref[torch.Tensor]]]:
    """Collect weak references to the arrays that operations in the body of a `with` have as operands.

    Nested bodies add to the list of the outermost one. For a view the list has the base array.
    """
    tracked = tracked_operands.get()
    token = tracked_operands.set(tracked := [] if tracked is None else tracked)
    try:
        yield tracked
    finally:
        tracked_operands.reset(token)


class Node:
    """One recorded operation. An edge leads to the node that made an operand, or to the operand if it is a leaf.

    `saved` holds the saved tensors, each with the value of its version counter at the time.
    """

    __slots__ = ("edges", "saved", "sequence_nr")

    def __init__(self, edges: tuple[Edge, ...], saved: Iterable[torch.Tensor]) -> None:
        self.sequence_nr = next(sequence_numbers)
        self.edges: tuple[Edge, ...] | None = edges
        self.saved = tuple((array, version_of(array)) for array in saved)

    @property
    def op(self) -> str:
        """Name of the recorded operation, such as "mul"; "released" after a backward pass."""
        return self.edges[0][1].__qualname__.partition(".")[0] if self.edges else "released"

    def input_gradients(self, grad: torch.Tensor) -> Iterator[tuple[Node | Leaf, torch.Tensor]]:
        """Apply the VJPs to the result's gradient `grad`: yield a pair (node or leaf, gradient) for each operand."""
        if self.edges is None:
            raise released_error()
        self.check_versions()
        for target, vjp in self.edges:
            yield target, vjp(grad)

    def check_versions(self) -> None:
        """Raise InputError if a saved tensor was changed in place after the forward pass."""
        for array, version in self.saved:
            check_version(array, version, self.op)

    def release(self) -> None:
        """Drop the VJPs and saved tensors, and free the memory that only this node kept alive."""
        self.edges, self.saved = None, ()

    def targets(self) -> Iterator[Node | Leaf]:
        """Yield the nodes and leaves that this node sends gradients to."""
        return (target for target, _ in self.edges or ())


def version_of(array: torch.Tensor) -> int:
    """Version counter of an array: its in-place changes so far; 0 in inference mode, where torch does not count."""
    return 0 if array.is_inference() else array._version


def check_version(array: torch.Tensor, version: int, op: str) -> None:
    """Raise InputError if an array that the backward pass of `op` needs was changed in place after the forward pass."""
    if changes := version_of(array) - version:
        raise InputError(
            f"an array that the backward pass of {op} needs was changed in place after the forward pass",
            got=f"{changes} change{'s' * (changes > 1)} to an array of shape {tuple(array.shape)}",
            help="call backward() before optimizer.step() and other changes, or change a copy (data.clone())",
        )


def released_error() -> InputError:
    """The error for a second backward pass through a graph that the first one has released."""
    return InputError(
        "the graph of this tensor has been released by an earlier backward()",
        help="compute the tensor again, or call the earlier one as backward(retain_graph=True)",
    )


@contextlib.contextmanager
def set_grad_mode(mode: GradMode) -> Iterator[None]:
    """Set what operations record in the body of a `with`, in this thread only."""
    token = grad_mode.set(mode)
    try:
        yield
    finally:
        grad_mode.reset(token)


@contextlib.contextmanager
def no_grad() -> Iterator[None]:
    """`with no_grad():` computes without recording: results need no gradient and hold no graph. Also a decorator."""
    with set_grad_mode(GradMode.OFF):
        yield


def run_backward(
    root: Node | Leaf, grad: torch.Tensor, *, retain_graph: bool = False, older_than: int = 0
) -> list[tuple[Node, torch.Tensor]]:
    """Run the backward pass from `root`, whose gradient is `grad`; leaves accumulate their gradients in `grad`.

    Nodes with a `sequence_nr` below `older_than` are not entered; their gradients are returned, so that the backward
    pass over a recomputed segment (`checkpoint`) can pass them on to the enclosing one. Every node is released once
    its gradient has been sent on, unless `retain_graph`.
    """
    gradients: dict[Node, torch.Tensor] = {}
    queue: list[tuple[int, Node]] = []
    outside: list[tuple[Node, torch.Tensor]] = []

    def deliver(target: Node | Leaf, grad: torch.Tensor, source: torch.Tensor) -> None:
        if not isinstance(target, Node):
            _accumulate(target, grad, source)
        elif target in gradients:
            gradients[target] = gradients[target] + grad
        else:
            gradients[target] = grad
            heapq.heappush(queue, (-target.sequence_nr, target))

    deliver(root, grad, grad)
    while queue:
        _, node = heapq.heappop(queue)
        grad = gradients.pop(node)
        if node.sequence_nr < older_than:
            outside.append((node, grad))
            continue
        for target, input_grad in node.input_gradients(grad):
            deliver(target, input_grad, grad)
        if not retain_graph:
            node.release()
    return outside


def _accumulate(leaf: Leaf, grad: torch.Tensor, source: torch.Tensor) -> None:
    """Add to a leaf's gradient, in storage of its own: a vjp may return its argument `source` or a view of it."""
    if leaf.grad is not None:
        leaf.grad += grad
    elif grad.untyped_storage().data_ptr() == source.untyped_storage().data_ptr() or not grad.is_contiguous():
        leaf.grad = grad.clone(memory_format=torch.contiguous_format)
    else:
        leaf.grad = grad


def nodes(root: Node | None) -> list[Node]:
    """Every node that a backward pass from `root` visits, in the order of the visit; empty for None."""
    if root is None:
        return []
    found, stack = {root}, [root]
    while stack:
        for target in stack.pop().targets():
            if isinstance(target, Node) and target not in found:
                found.add(target)
                stack.append(target)
    return sorted(found, key=lambda node: -node.sequence_nr)
