"""The process that is timed: draws inputs from a seed, calls, and commits itself to every output.

    judge                                  this process
    go {seed, calls} ───────────────────▶  call i: inputs and weights from seed_i, output_i,
                                           p_i = weights · output_i, seed_(i+1) = hash(seed_i, p_i)
    ◀────────────────── done, all the p_i  here the judge's clock stops
    show {place} ───────────────────────▶
    ◀─────────────────── shown, output     of a call that the judge had not named before

Nothing here is trusted where a submission runs: the file says what an honest process does, and the judge (`grader.
rounds`) believes only what it can compute again. The weights are random, so that p - p' of two outputs scatters with
the Euclidean norm of their difference: one number vouches for a whole output. Since the next seed hangs on it, calls
cannot be started ahead, put into one batch, or left out. (A hash of the output's bits would vouch for nothing: bits
may differ within the tolerance, so the judge could not say what it should be, and to a hash that is cheap enough to
be computed beside a kernel an output can be fitted afterwards.)
"""

from __future__ import annotations

import hashlib
import importlib
import os
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from grader import wire
from mlsys_lab.checks.learner.spec import find_call

if TYPE_CHECKING:
    from torch import Tensor

    from mlsys_lab.checks.learner.performance import Performance, Work

Tensors = tuple["Tensor", ...]
SHOWN_BYTES = 2 << 30
"""The largest output that is shown to the judge."""
TEXT = 400
LIMITS = wire.Limits(array_bytes=SHOWN_BYTES)


def next_seed(seed: int, committed: Sequence[float]) -> int:
    """The seed of the call after one that had `seed` and was committed to by these numbers."""
    content = struct.pack(f"<Q{len(committed)}d", seed, *committed)
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "little") >> 1


def seeds_of(seed: int, committed: np.ndarray) -> list[int]:
    """The seeds of all calls of a round, from its first seed and the numbers (calls, outputs) committed to."""
    seeds = [seed]
    for row in committed[:-1]:
        seeds.append(next_seed(seeds[-1], row.tolist()))
    return seeds


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
        generator = torch.Generator(flat.device).manual_seed(next_seed(seed, (float(place),)))
        weights = torch.empty_like(flat).uniform_(-(3**0.5), 3**0.5, generator=generator)
        numbers.append(torch.dot(flat, weights).double())
    return [float(number) for number in numbers]


def as_tensors(output: Any) -> Tensors:
    """One tensor or several, as a tuple; `TypeError` for anything else."""
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


def answering(question: wire.Frame, reply: wire.Frame) -> wire.Frame:
    """A reply that says which question it answers."""
    return wire.Frame(reply.kind, {**reply.meta, "nonce": question.meta["nonce"]}, reply.arrays)


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
            seed = next_seed(seed, committed[-1])
        return np.array(committed, np.float64).reshape(calls, -1)

    def answer(self, question: wire.Frame) -> wire.Frame:
        """What to reply to the judge."""
        if question.kind == "go":
            return wire.Frame("done", arrays={"p": self.play(question.meta["seed"], question.meta["calls"])})
        if question.kind == "show":
            names, arrays = to_arrays(self.outputs[question.meta["place"]])
            return wire.Frame("shown", {"dtypes": names}, arrays)
        raise ValueError(f"no such question: {question.kind}")

    def serve(self, channel: socket.socket) -> None:
        """Answer until the judge closes the channel."""
        while True:
            try:
                question = wire.receive(channel, limits=LIMITS)
            except wire.ClosedError:
                return
            wire.send(channel, answering(question, self.answer(question)))


class Library(Player):
    """The course's own side: the baseline, and the oracle of what a submission committed to."""

    def answer(self, question: wire.Frame) -> wire.Frame:
        """Beside rounds: `expect` {seeds, show} and a shown output in; what is right for those seeds out.

        Of every call the numbers to commit to and the outputs' norms, (calls, outputs); the output of call `show`;
        and the numbers that the shown output would be committed to by, NaN where its shape is another.
        """
        if question.kind == "size":
            self.play(0, 1)
            return wire.Frame("size", {"bytes": sum(t.numel() * t.element_size() for t in self.outputs[0])})
        if question.kind != "expect":
            return super().answer(question)
        from mlsys_lab.checks.deciding.compare import tolerance  # decides, so a sandbox does not have it

        numbers, norms, again = [], [], []
        allowed: list[float] = []
        shown: Tensors = ()
        for place, seed in enumerate(question.meta["seeds"]):
            outputs = as_tensors(self.call(*self.make(seed, self.device)))
            numbers.append(project(outputs, seed))
            norms.append([float(output.double().norm()) or output.numel() ** 0.5 for output in outputs])
            allowed = [tolerance(str(output.dtype).removeprefix("torch.")) for output in outputs]
            if place == question.meta["show"]:
                shown = outputs
                again = project(_alike(question.arrays, outputs), seed)
        names, arrays = to_arrays(shown)
        arrays |= {"p": np.array(numbers), "norm": np.array(norms), "again": np.array(again, float)}
        arrays["tolerance"] = np.array(allowed)
        return wire.Frame("expected", {"dtypes": names}, arrays)


