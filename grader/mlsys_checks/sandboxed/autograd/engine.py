"""How lab 01 meets the learner's engine: arrays as inputs, and an operation that only an engine can go back through."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_lab.errors import InputError

PRODUCTS = {
    **dict.fromkeys((getattr(torch.ops.aten, name).default for name in ("mm", "bmm", "mv", "dot")), 0),
    **dict.fromkeys((getattr(torch.ops.aten, name).default for name in ("addmm", "baddbmm", "addmv")), 1),
}
"""Matrix products of torch that are made of no other, and at which position each has its left factor."""
AGAIN = "after a second backward pass"
"""What is said of gradients that two passes have added up to. Twice as much arrives in the second as in the first, so
that nothing a vjp has kept from the first is right.
"""
SCALE = 8.0
"""By how much `scale_gradient` multiplies; a power of two, so that dividing by it again changes no digit."""


def scale_gradient(result: Any) -> Any:
    """The learner's tensor as it is, through an operation of ours whose vjp multiplies by `SCALE`.

    No derivative is so: who walks the engine's edges meets it, and who has another library differentiate does not.
    """
    edge = (result, lambda grad: grad * SCALE)
    return type(result)(result.data, requires_grad=result.requires_grad, edges=(edge,), op="scale_gradient")


class BrokenError(Exception):
    """What `fail` raises."""


def fail(*_: Any) -> NoReturn:
    """A function of any arguments that raises `BrokenError`: whoever calls it is to leave nothing behind."""
    raise BrokenError("a function that fails")


def inputs_of(artifact: Any, arrays: Arrays, *names: str) -> list[Any]:
    """The named arrays as inputs of the learner's engine that want a gradient, laid out plainly or `transposed`."""
    lay = by_column if arrays.get("transposed") else torch.from_numpy
    return [artifact.Tensor(lay(arrays[name]), requires_grad=True) for name in names]


def by_column(values: np.ndarray) -> torch.Tensor:
    """An array as it comes from a transpose: its numbers lie column by column in memory."""
    return torch.from_numpy(np.array(values, order="F"))


def go_back(artifact: Any, result: Any, g: torch.Tensor) -> None:
    """Call the learner's `backward` with the gradient `g`. Raises `InputError` if that has changed meanwhile."""
    before = g.clone()
    artifact.backward(result, g)
    if g.shape != before.shape or not torch.equal(g, before):
        raise InputError(
            "the gradient that `backward` is given has changed",
            got=f"shape {tuple(g.shape)}" if g.shape != before.shape else "other numbers in it",
            expected="the same as before: whoever gave it may hold it, so a vjp makes a new array",
        )


class count_products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within the block, `flops` is what the matrix products take that torch runs: 2 for each multiply-add."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not wrapped for torch's compiler, whose import takes a second; torch asks its subclasses for this."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation of torch: what is made of others is taken apart, since products may be among them."""
        kwargs = kwargs or {}
        if func in PRODUCTS:
            out = func(*args, **kwargs)
            self.flops += 2 * out.numel() * args[PRODUCTS[func]].shape[-1]
            return out
        with self:
            out = func.decompose(*args, **kwargs)
        return func(*args, **kwargs) if out is NotImplemented else out


def refuse_recorded(artifact: Any, name: str, make: Callable[[], Any]) -> None:
    """Raise `InputError` where the node `make` gives inside the engine's `no_grad()` keeps edges."""
    with artifact.no_grad():
        edges = make().edges
    if edges:
        expected = "none: a result comes from `node`, which drops them"
        raise InputError(f"{name} is recorded inside no_grad()", got=f"{len(edges)} edges", expected=expected)


def refuse_ring(name: str, make: Callable[[], Any]) -> None:
    """Raise `InputError` where the node `make` gives stays in memory when nobody holds it: a vjp of its own does.

    Nodes that cannot be referred to weakly, since their class has `__slots__`, are not looked at.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        node = make()
        held = weakref.ref(node) if type(node).__weakrefoffset__ else None
        del node
        alive = held is not None and held() is not None
    finally:
        if collects:
            gc.enable()
    if alive:
        expected = "arrays of the forward pass only, such as `value` where `out.data` is `value` (Task 1: a ring)"
        raise InputError(
            f"a vjp of {name} holds the node that it belongs to", got="a node that is not freed", expected=expected
        )
