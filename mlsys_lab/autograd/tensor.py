"""`Tensor`: an array that remembers how it was computed. torch gives storage and kernels; the derivatives are ours.

An operation of `mlsys_lab.autograd.ops` returns its result and, per operand, a vector-Jacobian product (VJP).
`differentiable` turns it into a function of Tensors that records a node on the tape; the methods below are such
functions, under the names and docstrings of the operations.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from mlsys_lab.autograd.base import Result, TensorBase, captured_arrays
from mlsys_lab.autograd.graph import Edge, GradMode, Node, Vjp, grad_mode, tracked_operands
from mlsys_lab.autograd.ops import elementwise, matmul, network, reduce, shaping
from mlsys_lab.errors import InputError

COMPARABLE = (TensorBase, torch.Tensor, np.ndarray, np.generic, int, float, complex, list, tuple)
"""Types that `==` compares with a Tensor element by element; a Tensor is not equal to anything else."""

Method = Callable[..., "Tensor"]


def record(data: torch.Tensor, *edges: tuple[Any, Vjp], op: str = "") -> Tensor:
    """Return a Tensor of `data`, the result of an operation, and put the operation on the tape.

    edges: one pair (operand, vjp) per operand. Operands that need no gradient (constants among them) get no edge;
    without edges, or within `no_grad`, nothing is recorded. The arrays that a vjp captures are the saved tensors.
    `op` names the operation, as in lab 01; the tape does not keep it.
    """
    out: Tensor = Tensor.__new__(Tensor)
    out.data = data
    out.grad = None
    out.node = None
    out.requires_grad = False
    if (tracked := tracked_operands.get()) is not None:
        arrays = (array for edge in edges for array in captured_arrays(edge))
        tracked.extend(weakref.ref(array if array._base is None else array._base) for array in arrays)
    if (mode := grad_mode.get()) is not GradMode.OFF:
        live: list[Edge] = [
            (operand.node or operand, vjp)
            for operand, vjp in edges
            if isinstance(operand, TensorBase) and operand.requires_grad
        ]
        out.requires_grad = bool(live) and data.is_floating_point()  # integers have no derivative
        if out.requires_grad and mode is GradMode.TAPE:
            out.node = Node(tuple(live), captured_arrays([vjp for _, vjp in live]))
    return out


def differentiable(operation: Callable[..., Result]) -> Method:
    """Make an operation, which returns its result and edges, a function that returns a Tensor on the tape."""

    @functools.wraps(operation)
    def recorded(*operands: Any, **options: Any) -> Tensor:
        return record(*operation(*operands, **options))

    return recorded


def _reflected(method: Method) -> Method:
    """Exchange the operands of a binary method: `2 - x` calls x.__rsub__(2)."""
    return lambda self, other: method(other, self)


def _in_place(method: Method) -> Method:
    """Make the augmented assignment of a binary method: `x += y` makes a new tensor, as `x = x + y` does.

    Not if x is a leaf that needs a gradient: rebinding the name would lose the leaf and its gradient with it. Within
    no_grad() such a leaf is changed in place, as in torch; outside, InputError.
    """

    def assign(self: Tensor, other: Any) -> Tensor:
        result = method(self, other)
        if self.node is not None or not self.requires_grad:
            return result
        if grad_mode.get() is not GradMode.OFF:
            raise InputError(
                "a leaf with requires_grad=True cannot be changed in place while the tape records",
                help="change it within no_grad(), or give the result another name",
            )
        if result.shape != self.shape:
            raise InputError("an in-place change keeps the shape", got=tuple(result.shape), expected=tuple(self.shape))
        self.data.copy_(result.data)
        return self

    return assign


def _comparison(relation: Callable[[Any, Any], Any]) -> Method:
    """Make an elementwise comparison: a tensor of bools, which has no gradient."""

    def compare(self: Tensor, other: Any) -> Any:
        if relation in (operator.eq, operator.ne) and not isinstance(other, COMPARABLE):
            return NotImplemented
        return Tensor(elementwise.compare(relation, self, other))

    return compare


class Tensor(TensorBase):
    """An array with a gradient.

    `data` is a torch tensor on any device, and never one that torch's autograd watches. A torch tensor that is given
    is shared; numpy arrays and lists are copied. `grad` is None or a torch tensor of the same shape; `backward` fills
    it in leaves, tensors made with `requires_grad=True`. `node` is the operation on the tape that made this tensor,
    None for a leaf.

    Raises InputError for data that is no array of numbers, for integers with `requires_grad=True`, and for torch
    tensors with `requires_grad` set.

    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    tensor([[2., 4.],
            [6., 8.]])
    """

    __slots__ = ()
    __array_ufunc__ = None  # makes `numpy_array * tensor` call Tensor.__rmul__

    __neg__ = differentiable(elementwise.neg)
    __add__ = differentiable(elementwise.add)
    __sub__ = differentiable(elementwise.sub)
    __mul__ = differentiable(elementwise.mul)
    __truediv__ = differentiable(elementwise.div)
    __pow__ = differentiable(elementwise.pow)
    __matmul__ = differentiable(matmul.matmul)
    __getitem__ = differentiable(shaping.getitem)

    __radd__ = _reflected(__add__)
    __rsub__ = _reflected(__sub__)
    __rmul__ = _reflected(__mul__)
    __rtruediv__ = _reflected(__truediv__)
    __rpow__ = _reflected(__pow__)
    __rmatmul__ = _reflected(__matmul__)

    __iadd__ = _in_place(__add__)
    __isub__ = _in_place(__sub__)
    __imul__ = _in_place(__mul__)
    __itruediv__ = _in_place(__truediv__)
    __ipow__ = _in_place(__pow__)

    __lt__ = _comparison(operator.lt)
    __le__ = _comparison(operator.le)
    __gt__ = _comparison(operator.gt)
    __ge__ = _comparison(operator.ge)
    __eq__ = _comparison(operator.eq)  # type: ignore[assignment]
    __ne__ = _comparison(operator.ne)  # type: ignore[assignment]
    __hash__ = object.__hash__  # as in torch: a key in dictionaries is this very tensor, not its numbers

    exp = differentiable(elementwise.exp)
    log = differentiable(elementwise.log)
    sqrt = differentiable(elementwise.sqrt)
    tanh = differentiable(elementwise.tanh)
    sigmoid = differentiable(elementwise.sigmoid)
    relu = differentiable(elementwise.relu)
    gelu = differentiable(elementwise.gelu)
    to = differentiable(elementwise.to)

    sum = differentiable(reduce.sum)
    mean = differentiable(reduce.mean)
    max = differentiable(reduce.max)
    var = differentiable(reduce.var)

    reshape = differentiable(shaping.reshape)
    permute = differentiable(shaping.permute)
    transpose = differentiable(shaping.transpose)
    broadcast_to = differentiable(shaping.broadcast_to)

    softmax = differentiable(network.softmax)
    log_softmax = differentiable(network.log_softmax)
    logsumexp = differentiable(network.logsumexp)

    @property
    def T(self) -> Tensor:
        """View with the last two axes exchanged: the transpose of a matrix or of a batch of them."""
        return self.transpose(-2, -1)

    def detach(self) -> Tensor:
        """Tensor on the same storage, cut from the graph: no gradient flows through it."""
        return Tensor(self.data)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __setitem__(self, index: Any, value: Any) -> None:
        raise InputError(
            "assignment to elements cannot be recorded",
            help="tensor.data[index] = value outside the tape, where() or cat() on it",
        )
