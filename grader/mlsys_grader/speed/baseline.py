"""The baseline processes that a submission is timed against: the library, an empty call, the device at its limit."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from mlsys_grader.sandbox.inside import wire
from mlsys_grader.sandbox.inside.timed import RoundRunner, Tensors, as_tensors, project, reply_to, to_arrays

if TYPE_CHECKING:
    from mlsys_checks.sandboxed.performance import Performance, Work


class LibraryRunner(RoundRunner):
    """The library call: the baseline, and the oracle for what a submission committed to."""

    def handle(self, request: wire.Frame) -> wire.Frame:
        """Serve rounds, `size` and `expect` {seeds, show}: from a shown output to the right values for those seeds.

        Returns commitments and output norms of every call, (calls, outputs); the output of call `show`; and the
        commitment of the shown output, NaN if its shape is wrong.
        """
        if request.kind == "size":
            self.run_round(0, 1)
            return wire.Frame("size", {"bytes": sum(t.numel() * t.element_size() for t in self.outputs[0])})
        if request.kind != "expect":
            return super().handle(request)
        from mlsys_checks.trusted.compare import tolerance  # trusted side: absent from a sandbox

        numbers, norms, again = [], [], []
        allowed: list[float] = []
        shown: Tensors = ()
        for call_index, seed in enumerate(request.meta["seeds"]):
            outputs = as_tensors(self.call(*self.make(seed, self.device)))
            numbers.append(project(outputs, seed))
            norms.append([float(output.double().norm()) or output.numel() ** 0.5 for output in outputs])
            allowed = [tolerance(str(output.dtype).removeprefix("torch.")) for output in outputs]
            if call_index == request.meta["show"]:
                shown = outputs
                again = project(_match_shapes(request.arrays, outputs), seed)
        names, arrays = to_arrays(shown)
        arrays |= {"p": np.array(numbers), "norm": np.array(norms), "again": np.array(again, float)}
        arrays["tolerance"] = np.array(allowed)
        return wire.Frame("expected", {"dtypes": names}, arrays)


def _match_shapes(arrays: Mapping[str, np.ndarray], outputs: Tensors) -> Tensors:
    """Convert a submission's arrays to tensors like the right outputs; NaN for a wrong shape."""
    import torch

    tensors = []
    for call_index, want in enumerate(outputs):
        got = arrays.get(f"out{call_index}", np.empty(0))
        tensors.append(torch.from_numpy(got).to(want) if got.shape == tuple(want.shape) else want * torch.nan)
    return tuple(tensors)


class EmptyRunner(RoundRunner):
    """Makes inputs and commits without calling anything: the cost of the protocol."""

    def run_round(self, seed: int, calls: int) -> np.ndarray:
        """Run a round with one output computed in advance."""
        if not hasattr(self, "held"):
            self.held = self.call(*self.make(0, self.device))
            self.call = lambda *_: self.held
        return super().run_round(seed, calls)

    def handle(self, request: wire.Frame) -> wire.Frame:
        """Serve rounds and `memory`, the free bytes on the device."""
        if request.kind == "memory":
            import torch

            free = torch.cuda.mem_get_info()[0] if self.device == "cuda" else 0
            return wire.Frame("memory", {"free": free})
        return super().handle(request)


class DeviceLimitRunner(RoundRunner):
    """The device at its limit: a copy that moves `work.size_bytes`, or a square product of `work.flops` operations."""

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

    def run_round(self, seed: int, calls: int) -> np.ndarray:
        """Run the calls back to back and synchronise once at the end."""
        for _ in range(calls):
            self.step()
        self.target[:1].sum().item()
        return np.zeros((calls, 1))


def make_runner(performance: Performance, role: str, device: str) -> RoundRunner:
    """Make a baseline runner; `role` is `library`, `empty`, `copy` or `product`, `device` a torch device."""
    kinds: dict[str, type[RoundRunner]] = {"library": LibraryRunner, "empty": EmptyRunner}
    if role in kinds:
        return kinds[role](performance.make, performance.library, device)
    assert performance.work is not None
    return DeviceLimitRunner(performance.work, role, device)


def main() -> NoReturn:
    """Serve the judge, whose socket is standard input."""
    import torch

    channel = socket.socket(fileno=os.dup(0))
    start = wire.receive(channel)
    sys.path[:0] = start.meta["path"]
    torch.set_num_threads(1)
    performance = importlib.import_module(start.meta["checks"]).LAB[start.meta["check"]].performance
    cuda = start.meta["device"] == "cuda"
    if cuda and not torch.cuda.is_available():
        wire.send(channel, reply_to(start, wire.Frame("ready", {"device": ""})))
        sys.exit(0)
    runner = make_runner(performance, start.meta["role"], start.meta["device"])
    with torch.no_grad():
        name = torch.cuda.get_device_name() if cuda else "cpu"
        wire.send(channel, reply_to(start, wire.Frame("ready", {"device": name})))
        runner.serve(channel)
    sys.exit(0)
