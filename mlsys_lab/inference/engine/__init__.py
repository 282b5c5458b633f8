"""The serving core: continuous batching on a paged KV cache. Read the files in this order.

sequence        SamplingParams, Request; Sequence (the unit of scheduling); GenerationState and its outputs
block_manager   BlockManager: block tables over a pool of blocks, reference counts, prefix cache
scheduler       Scheduler.schedule() -> SchedulerOutput; SchedulerConfig
model_runner    ModelRunner.run(output): KVCache, attention over its blocks, one forward pass
sampler         sample(states, logits): penalties, filters, the next tokens
engine          Engine: add_request, step, run, abort_request

The first three import no torch. The core imports nothing else from `mlsys_lab.inference`: LoRA, speculative decoding,
swapping, other caches, the server and the simulator build on it from outside.
"""

from typing import TYPE_CHECKING

from mlsys_lab.inference.engine.block_manager import BlockManager, BlockPool
from mlsys_lab.inference.engine.scheduler import Scheduler, SchedulerConfig, SchedulerOutput
from mlsys_lab.inference.engine.sequence import CompletionOutput, Request, SamplingParams, Sequence, SequenceDelta
from mlsys_lab.lazy import lazily

if TYPE_CHECKING:
    from mlsys_lab.inference.engine.engine import Engine
    from mlsys_lab.inference.engine.model_runner import KVCache, ModelRunner
else:
    # The scheduler and the simulator need no torch.
    _LAZY_MODULES = {"Engine": "engine", "KVCache": "model_runner", "ModelRunner": "model_runner"}
    __getattr__ = lazily(__name__, _LAZY_MODULES)

__all__ = [
    "BlockManager", "BlockPool", "CompletionOutput", "Engine", "KVCache", "ModelRunner", "Request", "SamplingParams",
    "Scheduler", "SchedulerConfig", "SchedulerOutput", "Sequence", "SequenceDelta",
]  # fmt: skip
