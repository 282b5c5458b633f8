"""Checkpointing: keep a function's inputs instead of its graph, and compute the graph again when it is needed.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174: with n equal layers in k segments
the pass holds k inputs and one segment's n/k layers at a time, least at k = √n, for at most one more forward pass.
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
from mlsys_lab.autograd.graph import (
    GradMode,
    Node,
    check_version,
    grad_mode,
    released_error,
    run_backward,
    set_grad_mode,
    track_operands,
    version_of,
)
from mlsys_lab.autograd.operation import captured_arrays
from mlsys_lab.autograd.tensor import Tensor
from mlsys_lab.errors import InputError

RngState = tuple[torch.Tensor, dict[torch.device, torch.Tensor]]
Used = tuple[tuple["weakref.ref[torch.Tensor]", int], ...]


class Recompute(Node):
    """A node that stands for a whole function: it holds the function and its inputs, and no array in between."""

    __slots__ = ("function", "inputs", "rng_state", "shape", "used")

    def __init__(
        self, function: Callable[[], Tensor], inputs: tuple[Any, ...], rng_state: RngState, used: Used, out: Tensor
    ) -> None:
        super().__init__((), captured_arrays(inputs))
        self.function, self.inputs, self.rng_state = function, inputs, rng_state
        self.used, self.shape = used, out.shape

    @property
    def op(self) -> str:
        """Name of the operation that drawings of the graph show for a checkpointed function: "checkpoint"."""
        return "checkpoint"

    def input_gradients(self, grad: torch.Tensor) -> Iterator[tuple[Node | Tensor, torch.Tensor]]:
        """Record the function in a second call, and yield its inputs' gradients: pairs (where it goes, gradient).

        What the function uses without being passed it, parameters above all, gets its gradient in the same pass.
        """
        if self.edges is None:
            raise released_error()
        self.check_versions()
        for reference, version in self.used:
            if (array := reference()) is not None:
                check_version(array, version, self.op)
        started = next(graph.sequence_numbers)
        with set_grad_mode(GradMode.TAPE), _use_rng_state(self.rng_state):
            out = self.function()
        if out.shape != self.shape:
            raise InputError(
                "a checkpointed function has to do the same when it is called again",
                got=f"a result of shape {tuple(out.shape)}",
                expected=f"shape {tuple(self.shape)}, as at first",
            )
        if out.requires_grad:
            yield from run_backward(out.node or out, grad, older_than=started)

    def release(self) -> None:
        """Drop the function and its inputs, and with them the memory that only this node kept alive."""
        super().release()
        self.function, self.inputs, self.used = _raise_released, (), ()

    def targets(self) -> Iterator[Node | Tensor]:
        """The nodes, or leaves, that produced the function's inputs and need a gradient."""
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
    """Return function(*inputs, **options); the graph keeps only these, and the backward pass calls the function again.

    Inputs may be Tensors, with and without gradients, and anything else. The function must return one Tensor and do the
    same when called again; torch's random state is put back for the second call, so that dropout drops the same
    elements. Calls may be nested. The result needs a gradient if it would without checkpoint. Raises InputError for
    other results; the backward pass does where an input, or an array that operations of the function had as operand,
    was changed in place in between.
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
        used = tuple((reference, version_of(array)) for reference, array in alive if array is not out.data)
        result.node = Recompute(partial(function, *inputs, **options), held, rng_state, used, out)
        return result
    return out


def checkpoint_sequential(
    functions: Sequence[Callable[[Tensor], Tensor]], x: Tensor, segments: int | None = None
) -> Tensor:
    """Apply the functions one after the other, in checkpointed segments (√n of them by default for n functions).

    The last segment is recorded as usual, since the backward pass would rebuild it at once.
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
    """Consecutive ranges that cover the layers, as equal as can be, longer ones first.

    >>> split_segments(7, 3)
    [range(0, 3), range(3, 5), range(5, 7)]
    """
    if not 1 <= segments <= layers:
        raise InputError(
            "cannot split so", got=f"{layers} layers, {segments} segments", expected="1 <= segments <= layers"
        )
    share, longer = divmod(layers, segments)
    bounds = itertools.accumulate([share + (i < longer) for i in range(segments)], initial=0)
    return [range(start, stop) for start, stop in itertools.pairwise(bounds)]


def peak_units(layers: int, segments: int) -> int:
    """Most that a pass holds at once, in units of one layer's activations: k inputs and a segment of ⌈n/k⌉ layers."""
    return math.ceil(layers / segments) + segments


def best_segments(layers: int) -> int:
    """The number of segments, √n up to rounding, for which `peak_units` is least (Chen et al. 2016, section 4)."""
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
    """Run the body of a `with` from this random state of torch; afterwards put back the state found before it."""
    before = _rng_state(set(state[1]))
    _set_rng_state(state)
    try:
        yield
    finally:
        _set_rng_state(before)
