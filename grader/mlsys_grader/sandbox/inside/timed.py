"""The process that is timed: draws inputs from a seed, calls, and commits itself to every output.

    judge                                  this process
    go {seed, calls} ───────────────────▶  call i: inputs and weights from seed_i, output_i,
                                           p_i = weights · output_i, seed_(i+1) = hash(seed_i, p_i)
    ◀────────────────── done, all the p_i  here the judge's clock stops
    show {place} ───────────────────────▶
    ◀─────────────────── shown, output     of a call that the judge had not named before

Nothing here is trusted where a submission runs: the file says what an honest process does, and the judge (room
`speed`) believes only what it can compute again. The weights are random, so that p - p' of two outputs scatters with
the Euclidean norm of their difference: one number vouches for a whole output. Since the next seed depends on it, calls
cannot be started ahead, put into one batch, or left out. (A hash of the output's bits would vouch for nothing: bits
may differ within the tolerance, so the judge could not say what it should be, and to a hash that is cheap enough to
be computed beside a kernel an output can be fitted afterwards.)
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
SHOWN_BYTES = 2 << 30
"""The largest output that is shown to the judge."""
TEXT = 400
LIMITS = wire.Limits(array_bytes=SHOWN_BYTES)


def derive_seed(seed: int, committed: Sequence[float]) -> int:
    """Derive the seed of the call after one that had `seed` and was committed to by these numbers."""
    content = struct.pack(f"<Q{len(committed)}d", seed, *committed)
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "little") >> 1


def project(outputs: Tensors, seed: int) -> list[float]:
    """One number per output: its scalar product with weights drawn from the call's seed. Waits for the device.

    The weights are uniform with variance 1 and fresh for each call: for fixed ones the product with a linear
    operation's output could be had from its input alone.
    """
    import torch

    numbers = []
    for place, output in enumerate(outputs):
        flat = output.detach().reshape(-1)
        if not flat.is_floating_point():
            flat = flat.double()  # exact below 2**53
        elif flat.element_size() == 2 and flat.device.type == "cpu":
            flat = flat.float()  # the CPU would add up in half precision; CUDA adds up in fp32
        generator = torch.Generator(flat.device).manual_seed(derive_seed(seed, (float(place),)))
        weights = torch.empty_like(flat).uniform_(-(3**0.5), 3**0.5, generator=generator)
        numbers.append(torch.dot(flat, weights).double())
    return [float(number) for number in numbers]


def as_tensors(output: Any) -> Tensors:
    """Make a tuple of one tensor or several; `TypeError` for anything else."""
    import torch

    outputs = tuple(output) if isinstance(output, tuple | list) else (output,)
    for value in outputs:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"a timed call gave back a {type(value).__name__}, not a torch.Tensor")
    return outputs


def to_arrays(outputs: Tensors) -> tuple[list[str], dict[str, np.ndarray]]:
    """dtype names and arrays that can cross the wire: bfloat16 travels as float32, which holds it exactly."""
    import torch

    names = [str(output.dtype).removeprefix("torch.") for output in outputs]
    plain = [output.detach().float() if output.dtype == torch.bfloat16 else output.detach() for output in outputs]
    return names, {f"out{place}": tensor.cpu().numpy() for place, tensor in enumerate(plain)}


def make_answer(request: wire.Frame, reply: wire.Frame) -> wire.Frame:
    """Copy a reply, with the number of the question that it answers."""
    return wire.Frame(reply.kind, {**reply.meta, "nonce": request.meta["nonce"]}, reply.arrays)


@dataclass
class Player:
    """Plays rounds: makes inputs, calls, commits; keeps a round's outputs until the next one."""

    make: Callable[[int, str], tuple[Any, ...]]
    call: Callable[..., Any]
    device: str
    outputs: list[Tensors] = field(default_factory=list)

    def play(self, seed: int, calls: int) -> np.ndarray:
        """Play a round; what it commits to, (calls, outputs) in float64."""
        self.outputs.clear()
        committed: list[list[float]] = []
        for _ in range(calls):
            outputs = as_tensors(self.call(*self.make(seed, self.device)))
            committed.append(project(outputs, seed))
            self.outputs.append(outputs)
            seed = derive_seed(seed, committed[-1])
        return np.array(committed, np.float64).reshape(calls, -1)

    def answer(self, request: wire.Frame) -> wire.Frame:
        """Form the reply to a question of the judge."""
        if request.kind == "go":
            return wire.Frame("done", arrays={"p": self.play(request.meta["seed"], request.meta["calls"])})
        if request.kind == "show":
            names, arrays = to_arrays(self.outputs[request.meta["place"]])
            return wire.Frame("shown", {"dtypes": names}, arrays)
        raise ValueError(f"no such question: {request.kind}")

    def serve(self, channel: socket.socket) -> None:
        """Answer until the judge closes the channel."""
        while True:
            try:
                request = wire.receive(channel, limits=LIMITS)
            except wire.ClosedError:
                return
            wire.send(channel, make_answer(request, self.answer(request)))


@cache
def _submitted(module: Any, make: str, call: str, device: str) -> Player:
    """The player of a submission: one for the life of its process."""
    makes: Any = find_call(make)
    return Player(makes, partial(find_call(call), module), device)


def handle_timed(module: Any, request: wire.Frame) -> wire.Frame:
    """Play a submission's part: `go` and `show`, with the names of `make` and `call` in each question."""
    import torch

    meta = request.meta
    try:
        with torch.no_grad():
            return _submitted(module, meta["make"], meta["call"], meta["device"]).answer(request)
    except BaseException as error:  # a learner's code may raise anything
        return wire.Frame(
            "problem", {"what": "the timed code raised", "got": f"{type(error).__name__}: {error}"[:TEXT]}
        )
