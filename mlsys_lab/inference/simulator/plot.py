"""Latency against load as a Plotly figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlsys_lab.inference.simulator.metrics import Objective, Report

METRICS = (("ttft_s", "TTFT"), ("tpot_s", "TPOT"))
DASHES = ("solid", "dash", "dot", "dashdot")


def plot_latencies(curves: Mapping[str, Mapping[float, Report]], objective: Objective) -> Any:
    """Figure (plotly.graph_objects.Figure) of p95 TTFT and TPOT in ms against requests per second.

    `curves` are reports by rate, by the name of the server; dotted lines are the objective's limits.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    for (server, reports), dash in zip(curves.items(), DASHES, strict=False):
        for (field, name), colour in zip(METRICS, ("#0072b2", "#d55e00"), strict=True):
            times = {rate: getattr(one, field).get(95) for rate, one in reports.items()}
            figure.add_scatter(
                x=list(times),
                y=[None if time_s is None else 1e3 * time_s for time_s in times.values()],
                name=f"{name}, {server}",
                line={"dash": dash, "color": colour},
                hovertemplate="%{x} requests/s: %{y:.3g} ms<extra></extra>",
            )
    for limit_s in (objective.ttft_s, objective.tpot_s):
        figure.add_hline(y=1e3 * limit_s, line_dash="dot", line_width=1)
    figure.update_xaxes(title="requests per second")
    figure.update_yaxes(title="p95, ms", type="log")
    return figure
