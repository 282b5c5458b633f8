"""Interactive figure of KV caches in use: the token in each slot, by step and layout.

`inference.cache.filling` records the steps from the package's caches; the figure only draws them.
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
_SHARED_PREFIX = (1, 2, 3, 4, 5, 6, 7, 8)
ARRIVALS = (
    Arrival("A", (*_SHARED_PREFIX, 9), num_output_tokens=5, step=1),
    Arrival("B", (*_SHARED_PREFIX, 10, 11), num_output_tokens=4, step=4),
    Arrival("C", (12, 13, 14), num_output_tokens=9, step=6),
    Arrival("D", (15, 16, 17, 18, 19, 20), num_output_tokens=3, step=10),
)
LAYOUTS = ("contiguous", "paged", "sliding window")


def cache_fill_data(layout: str = "contiguous", step: int = 0) -> dict[str, Any]:
    """Data of the figure, which initially shows one of `LAYOUTS` at a step; at step 0 the cache is empty.

    For each step: each slot's token position (-1: empty), the sequences that own it, and whether the next query reads
    it; the numbers of allocated and wasted slots; each sequence's new tokens and, on arrival, its cached ones.
    InputError for an unknown layout or step.
    """
    if layout not in LAYOUTS:
        raise InputError("no such layout", got=layout, expected=", ".join(LAYOUTS), help=did_you_mean(layout, LAYOUTS))
    layouts = [_layout(name) for name in LAYOUTS]
    last = len(layouts[0]["steps"]) - 1
    if not 0 <= step <= last:
        raise InputError("no such step", got=step, expected=f"0 to {last}")
    return {
        "layouts": layouts,
        "num_prompt_tokens": {arrival.name: len(arrival.prompt) for arrival in ARRIVALS},
        "layout": layout,
        "step": step,
    }


def _layout(name: str) -> dict[str, Any]:
    """Steps of a layout, and the number of contiguous slots in a row, a block or a ring."""
    config = TransformerConfig("small", n_layers=1, d_model=2, n_heads=1, d_ff=2, vocab_size=32, context=32)
    with torch.random.fork_rng(devices=[]):  # initialising the model leaves the caller's random state unchanged
        model = Transformer(config, window=WINDOW if name == "sliding window" else None)
    ring = WINDOW - 1 + CHUNK
    cache: Contiguous | Paged
    if name == "paged":
        cache, group_size = Paged(model, num_blocks=SLOTS // BLOCK_SIZE, block_size=BLOCK_SIZE), BLOCK_SIZE
    elif name == "contiguous":
        cache, group_size = Contiguous(model, sequences=SLOTS // ROW, capacity=ROW), ROW
    else:
        cache, group_size = SlidingWindow(model, sequences=SLOTS // ring, chunk=CHUNK), ring
    steps = [
        {
            "slots": [
                [-1 if slot.position is None else slot.position, "".join(slot.owners), int(slot.is_visible)]
                for slot in state.slots
            ],
            "num_allocated": state.num_allocated,
            "num_wasted": state.num_wasted,
            "new_tokens": {name: list(span) for name, span in state.new_tokens.items()},
            "num_cached_tokens": state.num_cached_tokens,
        }
        for state in fillings(cache, SLOTS, ARRIVALS, chunk=CHUNK)
    ]
    return {"name": name, "group_size": group_size, "steps": steps}


def cache_fill_table(data: Mapping[str, Any]) -> str:
    """Numbers of allocated and wasted slots by step and layout, as an HTML table for pages without JavaScript."""
    rows = (
        (number, *(f"{step['num_allocated']}, {step['num_wasted']}" for step in states))
        for number, states in enumerate(zip(*(one["steps"] for one in data["layouts"]), strict=True))
    )
    return table(("slots allocated, wasted, after step", *(one["name"] for one in data["layouts"])), rows)


class CacheFill(anywidget.AnyWidget):
    """Notebook figure of KV caches in use: `CacheFill.of("paged")`. `step` is the step shown."""

    _esm = esm("cache_fill")
    layouts: traitlets.List[Any] = traitlets.List(traitlets.Dict()).tag(sync=True)
    num_prompt_tokens: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    layout = traitlets.Unicode("contiguous").tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)

    @classmethod
    def of(cls, layout: str = "contiguous", step: int = 0) -> Self:
        """Figure that initially shows a layout at a step; errors as in `cache_fill_data`."""
        return cls(**cache_fill_data(layout, step))
