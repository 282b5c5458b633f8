"""What a GPU is asked: an entry is one operation or program, what it is held against, and the ratio that is asked.

A ratio is our speed over the other's, round by round of one run: 1 is as fast, above it faster. Operations that do no
more than move memory are held against a copy that moves as many bytes, matrix products against cuBLAS, programs
against other programs or the device's peak.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from mlsys_lab import hardware
from mlsys_lab.kernels.cuda_cpp import Launcher

Call = Callable[..., Any]

UNITS = {"TB/s": 1e-12, "TFLOP/s": 1e-12, "tokens/s": 1.0, "images/s": 1.0}
"""What an amount a second is multiplied by, by the unit that it is told in."""

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float64: 1e-9, torch.int64: 0.0}
"""Of the largest absolute value that is expected; by the dtype of what an operation gives."""


@dataclass(frozen=True)
class Machine:
    """Where entries run: "cuda" and the GPU's launcher, or "cpu" and an emulator's."""

    device: str
    launch: Launcher

    @property
    def peak_flops_per_s(self) -> float:
        """Dense peak of this GPU in bf16, by the table of devices; InputError for one that is not in it."""
        return hardware.device(torch.cuda.get_device_name()).peak("bf16")

    def randn(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Normal numbers on the device, the same in every run."""
        generator = torch.Generator(self.device).manual_seed(0)
        return torch.randn(*shape, generator=generator, device=self.device).to(dtype)

    def several(self, count: int, *shape: int, dtype: torch.dtype) -> list[torch.Tensor]:
        """Different tensors of one shape, each in memory of its own."""
        return [one.clone() for one in self.randn(count, *shape, dtype=dtype)]

    def copy(self, size_bytes: int) -> Call:
        """A copy that reads and writes this many bytes in all."""
        source = torch.zeros(size_bytes // 2, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    def compiled(self, call: Call) -> Call:
        """The call as torch compiles it on a GPU; as it is where nothing can be timed."""
        return torch.compile(call) if self.device == "cuda" else call

    def fastest(self, calls: Mapping[str, Call]) -> tuple[str, Call]:
        """The call that takes the least time (median of 5), or the first where nothing can be timed."""
        name = next(iter(calls))
        if self.device == "cuda":
            from mlsys_lab.benchmark import compare

            timings = compare(calls, device="cuda", samples=5).timings
            name = min(timings, key=lambda one: timings[one].p50_s)
        return name, calls[name]


@dataclass(frozen=True)
class Case:
    """An entry's calls, on inputs that are ready."""

    ours: Call
    against: Mapping[str, Call]
    expected: Call
    amount: float  # bytes, FLOPs, tokens or images of a call of ours
    unit: str  # one of UNITS
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def wrong(self) -> str:
        """What differs between ours and what is expected, "" if nothing does."""
        return difference(self.ours(), self.expected())

    def amount_of(self, name: str) -> float:
        """What a call of this name does: all that `ours` is held against do the same."""
        return self.amount


@dataclass(frozen=True)
class Program(Case):
    """A whole program, timed with the host's work in it: it is not replayed as a CUDA graph, and warmed up once.

    The others may do another amount than `ours` does, and `limits` are speeds that no call has to be timed for. What is
    compared with `expected` is another call than the one that is timed, small and exact.
    """

    checked: Call = field(kw_only=True)
    amounts: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    limits: Mapping[str, float] = field(default_factory=dict, kw_only=True)

    def wrong(self) -> str:
        """What differs between what is checked and what is expected, "" if nothing does."""
        return difference(self.checked(), self.expected())

    def amount_of(self, name: str) -> float:
        """What a call of this name does."""
        return self.amounts.get(name, self.amount)


@dataclass(frozen=True)
class Entry:
    """`make(machine, *sizes)` gives the case; `tiny` are sizes for a machine without a GPU."""

    name: str
    what: str
    make: Callable[..., Case]
    sizes: tuple[int, ...]
    tiny: tuple[int, ...]
    asked: Mapping[str, float] = field(default_factory=dict)  # ratio by what it is held against; none asked: told only
    samples: int = 30


def difference(found: Any, wanted: Any) -> str:
    """What differs between a tensor or several and those that are wanted, "" if nothing does."""
    found, wanted = _tensors(found), _tensors(wanted)
    if [one.shape for one in found] != [one.shape for one in wanted]:
        return f"shapes {[tuple(one.shape) for one in found]} for {[tuple(one.shape) for one in wanted]}"
    for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
        error = (one.double() - other.double()).abs().max() / other.double().abs().max().clamp_min(1e-30)
        if not error <= TOLERANCE[one.dtype]:
            return f"result {i} is off by {float(error):.2g} of the largest value"
    return ""


def _tensors(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)
