"""Data of the figure of caches that fill token by token: what lies in each slot, recorded from caches of the package.

The figure shows what `inference.cache.filling` read from three caches and knows nothing of how they work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import anywidget
import torch
import traitlets

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.inference.cache import Contiguous, Paged, SlidingWindow
from mlsys_lab.inference.cache.filling import Arrival, fillings
from mlsys_lab.models import Transformer
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table

SLOTS, ROW, BLOCK_SIZE, WINDOW, CHUNK = 48, 16, 4, 5, 4
_SYSTEM = (1, 2, 3, 4, 5, 6, 7, 8)  # what two prompts begin with
TEXTS = (
    Arrival("A", (*_SYSTEM, 9), num_output_tokens=5, step=1),
    Arrival("B", (*_SYSTEM, 10, 11), num_output_tokens=4, step=4),
    Arrival("C", (12, 13, 14), num_output_tokens=9, step=6),
    Arrival("D", (15, 16, 17, 18, 19, 20), num_output_tokens=3, step=10),
)
LAYOUTS = ("contiguous", "paged", "sliding window")


def cache_fill_data(layout: str = "contiguous", step: int = 0) -> dict[str, Any]:
    """The data of the figure, opened on one of `LAYOUTS` and on a step of it, 0 being the empty cache.

    Of each step: by slot its token's position (-1: none), the texts that hold it, and whether a next query sees it; how
    many slots are held and wasted; new tokens of each text and those that it found there. Raises `InputError` for
    another layout or step.
    """
    if layout not in LAYOUTS:
        raise InputError("no such layout", got=layout, expected=", ".join(LAYOUTS), help=did_you_mean(layout, LAYOUTS))
    layouts = [_layout(name) for name in LAYOUTS]
    last = len(layouts[0]["steps"]) - 1
    if not 0 <= step <= last:
        raise InputError("the figure has no such step", got=step, expected=f"0 to {last}")
    return {
        "layouts": layouts,
        "prompts": {one.name: len(one.prompt) for one in TEXTS},
        "arrangement": layout,
        "step": step,
    }


def _layout(name: str) -> dict[str, Any]:
    """A layout's states, with the slots that stand together: a row, a block or a ring."""
    config = TransformerConfig("small", n_layers=1, d_model=2, n_heads=1, d_ff=2, vocab_size=32, context=32)
    with torch.random.fork_rng(devices=[]):  # a model's weights are drawn, and nobody's next draws shall change by it
        model = Transformer(config, window=WINDOW if name == "sliding window" else None)
    ring = WINDOW - 1 + CHUNK
    cache: Contiguous | Paged
    if name == "paged":
        cache, together = Paged(model, num_blocks=SLOTS // BLOCK_SIZE, block_size=BLOCK_SIZE), BLOCK_SIZE
    elif name == "contiguous":
        cache, together = Contiguous(model, sequences=SLOTS // ROW, capacity=ROW), ROW
    else:
        cache, together = SlidingWindow(model, sequences=SLOTS // ring, chunk=CHUNK), ring
    steps = [
        {
            "slots": [
                [-1 if slot.position is None else slot.position, "".join(slot.holders), int(slot.is_visible)]
                for slot in state.slots
            ],
            "held": state.held,
            "wasted": state.wasted,
            "new": {text: list(span) for text, span in state.new.items()},
            "shared": state.cached,
        }
        for state in fillings(cache, SLOTS, TEXTS, chunk=CHUNK)
    ]
    return {"name": name, "together": together, "steps": steps}


def cache_fill_table(data: Mapping[str, Any]) -> str:
    """How many slots each layout holds, and wastes, after each step: an HTML table for where no script runs."""
    rows = (
        (number, *(f"{step['held']}, {step['wasted']}" for step in states))
        for number, states in enumerate(zip(*(one["steps"] for one in data["layouts"]), strict=True))
    )
    return table(("slots held, wasted, after step", *(one["name"] for one in data["layouts"])), rows)


class CacheFill(anywidget.AnyWidget):
    """Notebook figure of caches that fill: `CacheFill.of("paged")`. `step` follows it."""

    _esm = esm("cache_fill")
    layouts: traitlets.List[Any] = traitlets.List(traitlets.Dict()).tag(sync=True)
    prompts: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    arrangement = traitlets.Unicode("contiguous").tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)

    @classmethod
    def of(cls, layout: str = "contiguous", step: int = 0) -> Self:
        """Figure opened on a layout and one of its steps; errors as in `cache_fill_data`."""
        return cls(**cache_fill_data(layout, step))
