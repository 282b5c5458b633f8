"""Figures as anywidgets, for live notebooks."""

from __future__ import annotations

from typing import Any, Self

import anywidget
import traitlets

from mlsys_lab.widgets.graph import graph_data
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.roofline import device_data


class BackwardGraph(anywidget.AnyWidget):
    """Notebook figure of a backward pass over a recorded graph, step by step.

    `BackwardGraph.from_value(f, x=x, y=y)` draws the graph that computed `f`. `step` is the step shown.
    """

    _esm = esm("backward")
    graph: traitlets.List[Any] = traitlets.List().tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)

    @classmethod
    def from_value(cls, root: Any, **names: Any) -> Self:
        """Figure of the graph that computed `root`, with `names` as labels of values; errors as in `graph_data`."""
        return cls(graph=graph_data(root, names))


class Roofline(anywidget.AnyWidget):
    """Notebook figure of a device's roofline and one workload, set by sliders.

    devices: `[{"name": str, "bandwidth": B/s, "peaks": {precision: FLOP/s}}]`, by default the course's table.
    device, precision: those shown; an unknown name shows the first.
    work: "matmul" of (m,k)·(k,n), or "intensity" in FLOP/B.
    points: measurements to show, `[{"label": str, "intensity": FLOP/B, "flops_per_s": FLOP/s}]`.
    """

    _esm = esm("roofline")
    devices: traitlets.List[Any] = traitlets.List(device_data(), minlen=1).tag(sync=True)
    device = traitlets.Unicode("H100").tag(sync=True)
    precision = traitlets.Unicode("bf16").tag(sync=True)
    work = traitlets.Enum(["matmul", "intensity"], default_value="matmul").tag(sync=True)
    m = traitlets.Int(512).tag(sync=True)
    n = traitlets.Int(4096).tag(sync=True)
    k = traitlets.Int(4096).tag(sync=True)
    intensity = traitlets.Float(16.0).tag(sync=True)
    points: traitlets.List[Any] = traitlets.List().tag(sync=True)
