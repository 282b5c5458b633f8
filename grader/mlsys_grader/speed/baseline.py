"""The clean processes that a submission is timed against: the library, an empty call, the device at its limit."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from mlsys_grader.sandbox.inside import wire
from mlsys_grader.sandbox.inside.timed import Player, Tensors, as_tensors, make_answer, project, to_arrays

if TYPE_CHECKING:
    from mlsys_checks.sandboxed.performance import Performance, Work


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
        from mlsys_checks.trusted.compare import tolerance  # decides, so a sandbox does not have it

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
        """Play a round with one output that was computed once."""
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
        """Run the calls one after the other, and wait for the device once, at the end."""
        for _ in range(calls):
            self.step()
        self.target[:1].sum().item()
        return np.zeros((calls, 1))


def make_player(performance: Performance, role: str, device: str) -> Player:
    """Make a player without any submission; `role` is `library`, `null`, `copy` or `product`, `device` torch's name."""
    kinds: dict[str, type[Player]] = {"library": Library, "null": Null}
    if role in kinds:
        return kinds[role](performance.make, performance.library, device)
    assert performance.work is not None
    return Bound(performance.work, role, device)


def main() -> NoReturn:
    """Serve the judge in a clean process, whose standard input is the judge's socket."""
    import torch

    channel = socket.socket(fileno=os.dup(0))
    start = wire.receive(channel)
    sys.path[:0] = start.meta["path"]
    torch.set_num_threads(1)
    performance = importlib.import_module(start.meta["checks"]).LAB[start.meta["check"]].performance
    cuda = start.meta["device"] == "cuda"
    if cuda and not torch.cuda.is_available():
        wire.send(channel, make_answer(start, wire.Frame("ready", {"device": ""})))
        sys.exit(0)
    player = make_player(performance, start.meta["role"], start.meta["device"])
    with torch.no_grad():
        name = torch.cuda.get_device_name() if cuda else "cpu"
        wire.send(channel, make_answer(start, wire.Frame("ready", {"device": name})))
        player.serve(channel)
    sys.exit(0)
