"""Preemption by swapping: the KV cache of a preempted sequence moves to host memory, and back when it is readmitted.

scheduler   SwappingScheduler, SwapConfig; without torch
engine      SwappingEngine, SwappingModelRunner
"""

from typing import TYPE_CHECKING

from mlsys_lab.inference.swap.scheduler import SwapConfig, SwapOutput, SwappedSequence, SwappingScheduler
from mlsys_lab.lazy import lazily

if TYPE_CHECKING:
    from mlsys_lab.inference.swap.engine import SwappingEngine, SwappingModelRunner
else:
    __getattr__ = lazily(__name__, dict.fromkeys(("SwappingEngine", "SwappingModelRunner"), "engine"))

__all__ = [
    "SwapConfig",
    "SwapOutput",
    "SwappedSequence",
    "SwappingEngine",
    "SwappingModelRunner",
    "SwappingScheduler",
]
