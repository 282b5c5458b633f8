"""Interactive sparsity: how much faster a product can be at most when weights are left out, by layout and density.

The figure reimplements `mlsys_lab.efficiency.pruning.costs` in JavaScript; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Self

import anywidget
import traitlets

from mlsys_lab import hardware
from mlsys_lab.efficiency.pruning.costs import LAYOUTS, break_even_density, speedup
from mlsys_lab.errors import InputError
from mlsys_lab.flops.memory import element_bytes
from mlsys_lab.hardware import DEVICES
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table

SHAPE = (4096, 4096)
"""Outputs and inputs of the layer."""
PRECISIONS = ("bf16", "fp16", "fp8")
TOKENS = range(14)
"""Tokens that can be chosen, as powers of two."""
_TABLE_TOKENS = (1, 64, 4096)


def sparsity_data(device: str = "H100", *, tokens: int = 1, precision: str = "bf16") -> dict[str, Any]:
    """Data of the figure, which initially shows a product with `tokens` rows on a GPU of the course's table.

    InputError for an unknown device, one without fp32 units or this precision, and tokens that are no power of two up
    to 8,192.
    """
    chosen = hardware.device(device)
    chosen.peak("fp32"), chosen.peak(precision)
    if tokens not in [2**power for power in TOKENS]:
        raise InputError("tokens of a product", got=tokens, expected="a power of two up to 8,192")
    return {
        "devices": [
            {
                "name": one.name,
                "bandwidth": one.memory_bandwidth_bytes_per_s,
                "peaks": {name: one.peaks[name] for name in ("fp32", *PRECISIONS) if name in one.peaks},
            }
            for one in DEVICES
            if "fp32" in one.peaks
        ],
        "layouts": [{"name": name} | asdict(layout) for name, layout in LAYOUTS.items()],
        "shape": list(SHAPE),
        "element_bytes": {precision: element_bytes(precision) for precision in PRECISIONS},
        "device": chosen.name,
        "precision": precision,
        "tokens": tokens,
    }


def sparsity_table(data: Mapping[str, Any]) -> str:
    """Density from which each layout pays, or the gain of one with a fixed density, as an HTML table."""
    chosen, precision, rows = hardware.device(data["device"]), data["precision"], []
    for name, layout in LAYOUTS.items():
        if name == "dense":
            continue
        cells = []
        for tokens in _TABLE_TOKENS:
            if layout.density is None:
                cells.append(f"below {100 * break_even_density(chosen, precision, name, SHAPE, tokens):.3g} %")
            else:
                cells.append(f"{speedup(chosen, precision, name, SHAPE, layout.density, tokens):.2f} times faster")
        rows.append((name, *cells))
    return table(("layout", *(f"{tokens:,} tokens" for tokens in _TABLE_TOKENS)), rows)


class Sparsity(anywidget.AnyWidget):
    """Notebook figure of sparse products: `Sparsity.of("H100", tokens=64)`.

    devices, layouts, shape and element_bytes: from `sparsity_data`. tokens: rows that are multiplied with the weight.
    """

    _esm = esm("sparsity")
    devices: traitlets.List[Any] = traitlets.List(traitlets.Dict(), minlen=1).tag(sync=True)
    layouts: traitlets.List[Any] = traitlets.List(traitlets.Dict(), minlen=1).tag(sync=True)
    shape: traitlets.List[int] = traitlets.List(traitlets.Int()).tag(sync=True)
    element_bytes: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    device = traitlets.Unicode("H100").tag(sync=True)
    precision = traitlets.Unicode("bf16").tag(sync=True)
    tokens = traitlets.Int(1).tag(sync=True)

    @classmethod
    def of(cls, device: str = "H100", **options: Any) -> Self:
        """Figure that initially shows a GPU; `options` are keyword arguments of `sparsity_data`."""
        return cls(**sparsity_data(device, **options))
