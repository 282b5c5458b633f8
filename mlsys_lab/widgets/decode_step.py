"""Interactive figure of a decode step on a roofline: batch size, context, KV heads, bytes per element.

The figure reimplements `flops.bounds.serving_work` in JavaScript; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Self

import anywidget
import traitlets

from mlsys_lab.configs.presets import preset
from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.flops.bounds import machine
from mlsys_lab.flops.estimate import Estimate, estimate_serving
from mlsys_lab.flops.layout import Layout
from mlsys_lab.hardware import device
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table

MODELS = ("llama2-7b", "llama2-13b", "llama3-8b", "qwen2.5-7b", "qwen2.5-32b", "qwen3-30b-a3b", "llama3-70b")
"""Presets with multi-head or grouped-query attention, whose weights fit on one GPU."""
GPUS = ("H100", "H200", "B200", "A100 80GB", "L4", "RTX 4090")
MAX_SEQUENCES, CONTEXTS = 1024, (2**7, 2**17)
_TABLE_BATCHES = (1, 8, 64, 256)


def decode_step_data(
    model: str = "llama3-8b",
    *,
    gpu: str = "H100",
    kv_heads: int | None = None,
    batch: int = 1,
    context: int = 2048,
    weight_bytes: float = 2,
    cache_bytes: float = 2,
) -> dict[str, Any]:
    """Data of the figure, which initially shows one of `MODELS` and `GPUS`; `kv_heads` are the model's own by default.

    A step generates one token for each of `batch` sequences of `context` tokens. InputError for an unknown name, KV
    heads that do not divide the query heads, and sizes out of range.
    """
    for name, known in ((model, MODELS), (gpu, GPUS)):
        if name not in known:
            raise InputError("not in the figure", got=name, expected=", ".join(known), help=did_you_mean(name, known))
    if not 1 <= batch <= MAX_SEQUENCES or not CONTEXTS[0] <= context <= CONTEXTS[1]:
        got = f"{batch} sequences of {context} tokens"
        raise InputError(
            "not supported by the figure", got=got, expected=f"1 to {MAX_SEQUENCES}, {CONTEXTS[0]} to {CONTEXTS[1]}"
        )
    config = preset(model)
    if kv_heads is not None:
        config = replace(config, n_kv_heads=kv_heads)
    return {
        "presets": [asdict(preset(name)) for name in MODELS],
        "machines": [{"name": name, **asdict(machine(device(name), "bf16"))} for name in GPUS],
        "degrees": asdict(Layout()),
        "preset": model,
        "gpu": gpu,
        "kv_heads": config.n_kv_heads,
        "batch": batch,
        "context": context,
        "weight_bytes": weight_bytes,
        "cache_bytes": cache_bytes,
    }


def decode_step(data: Mapping[str, Any], batch: int | None = None) -> Estimate:
    """Estimate of the figure's data, computed by the package; `batch` overrides the data's."""
    config = replace(preset(data["preset"]), n_kv_heads=data["kv_heads"])
    return estimate_serving(
        config,
        machine(device(data["gpu"]), "bf16"),
        Layout(),
        batch=data["batch"] if batch is None else batch,
        tokens=data["context"],
        weight_bytes=data["weight_bytes"],
        cache_bytes=data["cache_bytes"],
    )


def decode_step_table(data: Mapping[str, Any]) -> str:
    """HTML table of the lower bound of a step's time for a few batch sizes."""
    rows = []
    for batch in _TABLE_BATCHES:
        estimate = decode_step(data, batch)
        bound, rate = estimate.bounds["decode"], estimate.tokens_per_s["decode"]
        held = estimate.memory.weights + estimate.memory.cache
        rows.append((batch, f"{1e3 * bound.time_s:.3g}", f"{rate:,.0f}", bound.binds, f"{held / 1e9:.3g}"))
    return table(("sequences", "step at least, ms", "total tokens/s", "bound", "weights and KV cache, GB"), rows)


class DecodeStep(anywidget.AnyWidget):
    """Notebook figure of a decode step on a roofline: `DecodeStep.of("llama2-7b", batch=16, kv_heads=4)`."""

    _esm = esm("decode_step")
    presets: traitlets.List[Any] = traitlets.List(traitlets.Dict()).tag(sync=True)
    machines: traitlets.List[Any] = traitlets.List(traitlets.Dict()).tag(sync=True)
    degrees: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    preset = traitlets.Unicode().tag(sync=True)
    gpu = traitlets.Unicode().tag(sync=True)
    kv_heads = traitlets.Int(8).tag(sync=True)
    batch = traitlets.Int(1).tag(sync=True)
    context = traitlets.Int(2048).tag(sync=True)
    weight_bytes = traitlets.Float(2).tag(sync=True)
    cache_bytes = traitlets.Float(2).tag(sync=True)

    @classmethod
    def of(cls, model: str = "llama3-8b", **options: Any) -> Self:
        """Figure that initially shows a model; `options` are keyword arguments of `decode_step_data`."""
        return cls(**decode_step_data(model, **options))
