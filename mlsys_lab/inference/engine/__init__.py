"""A serving engine: many requests, a step at a time, on one model and a fixed number of pages.

sequence      Sequence, a text as the scheduler sees it; Saved, its keys and values in host memory
scheduler     Scheduler.schedule() -> Batch, what the next step feeds; Limits; no torch
model_runner  ModelRunner.run(batch): logits for those who write
engine        Engine: add(request), step() -> what was written, abort, stream, run

The scheduler decides with tables of pages (`cache.tables`) and numbers of tokens. `simulator` runs it against a clock.
"""

from typing import TYPE_CHECKING

from mlsys_lab.inference.engine.scheduler import Batch, Build, Limits, Scheduler, build_scheduler
from mlsys_lab.inference.engine.sequence import Saved, Sequence
from mlsys_lab.lazy import lazily

if TYPE_CHECKING:
    from mlsys_lab.inference.engine.engine import Engine, Written
    from mlsys_lab.inference.engine.model_runner import ModelRunner
else:
    # Who schedules or simulates needs no torch.
    HOMES = {"Engine": "engine", "Written": "engine", "ModelRunner": "model_runner"}
    __getattr__ = lazily(__name__, HOMES)

__all__ = [
    "Batch",
    "Build",
    "Engine",
    "Limits",
    "ModelRunner",
    "Saved",
    "Scheduler",
    "Sequence",
    "Written",
    "build_scheduler",
]
