"""What tests of torch operators share: comparison with float64 by dtype, gradients, a look through the microscope."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from mlsys_lab.kernels.trace.events import Trace
from mlsys_lab.kernels.trace.faults import faults
from mlsys_lab.kernels.trace.races import races
from mlsys_lab.kernels.trace.traffic import traffic
from mlsys_lab.kernels.trace.triton_interpreter import record_launches
from tests.kernels.closeness import assert_near

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
Function = Callable[..., torch.Tensor]


def result_gradient(y: torch.Tensor) -> torch.Tensor:
    """The gradient that tests give to a result: the cosine of 0, 1, 2 …"""
    return torch.arange(y.numel(), dtype=torch.float64).cos().reshape(y.shape).to(y.device, y.dtype)


def with_gradients(function: Function, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """What the function gives, and its gradient for each input when the result's is `result_gradient`."""
    inputs = tuple(one.detach().clone().requires_grad_() for one in inputs)
    y = function(*inputs)
    return [y.detach(), *torch.autograd.grad(y, inputs, result_gradient(y))]


def assert_like(function: Function, expected: Function, *inputs: torch.Tensor) -> None:
    """Result and gradients are those of `expected`, which gets the same numbers in float64."""
    got = with_gradients(function, *inputs)
    want = with_gradients(expected, *(one.double() for one in inputs))
    for mine, other in zip(got, want, strict=True):
        assert_near(mine, other)


def looked_at(call: Callable[[], object]) -> list[Trace]:
    """The traces of a call's launches; none of them touches memory out of bounds, unwritten, or in a race, or
    lets an undefined lane take effect.
    """
    with record_launches() as traces:
        call()
    for trace in traces:
        wrong = [*faults(trace), *races(trace)]
        assert not wrong, wrong[0].sentence
        assert not trace.undefined, trace.describe_undefined(trace.undefined[0])
    return traces


def reads_and_writes(trace: Trace) -> dict[str, tuple[float, float]]:
    """How often an element of each array was read and written, on average over all of its elements."""
    found = {}
    for one in traffic(trace):
        flows = (one.read, one.written)
        found[one.buffer] = tuple(flow.asked_bytes / max(1, flow.buffer_bytes) for flow in flows)
    return found  # type: ignore[return-value]


def compiles_whole(function: Function, inputs: Sequence[torch.Tensor]) -> None:
    """torch.compile takes the function as one graph, and gives what it gives without."""
    torch._dynamo.reset()
    whole = torch.compile(function, backend="aot_eager", fullgraph=True)
    for mine, other in zip(with_gradients(whole, *inputs), with_gradients(function, *inputs), strict=True):
        assert torch.equal(mine, other)
