"""The timed process: draws inputs from a seed, calls the code, and commits to every output.

    judge                                    this process
    go {seed, calls} ────────────────────▶  call i: inputs and weights from seed_i, output_i,
                                            p_i = weights · output_i, seed_(i+1) = hash(seed_i, p_i)
    ◀─────────────────── done, all the p_i  here the judge's clock stops
    show {call_index} ───────────────────▶
    ◀──────────────────── shown, output     of a call that the judge picks only now

Where a submission runs, nothing here is trusted: the file says what an honest process does, and the judge (package
`speed`) believes only what it can recompute. The weights are random, so p - p' of two outputs scatters with the
Euclidean norm of their difference: one number commits to a whole output. The next seed depends on it, so calls cannot
be started ahead, batched or skipped. (A hash of the output's bits would not do: bits may differ within the tolerance,
so the judge could not recompute it, and an output can be fitted to any hash that is cheap enough to compute next to a
kernel.)
"""

from __future__ import annotations

import hashlib
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mlsys_checks.sandboxed.spec import find_call
from mlsys_grader.sandbox.inside import wire

if TYPE_CHECKING:
    from torch import Tensor

Tensors = tuple["Tensor", ...]
MAX_OUTPUT_BYTES = 2 << 30
"""Largest output that is shown to the judge."""
MAX_CHARACTERS = 400
LIMITS = wire.Limits(array_bytes=MAX_OUTPUT_BYTES)


def derive_seed(seed: int, committed: Sequence[float]) -> int:
    """Derive the seed of the next call from a call's seed and the numbers that it committed to."""
    content = struct.pack(f"<Q{len(committed)}d", seed, *committed)
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "little") >> 1


def project(outputs: Tensors, seed: int) -> list[float]:
    """Commit to each output by its dot product with weights drawn from the call's seed. Waits for the device.

    The weights are uniform with variance 1 and fresh for each call: with fixed ones, the product for a linear operation
    could be computed from its input alone.
    """
    import torch

    numbers = []
    for call_index, output in enumerate(outputs):
        flat = output.detach().reshape(-1)
        if not flat.is_floating_point():
            flat = flat.double()  # exact below 2**53
        elif flat.element_size() == 2 and flat.device.type == "cpu":
            flat = flat.float()  # the CPU would accumulate in half precision; CUDA accumulates in fp32
        generator = torch.Generator(flat.device).manual_seed(derive_seed(seed, (float(call_index),)))
        weights = torch.empty_like(flat).uniform_(-(3**0.5), 3**0.5, generator=generator)
        numbers.append(torch.dot(flat, weights).double())
    return [float(number) for number in numbers]


def as_tensors(output: Any) -> Tensors:
    """Convert one tensor or several to a tuple; `TypeError` for anything else."""
    import torch

    outputs = tuple(output) if isinstance(output, tuple | list) else (output,)
    for value in outputs:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"a timed call gave back a {type(value).__name__}, not a torch.Tensor")
    return outputs


def to_arrays(outputs: Tensors) -> tuple[list[str], dict[str, np.ndarray]]:
    """dtype names and arrays for the wire: bfloat16 travels as float32, which holds it exactly."""
    import torch

    names = [str(output.dtype).removeprefix("torch.") for output in outputs]
    plain = [output.detach().float() if output.dtype == torch.bfloat16 else output.detach() for output in outputs]
    return names, {f"out{call_index}": tensor.cpu().numpy() for call_index, tensor in enumerate(plain)}


def reply_to(request: wire.Frame, reply: wire.Frame) -> wire.Frame:
    """Copy a reply and add the nonce of its request."""
    return wire.Frame(reply.kind, {**reply.meta, "nonce": request.meta["nonce"]}, reply.arrays)


@dataclass
class RoundRunner:
    """Run rounds: make inputs, call, commit. Keeps a round's outputs until the next round."""

    make: Callable[[int, str], tuple[Any, ...]]
    call: Callable[..., Any]
    device: str
    outputs: list[Tensors] = field(default_factory=list)

    def run_round(self, seed: int, calls: int) -> np.ndarray:
        """Run a round; returns the commitments, (calls, outputs) in float64."""
        self.outputs.clear()
        committed: list[list[float]] = []
        for _ in range(calls):
            outputs = as_tensors(self.call(*self.make(seed, self.device)))
            committed.append(project(outputs, seed))
            self.outputs.append(outputs)
            seed = derive_seed(seed, committed[-1])
        return np.array(committed, np.float64).reshape(calls, -1)

    def handle(self, request: wire.Frame) -> wire.Frame:
        if request.kind == "go":
            return wire.Frame("done", arrays={"p": self.run_round(request.meta["seed"], request.meta["calls"])})
        if request.kind == "show":
            names, arrays = to_arrays(self.outputs[request.meta["call_index"]])
            return wire.Frame("shown", {"dtypes": names}, arrays)
        raise ValueError(f"no such question: {request.kind}")

    def serve(self, channel: socket.socket) -> None:
        """Serve requests until the judge closes the channel."""
        while True:
            try:
                request = wire.receive(channel, limits=LIMITS)
            except wire.ClosedError:
                return
            wire.send(channel, reply_to(request, self.handle(request)))


@cache
def _submission_runner(module: Any, make: str, call: str, device: str) -> RoundRunner:
    """The round runner of a submission, one per process."""
    makes: Any = find_call(make)
    return RoundRunner(makes, partial(find_call(call), module), device)


def handle_timed(module: Any, request: wire.Frame) -> wire.Frame:
    """Serve a `go` or `show` request; each names `make` and `call`."""
    import torch

    meta = request.meta
    try:
        with torch.no_grad():
            return _submission_runner(module, meta["make"], meta["call"], meta["device"]).handle(request)
    except BaseException as error:  # a learner's code may raise anything
        return wire.Frame(
            "problem", {"what": "the timed code raised", "got": f"{type(error).__name__}: {error}"[:MAX_CHARACTERS]}
        )
