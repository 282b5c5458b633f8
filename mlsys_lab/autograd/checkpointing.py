"""Activation checkpointing: save a function's inputs, not its graph; the backward pass runs the function again.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174: with n equal layers in k segments
the backward pass holds k inputs and the n/k layers of one segment. The minimum is at k = √n; the cost is at most one
more forward pass.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from mlsys_lab.autograd import graph
from mlsys_lab.autograd.base import captured_arrays
from mlsys_lab.autograd.graph import (
    GradMode,
    Leaf,
    Node,
    check_version,
    grad_mode,
    released_error,
    run_backward,
    set_grad_mode,
    track_operands,
    version_of,
)
from mlsys_lab.autograd.tensor import Tensor
from mlsys_lab.errors import InputError

RngState = tuple[torch.Tensor, dict[torch.device, torch.Tensor]]
OperandVersions = tuple[tuple["weakref.ref[torch.Tensor]", int], ...]


class Recompute(Node):
    """Node of a checkpointed function: saves the function and its inputs, and no intermediate result."""

    __slots__ = ("function", "inputs", "operand_versions", "rng_state", "shape")

    def __init__(
        self,
        function: Callable[[], Tensor],
        inputs: tuple[Any, ...],
        rng_state: RngState,
        operand_versions: OperandVersions,
        out: Tensor,
    ) -> None:
        super().__init__((), captured_arrays(inputs))
        self.function, self.inputs, self.rng_state = function, inputs, rng_state
        self.operand_versions, self.shape = operand_versions, out.shape

    @property
    def op(self) -> str:
        """Name of the recorded operation: "checkpoint"."""
        return "checkpoint"

    def input_gradients(self, grad: torch.Tensor) -> Iterator[tuple[Node | Leaf, torch.Tensor]]:
        """Run the function again, now on the tape, and yield a pair (node or leaf, gradient) for each of its inputs.

        Parameters and other tensors that the function uses without receiving them get their gradients in the same pass.
        """
        if self.edges is None:
            raise released_error()
        self.check_versions()
        for reference, version in self.operand_versions:
            if (array := reference()) is not None:
                check_version(array, version, self.op)
        started = next(graph.sequence_numbers)
        with set_grad_mode(GradMode.TAPE), _use_rng_state(self.rng_state):
            out = self.function()
        if out.shape != self.shape:
            raise InputError(
                "a checkpointed function must return the same result when it runs again",
                got=f"a result of shape {tuple(out.shape)}",
                expected=f"shape {tuple(self.shape)}, as in the forward pass",
            )
        if out.requires_grad:
            yield from run_backward(out.node or out, grad, older_than=started)

    def release(self) -> None:
        """Drop the function and its inputs, and free the memory that only this node kept alive."""
        super().release()
        self.function, self.inputs, self.operand_versions = _raise_released, (), ()

    def targets(self) -> Iterator[Node | Leaf]:
        """Yield the nodes or leaves of the function's inputs that need a gradient."""
        return (tensor.node or tensor for tensor in _tensors(self.inputs) if tensor.requires_grad)


def _tensors(held: object) -> Iterator[Tensor]:
    """Yield the Tensors among a function's inputs, those in containers too."""
    if isinstance(held, Tensor):
        yield held
    elif isinstance(held, (tuple, list)):
        for part in held:
            yield from _tensors(part)


def _raise_released() -> Tensor:
    raise released_error()


def checkpoint(function: Callable[..., Tensor], *inputs: Any, **options: Any) -> Tensor:
    """Return function(*inputs, **options); the graph saves only these, and the backward pass calls the function again.

    Inputs may be Tensors, with and without gradients, and any other values. The function must return one Tensor, and
    the same one when it runs again: torch's random state is restored for the second call, so that dropout drops the
    same elements. Calls may be nested. The result needs a gradient if it would without checkpoint. Raises InputError if
    the function returns anything else; the backward pass raises it if an input, or an operand of an operation in the
    function, was changed in place after the forward pass.
    """
    held = (*inputs, *options.values())
    devices = {array.device for array in captured_arrays(held)}
    rng_state = _rng_state(devices)
    with set_grad_mode(min(grad_mode.get(), GradMode.REQUIRES_GRAD_ONLY)), track_operands() as operands:
        out = function(*inputs, **options)
    if not isinstance(out, Tensor):
        raise InputError("checkpoint needs a function that returns one Tensor", got=type(out).__name__)
    if out.requires_grad and grad_mode.get() is GradMode.TAPE:
        result = Tensor(out.data)
        result.requires_grad = True
        alive = [(reference, array) for reference in operands if (array := reference()) is not None]
        operand_versions = tuple((reference, version_of(array)) for reference, array in alive if array is not out.data)
        result.node = Recompute(partial(function, *inputs, **options), held, rng_state, operand_versions, out)
        return result
    return out


def checkpoint_sequential(
    functions: Sequence[Callable[[Tensor], Tensor]], x: Tensor, segments: int | None = None
) -> Tensor:
    """Apply the functions one after the other, in checkpointed segments (√n of them by default for n functions).

    The last segment is recorded as usual, since the backward pass would recompute it at once.
    """
    *checkpointed, last = split_segments(
        len(functions), best_segments(len(functions)) if segments is None else segments
    )
    for segment in checkpointed:
        x = checkpoint(_chain(functions[segment.start : segment.stop]), x)
    return _chain(functions[last.start : last.stop])(x)


def _chain(functions: Sequence[Callable[[Tensor], Tensor]]) -> Callable[[Tensor], Tensor]:
    def chain(x: Tensor) -> Tensor:
        for function in functions:
            x = function(x)
        return x

    return chain


def split_segments(layers: int, segments: int) -> list[range]:
    """Consecutive ranges of layers, one per segment, of lengths that differ by at most one, longer ones first.

    >>> split_segments(7, 3)
    [range(0, 3), range(3, 5), range(5, 7)]
    """
    if not 1 <= segments <= layers:
        raise InputError(
            "cannot split the layers", got=f"{layers} layers, {segments} segments", expected="1 <= segments <= layers"
        )
    length, longer = divmod(layers, segments)
    bounds = itertools.accumulate([length + (i < longer) for i in range(segments)], initial=0)
    return [range(start, stop) for start, stop in itertools.pairwise(bounds)]


def peak_units(layers: int, segments: int) -> int:
    """Peak memory of a backward pass in units of one layer's activations: k inputs and one segment of ⌈n/k⌉ layers."""
    return math.ceil(layers / segments) + segments


def best_segments(layers: int) -> int:
    """Number of segments that minimizes `peak_units`: √n up to rounding (Chen et al. 2016, section 4)."""
    root = math.isqrt(layers)
    return min((k for k in (root, root + 1) if 1 <= k <= layers), key=lambda k: peak_units(layers, k), default=1)


def _rng_state(devices: set[torch.device]) -> RngState:
    cuda = {device: torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda"}
    return torch.get_rng_state(), cuda


def _set_rng_state(state: RngState) -> None:
    cpu, cuda = state
    torch.set_rng_state(cpu)
    for device, state_of_device in cuda.items():
        torch.cuda.set_rng_state(state_of_device, device)


@contextlib.contextmanager
def _use_rng_state(state: RngState) -> Iterator[None]:
    """Set torch's random state in the body of a `with`, and restore the previous one afterwards."""
    before = _rng_state(set(state[1]))
    _set_rng_state(state)
    try:
        yield
    finally:
        _set_rng_state(before)
