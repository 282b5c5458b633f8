"""Timeline of a simulated run: start and end of each task, busy and exposed time, traces and figures."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go

STREAMS = ("compute", "collectives", "sends", "receives")


class Timeline:
    """Start and end of every task in seconds; tasks that wait for a failed link never end (`stuck_ranks`)."""

    def __init__(
        self,
        ranks: int,
        start: Sequence[float],
        end: Sequence[float],
        streams: Sequence[tuple[int, ...]],
        names: Sequence[str],
        held: Sequence[tuple[int, int, int | None, float]],
    ) -> None:
        self.ranks = ranks
        self.start, self.end, self.streams, self.names = start, end, streams, names
        self._held = held

    @property
    def end_s(self) -> float:
        """When the last task ends; infinity if one never does."""
        return max(self.end, default=0.0)

    @property
    def stuck_ranks(self) -> list[int]:
        """Ranks with a task that never ends."""
        endless = [streams for streams, end in zip(self.streams, self.end, strict=True) if end == math.inf]
        return sorted({stream // 4 for streams in endless for stream in streams})

    def busy_s(self, rank: int, stream: str = "compute") -> float:
        """Seconds during which a rank's stream runs a task; tasks that never start take none."""
        return sum(end - start for start, end, _ in self._tasks(rank, stream) if start < math.inf)

    def exposed_s(self, rank: int) -> float:
        """Exposed communication: seconds in which a rank communicates or waits, and does not compute.

        Computed as the end of its last task minus its busy time, since compute tasks do not overlap.
        """
        own = [end for stream in STREAMS for _, end, _ in self._tasks(rank, stream)]
        return max(own, default=0.0) - self.busy_s(rank)

    def peak_bytes(self, rank: int) -> float:
        """Peak memory of a rank, as counted by `Cluster.hold`."""
        changes: list[tuple[float, float]] = []
        for holder, start, until, size_bytes in self._held:
            if holder == rank:
                changes.append((self.start[start], size_bytes))
                if until is not None:
                    changes.append((self.end[until], -size_bytes))
        held = peak = 0.0
        for _, change in sorted(changes):  # at equal times memory is freed before it is allocated
            held += change
            peak = max(peak, held)
        return peak

    def chrome_trace(self) -> dict[str, Any]:
        """The run in Chrome's trace format for Perfetto (ui.perfetto.dev): ranks as processes, streams as threads."""
        names = [
            {"ph": "M", "name": kind, "pid": rank, "tid": tid, "args": {"name": label}}
            for rank in range(self.ranks)
            for kind, tid, label in (
                ("process_name", 0, f"rank {rank}"),
                *(("thread_name", tid, stream) for tid, stream in enumerate(STREAMS)),
            )
        ]
        spans = [
            {"ph": "X", "name": name, "pid": s // 4, "tid": s % 4, "ts": start * 1e6, "dur": (end - start) * 1e6}
            for name, streams, start, end in zip(self.names, self.streams, self.start, self.end, strict=True)
            if end < math.inf
            for s in streams
        ]
        return {"displayTimeUnit": "ms", "traceEvents": names + spans}

    def write_chrome_trace(self, path: str | Path) -> None:
        """Write `chrome_trace` to a JSON file."""
        Path(path).write_text(json.dumps(self.chrome_trace()), encoding="utf-8")

    def figure(self, *, title: str = "") -> go.Figure:
        """Gantt chart, one row for each rank and stream with tasks; hovering shows a task's name and times."""
        import plotly.graph_objects as go

        figure = go.Figure()
        for stream in STREAMS:
            rows, starts, lengths, names = [], [], [], []
            for rank in range(self.ranks):
                for start, end, name in self._tasks(rank, stream):
                    if end < math.inf:
                        rows.append(f"rank {rank} {stream}")
                        starts.append(start)
                        lengths.append(end - start)
                        names.append(name)
            if rows:
                figure.add_bar(
                    orientation="h",
                    y=rows,
                    x=lengths,
                    base=starts,
                    customdata=names,
                    name=stream,
                    marker={"line": {"width": 0.5, "color": "white"}},
                    hovertemplate="%{customdata}: %{base:.4g} s, for %{x:.4g} s<extra></extra>",
                )
        figure.update_layout(barmode="overlay", title=title, xaxis_title="time (s)", yaxis={"autorange": "reversed"})
        return figure

    def _tasks(self, rank: int, stream: str) -> list[tuple[float, float, str]]:
        wanted = 4 * rank + STREAMS.index(stream)
        return [
            (start, end, name)
            for start, end, streams, name in zip(self.start, self.end, self.streams, self.names, strict=True)
            if wanted in streams
        ]
