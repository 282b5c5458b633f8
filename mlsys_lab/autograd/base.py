"""`TensorBase`: a tensor without its operations. Data, gradient, node on the tape, conversions, and `backward`.

`mlsys_lab.autograd.ops` computes with it and `mlsys_lab.autograd.tensor` adds the operations, as torch.Tensor does to
torch._C.TensorBase. Gradients are plain torch tensors and cannot be differentiated again: second derivatives would need
every vjp to be written in recorded operations, at several times the overhead.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import FunctionType
from typing import Any, Self

import numpy as np
import torch

from mlsys_lab.autograd.graph import Node, Vjp, run_backward
from mlsys_lab.autograd.storage import to_storage
from mlsys_lab.errors import InputError

Axes = int | Sequence[int] | None

Result = tuple[torch.Tensor, *tuple[tuple[Any, Vjp], ...]]
"""What an operation of `mlsys_lab.autograd.ops` returns: its result, then a pair (operand, vjp) per operand."""


class TensorBase:
    """Data, gradient and node of a `Tensor`, with everything that needs no operation."""

    __slots__ = ("data", "grad", "node", "requires_grad")

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

    def __repr__(self) -> str:
        made_by = f", op={self.node.op}" if self.node else ", requires_grad=True" if self.requires_grad else ""
        numbers = self.data.to("cpu", torch.float32 if self.dtype == torch.bfloat16 else None).numpy()
        return f"Tensor({np.array2string(numbers, precision=4, separator=', ', prefix='Tensor(')}{made_by})"

    def numpy(self) -> np.ndarray:
        """The elements as a numpy array, which shares the storage if that is on the CPU.

        In-place changes through the array do not bump the version counter, so the backward pass cannot detect them;
        torch has the same gap.
        """
        return self.data.cpu().numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype, copy=bool(copy)) if copy else np.asarray(self.numpy(), dtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if self.node is not None:
            raise InputError("only leaves can be copied", got=f"a result of {self.node.op}", help="tensor.detach()")
        twin = type(self).__new__(type(self))
        twin.data, twin.grad = copy.deepcopy(self.data, memo), copy.deepcopy(self.grad, memo)
        twin.node, twin.requires_grad = None, self.requires_grad
        return twin

    def __len__(self) -> int:
        if not self.shape:
            raise InputError(
                "a tensor without axes has no length", help="x.data is the torch tensor, x.item() the number"
            )
        return self.shape[0]

    def backward(self, grad: Any = None, *, retain_graph: bool = False) -> None:
        """Add to every leaf's `grad` the vector-Jacobian product of `grad` with the Jacobian of this tensor.

        grad: gradient with respect to this tensor, of its shape; defaults to 1 for a tensor of one element.
        The pass releases the graph as it goes, so memory falls; `retain_graph` keeps the graph for another pass.
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


def as_torch(data: Any, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> torch.Tensor:
    """The torch tensor of `data`, which may be a Tensor or anything that a Tensor can be made of."""
    if isinstance(data, TensorBase) and dtype is None and device is None:
        return data.data
    if isinstance(data, (list, tuple)) and any(isinstance(part, TensorBase) for part in data):
        raise InputError("a list of Tensors is no array", help="cat() joins them, and keeps their gradients")
    return to_storage(data.data if isinstance(data, TensorBase) else data, dtype, device)


WITHOUT_ARRAYS = frozenset({int, float, bool, str, type(None), torch.Size, torch.dtype})


def captured_arrays(held: object) -> list[torch.Tensor]:
    """Every torch tensor in `held`: in containers, in Tensors, and in the variables that functions capture."""
    found, pending = [], [held]
    while pending:
        one = pending.pop()
        if type(one) in WITHOUT_ARRAYS:  # nearly all that is captured, so the quickest test comes first
            continue
        if isinstance(one, torch.Tensor):
            found.append(one)
        elif isinstance(one, TensorBase):
            found.append(one.data)
        elif isinstance(one, FunctionType):
            for cell in one.__closure__ or ():
                try:
                    pending.append(cell.cell_contents)
                except ValueError:  # a variable that is assigned only after the function was made
                    continue
            pending += one.__defaults__ or ()
        elif isinstance(one, (tuple, list)):
            pending += one
    return found
