"""Data of the figure of a decoding step on a roofline: sequences, context, key/value heads, bytes of an element.

The figure repeats `flops.bounds.serving_work` and what is beneath it in JavaScript, and a test holds the two equal.
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
"""Presets that the figure has: a key and a value for each of some heads, and weights that one GPU can hold."""
GPUS = ("H100", "H200", "B200", "A100 80GB", "L4", "RTX 4090")
MOST_SEQUENCES, CONTEXTS = 1024, (2**7, 2**17)
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
    """The data of the figure, opened on one of `MODELS` and `GPUS`; `kv_heads` are the model's own by default.

    `batch` sequences of `context` tokens each get one more. Raises `InputError` for a name, a number of heads that does
    not divide the query heads, or sizes that the figure does not have.
    """
    for name, known in ((model, MODELS), (gpu, GPUS)):
        if name not in known:
            raise InputError("not in the figure", got=name, expected=", ".join(known), help=did_you_mean(name, known))
    if not 1 <= batch <= MOST_SEQUENCES or not CONTEXTS[0] <= context <= CONTEXTS[1]:
        got = f"{batch} sequences of {context} tokens"
        raise InputError(
            "the figure does not draw this", got=got, expected=f"1 to {MOST_SEQUENCES}, {CONTEXTS[0]} to {CONTEXTS[1]}"
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
    """What the figure shows of its data, worked out by the package; `batch` takes the place of its own."""
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
    """A few numbers of sequences, each with the least time of a step, as an HTML table for where no script runs."""
    rows = []
    for batch in _TABLE_BATCHES:
        estimate = decode_step(data, batch)
        bound, rate = estimate.bounds["decode"], estimate.tokens_per_s["decode"]
        held = estimate.memory.weights + estimate.memory.cache
        rows.append((batch, f"{1e3 * bound.time_s:.3g}", f"{rate:,.0f}", bound.binds, f"{held / 1e9:.3g}"))
    return table(("sequences", "least time of a step, ms", "tokens/s together", "bound", "weights and cache, GB"), rows)


class DecodeStep(anywidget.AnyWidget):
    """Notebook figure of a decoding step on a roofline: `DecodeStep.of("llama2-7b", batch=16, kv_heads=4)`."""

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
        """Figure opened on a model; `options` are keyword arguments of `decode_step_data`."""
        return cls(**decode_step_data(model, **options))
