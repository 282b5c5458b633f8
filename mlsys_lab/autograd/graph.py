"""The tape: what an operation leaves behind for the backward pass, and the pass that consumes it.

A `Node` is one recorded operation. For each operand that needs a gradient it has an edge (target, vjp): where the
gradient goes, and the vector-Jacobian product that takes the gradient of the result to the gradient of the operand.
A vjp is a closure, and what it captures is exactly what the graph keeps alive: a product captures the other factor, a
sum captures nothing but shapes. Nothing is saved for an operand that needs no gradient, because its vjp is dropped.
Saved arrays stand in the node with their versions, by which the pass notices that one was changed in place since.

Nodes are numbered as they are written, so numbers fall along every edge and the order of writing, reversed, is an order
to go back in. The pass is a priority queue over these numbers: no recursion and no sorting beforehand. PyTorch's engine
orders its nodes by the same means (`sequence_nr`).
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from enum import IntEnum
from typing import TYPE_CHECKING

import torch

from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.autograd.tensor import Tensor

Vjp = Callable[[torch.Tensor], torch.Tensor]
Edge = tuple["Node | Tensor", Vjp]

sequence_numbers = itertools.count()


class GradMode(IntEnum):
    """What operations leave behind: nothing, whether their results need gradients, or nodes on the tape."""

    OFF = 0
    REQUIRES_GRAD_ONLY = 1
    TAPE = 2


grad_mode: ContextVar[GradMode] = ContextVar("grad_mode", default=GradMode.TAPE)


tracked_operands: ContextVar[list[weakref.ref[torch.Tensor]] | None] = ContextVar("tracked_operands", default=None)


@contextlib.contextmanager
def track_operands() -> Iterator[list[weakref.ref[torch.Tensor]]]:
    """Collect the arrays that operations in the body of a `with` have as operands, without keeping them alive.

    Within another such body the list is the outer one's, which wants them as well. Of a view the array below it counts.
    """
    noted = tracked_operands.get()
    token = tracked_operands.set(noted := [] if noted is None else noted)
    try:
        yield noted
    finally:
        tracked_operands.reset(token)


class Node:
    """One recorded operation. An edge leads to the node that made an operand, or to the operand if it is a leaf.

    `saved` has the arrays that the backward pass will read, each with the version its storage had at the time.
    """

    __slots__ = ("edges", "saved", "sequence_nr")

    def __init__(self, edges: tuple[Edge, ...], saved: Iterable[torch.Tensor]) -> None:
        self.sequence_nr = next(sequence_numbers)
        self.edges: tuple[Edge, ...] | None = edges
        self.saved = tuple((array, version_of(array)) for array in saved)

    @property
    def op(self) -> str:
        """Name of the operation that wrote this node, such as "mul"; "released" after a backward pass."""
        return self.edges[0][1].__qualname__.partition(".")[0] if self.edges else "released"

    def input_gradients(self, grad: torch.Tensor) -> Iterator[tuple[Node | Tensor, torch.Tensor]]:
        """From the result's gradient `grad`, yield for each operand the pair (node or leaf to send it to, gradient)."""
        if self.edges is None:
            raise released_error()
        self.check_versions()
        for target, vjp in self.edges:
            yield target, vjp(grad)

    def check_versions(self) -> None:
        """Raise InputError if an array that this node saved has been changed in place since."""
        for array, version in self.saved:
            check_version(array, version, self.op)

    def release(self) -> None:
        """Drop the vjps and saved arrays, and with them the memory that only this node kept alive."""
        self.edges, self.saved = None, ()

    def targets(self) -> Iterator[Node | Tensor]:
        """The nodes and leaves that this node sends gradients to."""
        return (target for target, _ in self.edges or ())


def version_of(array: torch.Tensor) -> int:
    """How often the storage of an array has been changed in place; 0 in inference mode, where torch does not count."""
    return 0 if array.is_inference() else array._version


def check_version(array: torch.Tensor, version: int, op: str) -> None:
    """Raise InputError if an array that the backward pass of `op` needs is not at the version that it had forward."""
    if changes := version_of(array) - version:
        raise InputError(
            f"an array that the backward pass of {op} needs was changed in place after the forward pass",
            got=f"{changes} change{'s' * (changes > 1)} to an array of shape {tuple(array.shape)}",
            help="call backward() before optimizer.step() and other changes, or change a copy (data.clone())",
        )


def released_error() -> InputError:
    """The error to raise when a second backward pass meets a graph that the first has released."""
    return InputError(
        "the graph of this tensor has been released by an earlier backward()",
        help="compute the tensor again, or call the earlier one as backward(retain_graph=True)",
    )


@contextlib.contextmanager
def set_grad_mode(mode: GradMode) -> Iterator[None]:
    """Choose what operations leave behind in the body of a `with`, in this thread only."""
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
            heapq.heappush(queue, (-target.sequence_nr, target))

    deliver(root, grad, grad)
    while queue:
        _, node = heapq.heappop(queue)
        grad = arrived.pop(node)
        if node.sequence_nr < older_than:
            border.append((node, grad))
            continue
        for target, share in node.input_gradients(grad):
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
    return sorted(found, key=lambda node: -node.sequence_nr)
