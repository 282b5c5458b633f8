"""Performance points: what is timed, against what, and how points follow from the ratio.

The sandboxed side is `make` and `call`, functions of a module of calls like every `run`; `library` stays on the trusted
side. The grader's package `speed` has the protocol of the measurement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from mlsys_lab.errors import InputError


@dataclass(frozen=True)
class Work:
    """Lower bound on a call's work: bytes to and from memory, operations, and their precision.

    A multiply-add is two operations; `precision` is a key of a device's peaks ("fp32", "bf16", ...). Fresh inputs may
    still be in the last-level cache: choose sizes several times as large, or memory has to move fewer bytes.
    """

    size_bytes: float = 0.0
    flops: float = 0.0
    precision: str = "fp32"


@dataclass(frozen=True)
class Performance:
    """Extra points of a check for the time of one call of the learner's code.

    make(seed, device)      -> a tuple of inputs, drawn on the device from all bits of the seed: whatever two seeds
                               have in common could be computed ahead
    call(artifact, *inputs) -> a tensor or a tuple of tensors, by calling the learner's code
    library(*inputs)        -> the same from a library: the oracle and, unless `against` is "bound", the baseline

    `against` "library": the ratio is the library's time over the learner's. "bound": it is the time for `work` at this
    device's limits, measured in the same run, over the learner's. Points rise linearly from none at the ratio `start`
    to all at `target`. No honest call takes less than `min_s`, nor less than `work` at the data sheet's peaks. `scale`
    widens the tolerance of `library`'s dtype as in `mlsys_checks.trusted.compare.close`. `device` is "cuda"; "cpu" is
    for tests of the grader itself.

    If the check is `traced`, `artifact` is a module of the submission's kernels and kernel sources alone: nothing else
    of it runs in the timed process, and `make` and `call` are the course's own.

    Making inputs and committing to outputs is timed along with the call, and charged to the learner (the grader's
    `speed.rounds` explains why). Both should take little time compared with the call, so set `target` by what the
    reference reaches.
    """

    points: float
    make: Callable[[int, str], tuple[Any, ...]]
    call: Callable[..., Any]
    library: Callable[..., Any]
    target: float
    start: float = 0.0
    against: Literal["library", "bound"] = "library"
    work: Work | None = None
    min_s: float = 0.0
    scale: float = 1.0
    device: Literal["cuda", "cpu"] = "cuda"

    def __post_init__(self) -> None:
        if not self.points > 0:
            raise InputError("performance needs positive points", got=self.points)
        if not 0 <= self.start < self.target:
            raise InputError(
                "points must rise from `start` to `target`",
                got=f"{self.start:g} to {self.target:g}",
                expected="0 <= start < target",
            )
        if self.library.__module__ in (self.make.__module__, self.call.__module__):
            raise InputError(
                "`library` is in one module with `make` or `call`",
                got=self.library.__module__,
                help="move `make` and `call` to a module of calls, the only one that goes into the sandbox",
            )
        if self.against == "bound" and self.work is None:
            raise InputError("a fraction of a bound needs the work that makes the bound", expected="Work(...)")

    def earned(self, ratio: float) -> float:
        """Points for a ratio, linear from 0 at `start` to all at `target`."""
        share = (ratio - self.start) / (self.target - self.start)
        return self.points * min(max(share, 0.0), 1.0)
