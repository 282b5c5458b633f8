"""Interactive figure of a pipeline's timeline: schedule, ranks, micro-batches.

The figure reimplements `parallel.pipeline`'s schedules and their simulation in JavaScript; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import anywidget
import traitlets

from mlsys_lab.comm.simulate import Cluster, Timeline
from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.flops.communication import bubble
from mlsys_lab.parallel.pipeline import gpipe, interleaved, issue_schedule, one_forward_one_backward, zb_h1
from mlsys_lab.parallel.pipeline.schedules import Schedule, max_in_flight
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table

SCHEDULES = ("GPipe", "1F1B", "interleaved", "zero bubble")
CHUNKS = 2
"""Model chunks of each rank in the interleaved schedule."""
MAX_RANKS, MAX_MICRO_BATCHES = 8, 32
_TABLE_MICRO_BATCHES = (4, 8, 16, 32)


def pipeline_data(schedule: str = "1F1B", *, ranks: int = 4, micro_batches: int = 8) -> dict[str, Any]:
    """Data of the figure, which initially shows one of `SCHEDULES`.

    The interleaved schedule rounds micro-batches up to a multiple of the ranks. InputError for values out of range.
    """
    if schedule not in SCHEDULES:
        near = did_you_mean(schedule, SCHEDULES)
        raise InputError("no such schedule", got=schedule, expected=", ".join(SCHEDULES), help=near)
    if ranks not in range(1, MAX_RANKS + 1) or micro_batches not in range(1, MAX_MICRO_BATCHES + 1):
        raise InputError(
            "not supported by the figure",
            got=f"{ranks} ranks, {micro_batches} micro-batches",
            expected=f"1 to {MAX_RANKS}, 1 to {MAX_MICRO_BATCHES}",
        )
    return {"schedule": schedule, "ranks": ranks, "micro_batches": micro_batches}


def make_schedule(name: str, ranks: int, micro_batches: int) -> Schedule:
    """Schedule of this name, with at least `micro_batches` micro-batches."""
    if name == "interleaved":
        return interleaved(ranks, -(-micro_batches // ranks) * ranks, CHUNKS)
    return {"GPipe": gpipe, "1F1B": one_forward_one_backward, "zero bubble": zb_h1}[name](ranks, micro_batches)


def simulate_schedule(schedule: Schedule) -> Timeline:
    """Run a schedule on simulated ranks: a rank's forward pass takes 1 s, its backward pass 2 s, messages no time.

    A separate weight-gradient pass takes half of the backward pass.
    """
    cluster = Cluster(len(schedule))
    issue_schedule(cluster, schedule, forward_s=1.0, backward_s=2.0)
    return cluster.timeline()


def pipeline_table(data: Mapping[str, Any]) -> str:
    """HTML table of idle time and of micro-batches in flight on rank 0, by schedule and number of micro-batches."""
    rows = []
    for count in _TABLE_MICRO_BATCHES:
        cells = []
        for name in SCHEDULES:
            schedule = make_schedule(name, data["ranks"], count)
            end_s, work_s = simulate_schedule(schedule).end_s, 3.0 * max(a.micro_batch + 1 for a in schedule[0])
            # In micro-batches through all chunks of the rank.
            chunks = 1 + max(action.chunk for action in schedule[0])
            cells.append(f"{100 * (1 - work_s / end_s):.0f} %, keeps {max_in_flight(schedule[0]) / chunks:g}")
        rows.append((count, f"{bubble(data['ranks'], count):.2f}", *cells))
    return table((f"micro-batches over {data['ranks']} ranks", "(p − 1)/m", *SCHEDULES), rows)


class PipelineTimeline(anywidget.AnyWidget):
    """Notebook figure of a pipeline's timeline: `PipelineTimeline.of("GPipe", ranks=4, micro_batches=16)`."""

    _esm = esm("pipeline")
    schedule = traitlets.Unicode("1F1B").tag(sync=True)
    ranks = traitlets.Int(4).tag(sync=True)
    micro_batches = traitlets.Int(8).tag(sync=True)

    @classmethod
    def of(cls, schedule: str = "1F1B", **options: Any) -> Self:
        """Figure that initially shows a schedule; `options` are keyword arguments of `pipeline_data`."""
        return cls(**pipeline_data(schedule, **options))
