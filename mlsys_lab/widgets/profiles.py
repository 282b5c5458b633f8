"""Plotly figure of loss against parameters: runs as points, and a curve for each budget."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import numpy as np
import plotly.graph_objects as go

from mlsys_lab.scaling.curves import Runs
from mlsys_lab.scaling.isoflop import fit_parabola
from mlsys_lab.scaling.laws import FLOPS_PER_PARAMETER_TOKEN

COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951")
CROSS = {"symbol": "x", "size": 10, "color": "gray"}
"""Marker of a point that was computed rather than run."""
NUM_CURVE_POINTS = 60


def loss_figure(title: str) -> go.Figure:
    """Make an empty figure of loss in nats per token against parameters on a logarithmic axis."""
    figure = go.Figure()
    figure.update_layout(title=title, margin_t=60, legend={"orientation": "h", "y": -0.3, "yanchor": "top"})
    figure.update_layout(xaxis_title="parameters", xaxis_type="log", yaxis_title="loss, nats per token")
    return figure


def plot_profiles(
    flops: np.ndarray,
    n_params: np.ndarray,
    loss: np.ndarray,
    *,
    law: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
    title: str,
) -> go.Figure:
    """Make a figure of runs (R,), with a colour for each budget (runs of equal `flops`); NaN is left out.

    The curve through a budget's runs is law(n_params, tokens) at 6ND = flops; without a law it is the parabola of the
    loss on ln N by least squares.
    """
    figure = loss_figure(title)
    for budget, colour in zip(np.unique(flops), cycle(COLOURS), strict=False):
        rows = (flops == budget) & np.isfinite(loss)
        runs = Runs(n_params[rows], budget / (FLOPS_PER_PARAMETER_TOKEN * n_params[rows]), loss[rows])
        sizes = np.geomspace(runs.n_params.min(), runs.n_params.max(), NUM_CURVE_POINTS)
        curve = fit_parabola(runs)(sizes) if law is None else law(sizes, budget / (FLOPS_PER_PARAMETER_TOKEN * sizes))
        style = {"legendgroup": f"{budget:.1e}", "marker_color": colour}
        figure.add_scatter(x=runs.n_params, y=runs.loss, mode="markers", name=f"{budget:.1e} FLOPs", **style)
        figure.add_scatter(x=sizes, y=curve, mode="lines", showlegend=False, **style)
    return figure
