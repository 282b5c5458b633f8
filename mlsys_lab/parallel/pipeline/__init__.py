"""Pipeline parallelism: each rank holds a stage of layers, and micro-batches pass through the stages."""

from mlsys_lab.parallel.pipeline.execution import Pipeline
from mlsys_lab.parallel.pipeline.schedules import (
    Action,
    Schedule,
    gpipe,
    interleaved,
    one_forward_one_backward,
    zb_h1,
)
from mlsys_lab.parallel.pipeline.simulation import issue_schedule

__all__ = [
    "Action",
    "Pipeline",
    "Schedule",
    "gpipe",
    "interleaved",
    "issue_schedule",
    "one_forward_one_backward",
    "zb_h1",
]
