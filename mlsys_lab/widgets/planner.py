"""Data of the planner, `mlsys-lab plan` as an interactive figure.

The figure reimplements `mlsys_lab.flops.planner` in JavaScript; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Self

import anywidget
import traitlets

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.configs.presets import PRESETS, preset
from mlsys_lab.flops.bounds import NETWORK_BYTES_PER_S, machine
from mlsys_lab.flops.defaults import DEVICE, RECIPE, SEQUENCE_TOKENS
from mlsys_lab.flops.layout import Layout
from mlsys_lab.flops.memory import RECIPES, recipe
from mlsys_lab.flops.planner import Given, plan
from mlsys_lab.hardware import DEVICES, device
from mlsys_lab.widgets.estimator import device_machines, recipe_bytes
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table


def planner_data(
    model: str | TransformerConfig = "llama3-70b",
    *,
    device_name: str = DEVICE,
    devices: int = 512,
    batch: int = 512,
    tokens: int = SEQUENCE_TOKENS,
    recipe_name: str = RECIPE,
    network: float = NETWORK_BYTES_PER_S / 1e9,
    reserve: float = 0.0,
    given: Given | None = None,
) -> dict[str, Any]:
    """Data of the planner with these initial settings; `network` in GB/s for each device and direction.

    `reserve` are GB of each device's memory to leave unplanned, `given` fixed fields of the `Layout`.
    InputError for an unknown name.
    """
    config = preset(model) if isinstance(model, str) else model
    return {
        "presets": [asdict(one) for one in PRESETS.values()],
        "devices": [device_machines(one) for one in DEVICES],
        "recipes": [recipe_bytes(one) for one in RECIPES.values()],
        "preset": config.name if isinstance(model, str) else "",
        "own": asdict(config),
        "device": device(device_name).name,
        "count": devices,
        "batch": batch,
        "tokens": tokens,
        "recipe": recipe(recipe_name).name,
        "node": None,
        "network": network,
        "reserve": reserve,
        "given": dict(given or {}),
        "all_pairs": False,
    }


def planner_table(data: Mapping[str, Any], max_rows: int = 8) -> str:
    """HTML table of the fastest layouts for the settings in `data`."""
    one = recipe(data["recipe"])
    on = machine(device(data["device"]), one.compute, network_bytes_per_s=data["network"] * 1e9)
    plans = plan(
        preset(data["preset"]),
        replace(on, memory_bytes=on.memory_bytes - data["reserve"] * 1e9),
        one,
        devices=data["count"],
        batch=data["batch"],
        tokens=data["tokens"],
        given=data["given"],
    )
    rows = [
        (*_degrees(each.layout), f"{each.time_s:.3g}", f"{each.memory.total / 1e9:.3g}") for each in plans[:max_rows]
    ]
    return table(("data", "tensor", "pipeline", "context", "expert", "seconds", "GB"), rows)


def _degrees(layout: Layout) -> tuple[int, ...]:
    return layout.data, layout.tensor, layout.pipeline, layout.context, layout.expert


class Planner(anywidget.AnyWidget):
    """Notebook figure of the planner: `Planner.of("llama3-70b", devices=512)`.

    preset: a name of `presets`; any other takes the sizes in `own`, a `TransformerConfig` as a dict. count: devices.
    node: devices that fast links connect, None for the device's own. network: GB/s between nodes, for each device and
    direction. reserve: GB of a device to leave unplanned. given: fixed fields of the `Layout`.
    """

    _esm = esm("planner")
    presets: traitlets.List[Any] = traitlets.List(traitlets.Dict()).tag(sync=True)
    devices: traitlets.List[Any] = traitlets.List(traitlets.Dict()).tag(sync=True)
    recipes: traitlets.List[Any] = traitlets.List(traitlets.Dict()).tag(sync=True)
    preset = traitlets.Unicode().tag(sync=True)
    own: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    device = traitlets.Unicode().tag(sync=True)
    count = traitlets.Int(allow_none=True).tag(sync=True)
    batch = traitlets.Int(allow_none=True).tag(sync=True)
    tokens = traitlets.Int(allow_none=True).tag(sync=True)
    recipe = traitlets.Unicode().tag(sync=True)
    node = traitlets.Int(None, allow_none=True).tag(sync=True)
    network = traitlets.Float(NETWORK_BYTES_PER_S / 1e9).tag(sync=True)
    reserve = traitlets.Float(0.0, allow_none=True).tag(sync=True)
    given: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    all_pairs = traitlets.Bool(False).tag(sync=True)

    @classmethod
    def of(cls, model: str | TransformerConfig, **options: Any) -> Self:
        """Planner that initially shows a preset or a config; `options` are keyword arguments of `planner_data`."""
        return cls(**planner_data(model, **options))
