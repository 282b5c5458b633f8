"""Interactive figure of the capstone's prediction sheet: a training step's counts and seconds by size and rates.

The figure reimplements lab 16's functions in JavaScript for a model of the capstone's shape; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Self

import anywidget
import traitlets

from mlsys_lab.capstone.sheet import COSTS
from mlsys_lab.configs import TrainConfig, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table

HEAD_DIM = 32
RANGES = {"n_layers": range(1, 13), "d_model": range(64, 513, 32), "seq_len": range(32, 513, 32), "ranks": range(1, 17)}
"""Values of the sliders of sizes."""
UNITS = {"FLOP": 1e9, "bytes": 1e6, "elements": 1e6, "s": 1e-3}
PREFIXED = {"FLOP": "GFLOP", "bytes": "MB", "elements": "million", "s": "ms"}


def prediction_sheet_data(
    config: TransformerConfig,
    train: TrainConfig,
    ranks: int,
    *,
    peak_flops_per_s: float,
    peak_fraction: float,
    unit_ns: float,
    latency_s: float,
    bytes_per_s: float,
) -> dict[str, Any]:
    """Data of the figure, which initially shows a configuration of the capstone's shape and these rates.

    `peak_fraction` is the rate of the products over the peak, `unit_ns` lab 05's unit of elementwise work. InputError
    for sizes that the sliders do not have, and heads other than of 32 numbers.
    """
    sizes = {"n_layers": config.n_layers, "d_model": config.d_model, "seq_len": train.seq_len, "ranks": ranks}
    for name, size in sizes.items():
        if size not in RANGES[name]:
            values = RANGES[name]
            expected = f"{values.start} to {values[-1]} in steps of {values.step}"
            raise InputError(f"not in the figure: {name}", got=size, expected=expected)
    if config.head_dim != HEAD_DIM or 4 * config.d_ff != 11 * config.d_model or config.n_kv_heads != config.n_heads:
        raise InputError("not of the capstone's shape", got=config, expected="heads of 32, d_ff = 2.75 d_model")
    return {
        **sizes,
        "config": asdict(config),
        "batch": train.batch_size,
        "peak_fraction": peak_fraction,
        "unit_ns": unit_ns,
        "latency_s": latency_s,
        "bytes_per_s": bytes_per_s,
        "peak_flops_per_s": peak_flops_per_s,
    }


def prediction_sheet_table(numbers: Mapping[str, float]) -> str:
    """HTML table of a sheet's numbers."""
    rows = (
        (COSTS[key].name, f"{number / UNITS[COSTS[key].unit]:,.3g} {PREFIXED[COSTS[key].unit]}")
        for key, number in numbers.items()
        if COSTS[key].unit in UNITS
    )
    return table(("cost", "predicted"), rows)


class PredictionSheet(anywidget.AnyWidget):
    """Notebook figure of a prediction sheet: `PredictionSheet.of(config, train, 4, peak_flops_per_s=6e10, …)`."""

    _esm = esm("prediction_sheet")
    config: traitlets.Dict[Any, Any] = traitlets.Dict().tag(sync=True)
    n_layers = traitlets.Int(4).tag(sync=True)
    d_model = traitlets.Int(128).tag(sync=True)
    seq_len = traitlets.Int(128).tag(sync=True)
    batch = traitlets.Int(16).tag(sync=True)
    ranks = traitlets.Int(4).tag(sync=True)
    peak_fraction = traitlets.Float(0.5).tag(sync=True)
    unit_ns = traitlets.Float(2.0).tag(sync=True)
    latency_s = traitlets.Float(1e-4).tag(sync=True)
    bytes_per_s = traitlets.Float(1e9).tag(sync=True)
    peak_flops_per_s = traitlets.Float(6e10).tag(sync=True)

    @classmethod
    def of(cls, config: TransformerConfig, train: TrainConfig, ranks: int, **rates: float) -> Self:
        """Figure that initially shows a configuration; `rates` are keyword arguments of `prediction_sheet_data`."""
        return cls(**prediction_sheet_data(config, train, ranks, **rates))