def _alike(arrays: Mapping[str, np.ndarray], outputs: Tensors) -> Tensors:
    """Arrays from a submission as tensors like the right outputs; NaN in place of one that has another shape."""
    import torch

    tensors = []
    for place, want in enumerate(outputs):
        got = arrays.get(f"out{place}", np.empty(0))
        tensors.append(torch.from_numpy(got).to(want) if got.shape == tuple(want.shape) else want * torch.nan)
    return tuple(tensors)


class Null(Player):
    """Makes inputs and commits, but calls nothing: what the protocol itself costs."""

    def play(self, seed: int, calls: int) -> np.ndarray:
        """A round of one output, computed once."""
        if not hasattr(self, "held"):
            self.held = self.call(*self.make(0, self.device))
            self.call = lambda *_: self.held
        return super().play(seed, calls)

    def answer(self, question: wire.Frame) -> wire.Frame:
        """Beside rounds: `memory`, the bytes that are free on the device."""
        if question.kind == "memory":
            import torch

            free = torch.cuda.mem_get_info()[0] if self.device == "cuda" else 0
            return wire.Frame("memory", {"free": free})
        return super().answer(question)


class Bound(Player):
    """The device at its limit: a copy that moves `work.size_bytes`, a square product of `work.flops` operations."""

    def __init__(self, work: Work, role: str, device: str) -> None:
        import torch

        super().__init__(lambda *_: (), lambda *_: None, device)
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64}.get(
            work.precision, torch.float32
        )
        if role == "copy":
            self.source = torch.ones(max(int(work.size_bytes / 2), 1), dtype=torch.uint8, device=device)
            self.target = torch.empty_like(self.source)
            self.step: Callable[[], object] = lambda: self.target.copy_(self.source)
        else:
            side = max(round((work.flops / 2) ** (1 / 3)), 1)
            self.source = torch.ones(side, side, dtype=dtype, device=device)
            self.target = torch.empty_like(self.source)
            self.step = lambda: torch.mm(self.source, self.source, out=self.target)

    def play(self, seed: int, calls: int) -> np.ndarray:
        """One after the other, and one wait at the end."""
        for _ in range(calls):
            self.step()
        self.target[:1].sum().item()
        return np.zeros((calls, 1))


def clean_player(performance: Performance, role: str) -> Player:
    """A player without any submission: `library`, `null`, `copy` or `product`."""
    kinds: dict[str, type[Player]] = {"library": Library, "null": Null}
    if role in kinds:
        return kinds[role](performance.make, performance.library, performance.device)
    assert performance.work is not None
    return Bound(performance.work, role, performance.device)


@cache
def _submitted(module: Any, make: str, call: str, device: str) -> Player:
    """The player of a submission: one for the life of its process."""
    makes: Any = find_call(make)
    return Player(makes, partial(find_call(call), module), device)


def answer_for(module: Any, question: wire.Frame) -> wire.Frame:
    """Play a submission's part: `go` and `show`, with the names of `make` and `call` in each question."""
    import torch

    meta = question.meta
    try:
        with torch.no_grad():
            return _submitted(module, meta["make"], meta["call"], meta["device"]).answer(question)
    except BaseException as error:  # a learner's code may raise anything
        return wire.Frame(
            "trouble", {"what": "the timed code raised", "got": f"{type(error).__name__}: {error}"[:TEXT]}
        )


def main() -> NoReturn:
    """A clean process: `python -c "from grader.timed import main; main()"`, the judge's socket as standard input."""
    import torch

    channel = socket.socket(fileno=os.dup(0))
    start = wire.receive(channel)
    sys.path[:0] = start.meta["path"]
    torch.set_num_threads(1)
    performance = importlib.import_module(start.meta["checks"]).LAB[start.meta["check"]].performance
    cuda = performance.device == "cuda"
    if cuda and not torch.cuda.is_available():
        wire.send(channel, answering(start, wire.Frame("ready", {"device": ""})))
        sys.exit(0)
    player = clean_player(performance, start.meta["role"])
    with torch.no_grad():
        name = torch.cuda.get_device_name() if cuda else "cpu"
        wire.send(channel, answering(start, wire.Frame("ready", {"device": name})))
        player.serve(channel)
    sys.exit(0)
