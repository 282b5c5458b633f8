"""Data of the figure of training states on one device under ZeRO's stages: model, recipe, ranks, and what fits.

The figure repeats `flops.memory.states` in JavaScript, and a test holds the two equal.
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
MOST_RANKS = 2**13
_TABLE_RANKS = (8, 64, 512)


def zero_stages_data(
    model: str = "llama3-8b", *, ranks: int = 8, recipe: str = "mixed16", gpu: str = "H100"
) -> dict[str, Any]:
    """The data of the figure, opened on one of `MODELS`, `RECIPES` and `GPUS`; ranks are a power of two.

    Raises `InputError` for a name or a number of ranks that the figure does not have.
    """
    for name, known in ((model, MODELS), (recipe, tuple(RECIPES)), (gpu, GPUS)):
        if name not in known:
            raise InputError("not in the figure", got=name, expected=", ".join(known), help=did_you_mean(name, known))
    if ranks not in [2**k for k in range(MOST_RANKS.bit_length())]:
        raise InputError("the figure does not draw this", got=ranks, expected=f"a power of two up to {MOST_RANKS}")
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
    """What the figure shows of its data for a stage, worked out by the package; `ranks` take the place of its own."""
    count = parameters(preset(data["preset"])).total
    return states(count, RECIPES[data["recipe"]], data=ranks or data["ranks"], zero_stage=stage)


def zero_stages_table(data: Mapping[str, Any]) -> str:
    """GB of training states on a device by stage, for a few numbers of ranks: a table for where no script runs."""
    rows = (
        (ranks, *(f"{zero_states(data, stage, ranks).total / 1e9:,.1f}" for stage in ZERO_STAGES))
        for ranks in _TABLE_RANKS
    )
    head = ("GB a device, on ranks", "whole", *(f"stage {stage}" for stage in ZERO_STAGES[1:]))
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
        """Figure opened on a model; `options` are keyword arguments of `zero_stages_data`."""
        return cls(**zero_stages_data(model, **options))
