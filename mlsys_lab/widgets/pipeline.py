"""Data of the figure of a pipeline's timeline: schedule, ranks, micro-batches.

The figure repeats `parallel.pipeline`'s schedules and their simulation in JavaScript, and a test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import anywidget
import traitlets

from mlsys_lab.comm.simulate import Cluster, Timeline
from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.flops.communication import bubble
from mlsys_lab.parallel.pipeline import gpipe, interleaved, one_forward_one_backward, simulate, zero_bubble
from mlsys_lab.parallel.pipeline.schedules import Schedule, max_in_flight
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table

SCHEDULES = ("GPipe", "1F1B", "interleaved", "zero bubble")
CHUNKS = 2
"""Chunks of layers that each rank has in the interleaved schedule."""
MOST_RANKS, MOST_MICRO_BATCHES = 8, 32
_TABLE_MICRO_BATCHES = (4, 8, 16, 32)


def pipeline_data(schedule: str = "1F1B", *, ranks: int = 4, micro_batches: int = 8) -> dict[str, Any]:
    """The data of the figure, opened on one of `SCHEDULES`.

    Interleaved, micro-batches are the next multiple of the ranks. Raises `InputError` for what cannot be drawn.
    """
    if schedule not in SCHEDULES:
        near = did_you_mean(schedule, SCHEDULES)
        raise InputError("no such schedule", got=schedule, expected=", ".join(SCHEDULES), help=near)
    if ranks not in range(1, MOST_RANKS + 1) or micro_batches not in range(1, MOST_MICRO_BATCHES + 1):
        raise InputError(
            "the figure does not draw this",
            got=f"{ranks} ranks, {micro_batches} micro-batches",
            expected=f"1 to {MOST_RANKS}, 1 to {MOST_MICRO_BATCHES}",
        )
    return {"schedule": schedule, "ranks": ranks, "micro_batches": micro_batches}


def make_schedule(name: str, ranks: int, micro_batches: int) -> Schedule:
    """The figure's schedule of this name, with at least so many micro-batches."""
    if name == "interleaved":
        return interleaved(ranks, -(-micro_batches // ranks) * ranks, CHUNKS)
    return {"GPipe": gpipe, "1F1B": one_forward_one_backward, "zero bubble": zero_bubble}[name](ranks, micro_batches)


def play(schedule: Schedule) -> Timeline:
    """The schedule on simulated ranks: forward through all of a rank's layers takes 1, backward 2, messages nothing.

    Where a schedule has gradients of weights apart, they take half of the backward pass.
    """
    cluster = Cluster(len(schedule))
    simulate(cluster, schedule, forward_s=1.0, backward_s=2.0)
    return cluster.timeline()


def pipeline_table(data: Mapping[str, Any]) -> str:
    """Idle time by schedule and number of micro-batches, with what rank 0 keeps: a table for where no script runs."""
    rows = []
    for count in _TABLE_MICRO_BATCHES:
        cells = []
        for name in SCHEDULES:
            schedule = make_schedule(name, data["ranks"], count)
            end_s, work_s = play(schedule).end_s, 3.0 * max(a.micro_batch + 1 for a in schedule[0])
            cells.append(f"{100 * (1 - work_s / end_s):.0f} %, keeps {max_in_flight(schedule[0])}")
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
        """Figure opened on a schedule; `options` are keyword arguments of `pipeline_data`."""
        return cls(**pipeline_data(schedule, **options))
