"""Latency against load as a Plotly figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlsys_lab.inference.simulator.metrics import Objective, Report

SHOWN = (("ttft_s", "first token"), ("tpot_s", "time per token"))
DASHES = ("solid", "dash", "dot", "dashdot")


def plot_latencies(curves: Mapping[str, Mapping[float, Report]], objective: Objective) -> Any:
    """Figure (plotly.graph_objects.Figure) of p95 in ms against requests a second, one line a time and arrangement.

    `curves` are reports by rate, by the name of what served; dotted lines are the objective's.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    for (arrangement, reports), dash in zip(curves.items(), DASHES, strict=False):
        for (field, name), colour in zip(SHOWN, ("#0072b2", "#d55e00"), strict=True):
            times = {rate: getattr(one, field).get(95) for rate, one in reports.items()}
            figure.add_scatter(
                x=list(times),
                y=[None if time_s is None else 1e3 * time_s for time_s in times.values()],
                name=f"{name}, {arrangement}",
                line={"dash": dash, "color": colour},
                hovertemplate="%{x} requests/s: %{y:.3g} ms<extra></extra>",
            )
    for promised_s in (objective.ttft_s, objective.tpot_s):
        figure.add_hline(y=1e3 * promised_s, line_dash="dot", line_width=1)
    figure.update_xaxes(title="requests a second")
    figure.update_yaxes(title="p95, ms", type="log")
    return figure
