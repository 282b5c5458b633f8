"""`Tensor`: an array that remembers how it was computed. torch gives storage and kernels; the derivatives are ours.

What an operation computes and what it sends back stand side by side in `mlsys_lab.autograd.ops`; here is the class and
the list of what it can do. Gradients are plain torch tensors and cannot be differentiated again: second derivatives
would need every vjp to be written in recorded operations, at several times the overhead.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from mlsys_lab.autograd.graph import GradMode, Node, grad_mode, run_backward
from mlsys_lab.autograd.storage import to_storage
from mlsys_lab.errors import InputError

Axes = int | Sequence[int] | None

NUMERIC = (torch.Tensor, np.ndarray, np.generic, int, float, complex, list, tuple)
"""Types that `==` compares with a Tensor element by element, Tensors beside them; all else is not equal to it."""


class Tensor:
    """An array with a gradient.

    `data` is a torch tensor on any device, and never one that torch's autograd watches. A torch tensor that is given
    is shared; numpy arrays and lists are copied. `grad` is None or a torch tensor of the same shape; `backward` fills
    it in leaves, tensors made with `requires_grad=True`. `node` is the operation on the tape that made this tensor,
    None for a leaf.

    Raises InputError for data that is no array of numbers, for integers that should have a gradient, and for torch
    tensors with `requires_grad` set.

    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    tensor([[2., 4.],
            [6., 8.]])
    """

    __slots__ = ("data", "grad", "node", "requires_grad")
    __array_ufunc__ = None  # makes `numpy_array * tensor` call Tensor.__rmul__

    def __init__(
        self,
        data: Any,
        requires_grad: bool = False,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.data = as_torch(data, dtype, device)
        self.grad: torch.Tensor | None = None
        self.node: Node | None = None
        self.requires_grad = requires_grad
        if requires_grad and not self.data.is_floating_point():
            raise InputError(
                "only real numbers have gradients", got=f"dtype {self.data.dtype}", expected="float32 or float64"
            )

    # --- the array ----------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        """Length of each axis."""
        return self.data.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.data.ndim

    @property
    def dtype(self) -> torch.dtype:
        """torch dtype of the elements."""
        return self.data.dtype

    @property
    def device(self) -> torch.device:
        """torch device that holds the elements."""
        return self.data.device

    def item(self) -> float:
        """The value of a tensor with a single element, as a Python number."""
        self._require_one_element("item()")
        return self.data.item()

    def __float__(self) -> float:
        self._require_one_element("float()")
        return float(self.data)

    def __int__(self) -> int:
        self._require_one_element("int()")
        return int(self.data)

    def __bool__(self) -> bool:
        self._require_one_element("a truth value")
        return bool(self.data)

    def _require_one_element(self, use: str) -> None:
        if self.data.numel() != 1:
            raise InputError(f"{use} is for tensors of one element", got=f"shape {tuple(self.shape)}")

    def __format__(self, form: str) -> str:
        if not form:
            return str(self)
        self._require_one_element(f"the format {form!r}")
        return format(self.data.item(), form)

    def numpy(self) -> np.ndarray:
        """The elements as a numpy array, which shares the storage if that is on the CPU.

        What is changed through the array the backward pass does not notice, as in torch: it counts torch's changes.
        """
        return self.data.cpu().numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype, copy=bool(copy)) if copy else np.asarray(self.numpy(), dtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if self.node is not None:
            raise InputError("only leaves can be copied", got=f"a result of {self.node.op}", help="tensor.detach()")
        twin: Tensor = type(self).__new__(type(self))
        twin.data, twin.grad = copy.deepcopy(self.data, memo), copy.deepcopy(self.grad, memo)
        twin.node, twin.requires_grad = None, self.requires_grad
        return twin

    def detach(self) -> Tensor:
        """Tensor on the same storage, cut from the graph: no gradient flows through it."""
        return Tensor(self.data)

    def __len__(self) -> int:
        if not self.shape:
            raise InputError(
                "a tensor without axes has no length", help="x.data is the torch tensor, x.item() the number"
            )
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        made_by = f", op={self.node.op}" if self.node else ", requires_grad=True" if self.requires_grad else ""
        numbers = self.data.to("cpu", torch.float32 if self.dtype == torch.bfloat16 else None).numpy()
        return f"Tensor({np.array2string(numbers, precision=4, separator=', ', prefix='Tensor(')}{made_by})"

    # --- the backward pass --------------------------------------------------------------------------------------------

    def backward(self, grad: Any = None, *, retain_graph: bool = False) -> None:
        """Add to every leaf's `grad` the vector-Jacobian product of `grad` with the Jacobian of this tensor.

        grad: gradient with respect to this tensor, of its shape; 1 when left out, which only a single element allows.
        The graph is released on the way, so memory falls as the pass goes; `retain_graph` keeps it for another pass.
        Raises InputError when there is nothing to differentiate, `grad` is missing or misshapen, or the graph is gone.
        """
        if not self.requires_grad:
            raise InputError(
                "backward() on a tensor that needs no gradient",
                help="make an input with requires_grad=True, and compute outside no_grad()",
            )
        if grad is None:
            if self.data.numel() != 1:
                raise InputError(
                    "backward() without a gradient is for tensors of one element",
                    got=f"shape {tuple(self.shape)}",
                    help="reduce with sum() or mean(), or pass backward(grad) of the same shape",
                )
            seed = torch.ones_like(self.data)
        else:
            seed = as_torch(grad, self.dtype, self.device)
            if seed.shape != self.shape:
                raise InputError(
                    "backward(grad) needs a gradient of this tensor's shape",
                    got=tuple(seed.shape),
                    expected=tuple(self.shape),
                )
        run_backward(self.node or self, seed, retain_graph=retain_graph)

    # --- operators ----------------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Tensor:
        return elementwise.add(self, other)

    def __radd__(self, other: Any) -> Tensor:
        return elementwise.add(other, self)

    def __sub__(self, other: Any) -> Tensor:
        return elementwise.sub(self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return elementwise.sub(other, self)

    def __mul__(self, other: Any) -> Tensor:
        return elementwise.mul(self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return elementwise.mul(other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return elementwise.div(self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return elementwise.div(other, self)

    def __pow__(self, other: Any) -> Tensor:
        return elementwise.pow(self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return elementwise.pow(other, self)

    def __neg__(self) -> Tensor:
        return elementwise.neg(self)

    def __matmul__(self, other: Any) -> Tensor:
        return matmul.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return matmul.matmul(other, self)

    def __getitem__(self, index: Any) -> Tensor:
        return shaping.getitem(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise InputError(
            "the tape knows no assignment to elements",
            help="tensor.data[index] = value beside the tape, where() or cat() on it",
        )

    # `x += y` makes a new tensor, as `x = x + y` does, unless x is a leaf with a gradient to come: its old name would
    # be lost, and the gradient with it. Within no_grad() such a leaf is changed in place, as in torch.

    def __iadd__(self, other: Any) -> Tensor:
        return self._update(elementwise.add(self, other))

    def __isub__(self, other: Any) -> Tensor:
        return self._update(elementwise.sub(self, other))

    def __imul__(self, other: Any) -> Tensor:
        return self._update(elementwise.mul(self, other))

    def __itruediv__(self, other: Any) -> Tensor:
        return self._update(elementwise.div(self, other))

    def __ipow__(self, other: Any) -> Tensor:
        return self._update(elementwise.pow(self, other))

    def _update(self, result: Tensor) -> Tensor:
        if self.node is not None or not self.requires_grad:
            return result
        if grad_mode.get() is not GradMode.OFF:
            raise InputError(
                "a tensor with requires_grad=True is not changed in place while the tape is written",
                help="change it within no_grad(), or give the result another name",
            )
        if result.shape != self.shape:
            raise InputError("a change in place keeps the shape", got=tuple(result.shape), expected=tuple(self.shape))
        self.data.copy_(result.data)
        return self

    # --- comparisons: elementwise, to tensors of bools, which have no gradient ----------------------------------------

    def __lt__(self, other: Any) -> Tensor:
        return elementwise.compare(operator.lt, self, other)

    def __le__(self, other: Any) -> Tensor:
        return elementwise.compare(operator.le, self, other)

    def __gt__(self, other: Any) -> Tensor:
        return elementwise.compare(operator.gt, self, other)

    def __ge__(self, other: Any) -> Tensor:
        return elementwise.compare(operator.ge, self, other)

    def __eq__(self, other: Any) -> Tensor:  # type: ignore[override]
        if not isinstance(other, (Tensor, *NUMERIC)):
            return NotImplemented
        return elementwise.compare(operator.eq, self, other)

    def __ne__(self, other: Any) -> Tensor:  # type: ignore[override]
        if not isinstance(other, (Tensor, *NUMERIC)):
            return NotImplemented
        return elementwise.compare(operator.ne, self, other)

    __hash__ = object.__hash__  # as in torch: a key in dictionaries is this very tensor, not its numbers

    # --- methods: the functions of `ops` with this tensor as the first argument ---------------------------------------

    def exp(self) -> Tensor:
        """Elementwise exponential eˣ."""
        return elementwise.exp(self)

    def log(self) -> Tensor:
        """Elementwise natural logarithm."""
        return elementwise.log(self)

    def sqrt(self) -> Tensor:
        """Elementwise square root."""
        return elementwise.sqrt(self)

    def tanh(self) -> Tensor:
        """Elementwise hyperbolic tangent."""
        return elementwise.tanh(self)

    def sigmoid(self) -> Tensor:
        """Elementwise logistic function 1 / (1 + e⁻ˣ)."""
        return elementwise.sigmoid(self)

    def relu(self) -> Tensor:
        """Elementwise rectified linear unit max(0, x)."""
        return elementwise.relu(self)

    def gelu(self) -> Tensor:
        """Elementwise Gaussian error linear unit x·Φ(x), Φ the normal distribution function."""
        return elementwise.gelu(self)

    def to(self, target: torch.dtype | torch.device | str) -> Tensor:
        """Copy in another dtype or on another device; gradients are converted back."""
        return elementwise.to(self, target)

    def sum(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """Sum over the axes; over all of them by default."""
        return reduce.sum(self, axis, keepdims)

    def mean(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """Mean over the axes; over all of them by default."""
        return reduce.mean(self, axis, keepdims)

    def max(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """Largest element over the axes; over all of them by default."""
        return reduce.max(self, axis, keepdims)

    def var(self, axis: Axes = None, keepdims: bool = False, correction: int = 1) -> Tensor:
        """Variance over the axes, with divisor n - correction."""
        return reduce.var(self, axis, keepdims, correction)

    def reshape(self, *shape: Any) -> Tensor:
        """View in another shape, elements in unchanged order; one length may be -1."""
        return shaping.reshape(self, _flatten(shape))

    def permute(self, *axes: Any) -> Tensor:
        """View with the axes in another order: axis i of the result is axis axes[i] of this tensor."""
        return shaping.permute(self, _flatten(axes))

    def transpose(self, first: int = -2, second: int = -1) -> Tensor:
        """View with two axes exchanged, the last two by default."""
        return shaping.transpose(self, first, second)

    @property
    def T(self) -> Tensor:
        """View with the last two axes exchanged: the transpose of a matrix or of a batch of them."""
        return shaping.transpose(self, -2, -1)

    def broadcast_to(self, *shape: Any) -> Tensor:
        """View that repeats the elements along new axes in front and along axes of length 1."""
        return shaping.broadcast_to(self, _flatten(shape))

    def softmax(self, axis: int = -1) -> Tensor:
        """Softmax along the axis: exponentials divided by their sum."""
        return network.softmax(self, axis)

    def logsumexp(self, axis: Axes = -1, keepdims: bool = False) -> Tensor:
        """Logarithm of the sum of exponentials over the axes."""
        return network.logsumexp(self, axis, keepdims)

    def log_softmax(self, axis: int = -1) -> Tensor:
        """Logarithm of the softmax along the axis."""
        return network.log_softmax(self, axis)


def as_torch(data: Any, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> torch.Tensor:
    """The torch tensor of `data`, which may be a Tensor or anything that a Tensor can be made of."""
    if isinstance(data, list | tuple) and any(isinstance(part, Tensor) for part in data):
        raise InputError("a list of Tensors is no array", help="cat() joins them, and keeps their gradients")
    return to_storage(data.data if isinstance(data, Tensor) else data, dtype, device)


def _flatten(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    """Flatten the arguments of a method that may be called as f(2, 3) or as f((2, 3))."""
    return tuple(arguments[0] if len(arguments) == 1 and not hasattr(arguments[0], "__index__") else arguments)


# The operations make Tensors, so they can be imported only after the class.
from mlsys_lab.autograd.ops import elementwise, matmul, network, reduce, shaping  # noqa: E402
