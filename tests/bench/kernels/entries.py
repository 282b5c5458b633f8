"""What a GPU is asked: an entry is one operation at one size, what it is held against, and the ratio that is asked.

A ratio is the other's time over ours, round by round of one run: 1 is as fast, above it faster. Operations that do no
more than move memory are held against a copy that moves as many bytes, matrix products against cuBLAS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from mlsys_lab.kernels.cuda_cpp import Launcher

Call = Callable[[], Any]

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
"""Of the largest absolute value that is expected; by the dtype of what an operation gives."""


@dataclass(frozen=True)
class Machine:
    """Where entries run: "cuda" and the GPU's launcher, or "cpu" and an emulator's."""

    device: str
    launch: Launcher

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
    amount: float  # bytes or FLOPs of a call
    unit: str  # "TB/s" or "TFLOP/s"
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def wrong(self) -> str:
        """What differs between ours and what is expected, "" if nothing does."""
        found, wanted = _tensors(self.ours()), _tensors(self.expected())
        if [one.shape for one in found] != [one.shape for one in wanted]:
            return f"shapes {[tuple(one.shape) for one in found]} for {[tuple(one.shape) for one in wanted]}"
        for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
            error = (one.double() - other.double()).abs().max() / other.double().abs().max().clamp_min(1e-30)
            if not error <= TOLERANCE[one.dtype]:
                return f"result {i} is off by {float(error):.2g} of the largest value"
        return ""


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


def _tensors(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)
