"""Interactive figure of the training states on one device by ZeRO stage, for a model, recipe and number of ranks.

The figure reimplements `flops.memory.states` in JavaScript; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Self

import anywidget
import traitlets

from mlsys_lab.configs.presets import preset
from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.flops.memory import RECIPES, ZERO_STAGES, States, states
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.hardware import device
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table

MODELS = ("gpt2-xl", "llama2-7b", "llama3-8b", "llama2-13b", "qwen2.5-32b", "llama3-70b", "gpt3-175b", "llama3-405b")
GPUS = ("RTX 4090", "A100 80GB", "H100", "H200", "B200")
MAX_RANKS = 2**13
_TABLE_RANKS = (8, 64, 512)


def zero_stages_data(
    model: str = "llama3-8b", *, ranks: int = 8, recipe: str = "mixed16", gpu: str = "H100"
) -> dict[str, Any]:
    """Data of the figure, which initially shows one of `MODELS`, `RECIPES` and `GPUS`; ranks are a power of two.

    InputError for an unknown name or an unsupported number of ranks.
    """
    for name, known in ((model, MODELS), (recipe, tuple(RECIPES)), (gpu, GPUS)):
        if name not in known:
            raise InputError("not in the figure", got=name, expected=", ".join(known), help=did_you_mean(name, known))
    if ranks not in [2**k for k in range(MAX_RANKS.bit_length())]:
        raise InputError("not supported by the figure", got=ranks, expected=f"a power of two up to {MAX_RANKS}")
    return {
        "models": [{"name": name, "parameters": parameters(preset(name)).total} for name in MODELS],
        "recipes": [asdict(one) for one in RECIPES.values()],
        "gpus": [{"name": name, "memory_bytes": device(name).memory_bytes} for name in GPUS],
        "preset": model,
        "recipe": recipe,
        "gpu": gpu,
        "ranks": ranks,
    }


def zero_states(data: Mapping[str, Any], stage: int, ranks: int | None = None) -> States:
    """Training states of the figure's data at a ZeRO stage, computed by the package; `ranks` overrides the data's."""
    count = parameters(preset(data["preset"])).total
    return states(count, RECIPES[data["recipe"]], data=ranks or data["ranks"], zero_stage=stage)


def zero_stages_table(data: Mapping[str, Any]) -> str:
    """HTML table of GB of training states on a device by stage and number of ranks."""
    rows = (
        (ranks, *(f"{zero_states(data, stage, ranks).total / 1e9:,.1f}" for stage in ZERO_STAGES))
        for ranks in _TABLE_RANKS
    )
    head = ("GB per device, on ranks", "stage 0", *(f"stage {stage}" for stage in ZERO_STAGES[1:]))
    return table(head, rows)


class ZeroStages(anywidget.AnyWidget):
    """Notebook figure of training states by ZeRO stage: `ZeroStages.of("llama3-70b", ranks=64)`."""

    _esm = esm("zero_stages")
    models: traitlets.List[Any] = traitlets.List(traitlets.Dict()).tag(sync=True)
    recipes: traitlets.List[Any] = traitlets.List(traitlets.Dict()).tag(sync=True)
    gpus: traitlets.List[Any] = traitlets.List(traitlets.Dict()).tag(sync=True)
    preset = traitlets.Unicode().tag(sync=True)
    recipe = traitlets.Unicode().tag(sync=True)
    gpu = traitlets.Unicode().tag(sync=True)
    ranks = traitlets.Int(8).tag(sync=True)

    @classmethod
    def of(cls, model: str = "llama3-8b", **options: Any) -> Self:
        """Figure that initially shows a model; `options` are keyword arguments of `zero_stages_data`."""
        return cls(**zero_stages_data(model, **options))
