"""Data of the estimator, `mlsys-lab estimate` as an interactive figure.

The figure reimplements `mlsys_lab.flops.estimate` in JavaScript; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Self

import anywidget
import traitlets

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.configs.presets import PRESETS, preset
from mlsys_lab.errors import InputError
from mlsys_lab.flops.bounds import NETWORK_BYTES_PER_S, machine
from mlsys_lab.flops.defaults import DEVICE, RECIPE, SEQUENCE_TOKENS
from mlsys_lab.flops.layout import Layout
from mlsys_lab.flops.memory import BYTES, RECIPES, Recipe, element_bytes, recipe, states
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.hardware import DEVICES, Device, device
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table


def estimator_data(
    model: str | TransformerConfig = "llama3-8b",
    *,
    mode: str = "training",
    device_name: str = DEVICE,
    layout: Layout | None = None,
    batch: int = 64,
    tokens: int = SEQUENCE_TOKENS,
    recipe_name: str = RECIPE,
    weight_format: str = "bf16",
    cache_format: str = "bf16",
    price: float | None = 2.5,
    total_tokens: float | None = 1e12,
    mfu: float | None = None,
    address: bool = False,
) -> dict[str, Any]:
    """Data of the estimator with these initial settings.

    `price` is dollars per device and hour, `total_tokens` the tokens of a training run, of which the figure shows time
    and cost, by the bound and at an `mfu`. With `address` the page's address stores the settings.

    `recipe_name` is for mode "training", `weight_format` and `cache_format` for "serving"; without a layout there are
    eight data-parallel ranks with ZeRO stage 1. InputError for an unknown name.
    """
    if mode not in ("training", "serving"):
        raise InputError("unknown mode", got=repr(mode), expected="training or serving")
    for name in (weight_format, cache_format):
        element_bytes(name)
    config = preset(model) if isinstance(model, str) else model
    return {
        "presets": [asdict(one) for one in PRESETS.values()],
        "devices": [device_machines(one) for one in DEVICES],
        "recipes": [recipe_bytes(one) for one in RECIPES.values()],
        "formats": dict(BYTES),
        "mode": mode,
        "preset": config.name if isinstance(model, str) else "",
        "own": asdict(config),
        "device": device(device_name).name,
        "degrees": asdict(layout or Layout(data=8, zero_stage=1)),
        "batch": batch,
        "tokens": tokens,
        "recipe": recipe(recipe_name).name,
        "weight_format": weight_format,
        "cache_format": cache_format,
        "price": price,
        "total_tokens": total_tokens,
        "mfu": mfu,
        "address": address,
        "node": None,
        "network": NETWORK_BYTES_PER_S / 1e9,
        "all_pairs": False,
    }


def device_machines(one: Device) -> dict[str, Any]:
    """A device's limits for the estimator; its peaks in FLOP/s by format, or the error's text if it has none.

    The reader chooses the network, which also replaces missing links.
    """
    peaks: dict[str, float | str] = {}
    limits: dict[str, float | None] = {}
    for precision in BYTES:
        try:
            on = asdict(machine(one, precision))
        except InputError as error:
            peaks[precision] = str(error)
        else:
            peaks[precision] = on.pop("peak_flops_per_s")
            del on["network_bytes_per_s"]
            limits = on if one.links else on | {"link_bytes_per_s": None}
    return {"name": one.name, "machine": limits, "peaks": peaks}


def recipe_bytes(one: Recipe) -> dict[str, Any]:
    """A precision recipe for the estimator: bytes of an element and of each state a parameter, with a label."""
    kept = {"weights": one.weights, "gradients": one.gradients, "master": one.master, "moments": one.moments}
    words = " + ".join(f"{size:g}" for size in kept.values() if size)
    return asdict(one) | {"compute_bytes": BYTES[one.compute], "words": words}


def estimator_table(data: Mapping[str, Any]) -> str:
    """HTML table of each preset's parameters and training states."""
    chosen = recipe(data["recipe"])
    rows = []
    for name, config in PRESETS.items():
        count = parameters(config)
        state_bytes = states(count.total, chosen).total
        rows.append((name, f"{count.total:,}", f"{count.active:,}", f"{state_bytes / 1e9:,.3g}"))
    return table(("model", "parameters", "used by a token", f"training states ({chosen.name}), GB"), rows)


class Estimator(anywidget.AnyWidget):
    """Notebook figure of the estimator: `Estimator.of("llama3-70b", device_name="H200")`.

    preset: a name of `presets`; any other takes the sizes in `own`, a `TransformerConfig` as a dict. degrees: a
    `Layout` as a dict. price: of one device, an hour, or None. total_tokens: of a whole training run, or None. mfu: a
    fraction that such a run reaches, or None. node: devices that fast links connect, None for the device's own.
    network: GB/s between nodes, for each device and direction.
    """

    _esm = esm("estimator")
    presets: traitlets.List[Any] = traitlets.List(traitlets.Dict()).tag(sync=True)
    devices: traitlets.List[Any] = traitlets.List(traitlets.Dict()).tag(sync=True)
    recipes: traitlets.List[Any] = traitlets.List(traitlets.Dict()).tag(sync=True)
    formats: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    mode = traitlets.Enum(["training", "serving"], default_value="training").tag(sync=True)
    preset = traitlets.Unicode().tag(sync=True)
    own: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    device = traitlets.Unicode().tag(sync=True)
    degrees: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    batch = traitlets.Int(allow_none=True).tag(sync=True)
    tokens = traitlets.Int(allow_none=True).tag(sync=True)
    recipe = traitlets.Unicode().tag(sync=True)
    weight_format = traitlets.Unicode().tag(sync=True)
    cache_format = traitlets.Unicode().tag(sync=True)
    price = traitlets.Float(None, allow_none=True).tag(sync=True)
    total_tokens = traitlets.Float(None, allow_none=True).tag(sync=True)
    mfu = traitlets.Float(None, allow_none=True).tag(sync=True)
    node = traitlets.Int(None, allow_none=True).tag(sync=True)
    network = traitlets.Float(NETWORK_BYTES_PER_S / 1e9).tag(sync=True)
    all_pairs = traitlets.Bool(False).tag(sync=True)

    @classmethod
    def of(cls, model: str | TransformerConfig, **options: Any) -> Self:
        """Estimator that initially shows a preset or a config; `options` are keyword arguments of `estimator_data`."""
        data = estimator_data(model, **options)
        del data["address"]  # a notebook's address is not the figure's to change
        return cls(**data)
