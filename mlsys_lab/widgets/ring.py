"""Interactive figure of a ring all-reduce, step by step: which ranks' values are summed in each chunk of each rank.

`comm.collectives.ring_states` records the steps from a run of `all_reduce`; the figure only draws them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import anywidget
import traitlets

from mlsys_lab.comm.collectives.ring_states import ring_states
from mlsys_lab.errors import InputError
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table

RANKS = range(2, 7)
ELEMENTS = 500  # of int64: arrays of 4,000 bytes


def ring_data(ranks: int = 4, step: int = 0) -> dict[str, Any]:
    """Data of the figure for rings of 2 to 6 ranks, which initially shows one of them at a step; step 0 is the start.

    For each step: by rank and chunk, the ranks whose values it contains, and the messages received as (source,
    destination, chunk, bytes). InputError for an unsupported number of ranks or step.
    """
    if ranks not in RANKS:
        raise InputError("the figure has no ring of this size", got=ranks, expected=f"{RANKS[0]} to {RANKS[-1]} ranks")
    if not 0 <= step <= 2 * (ranks - 1):
        raise InputError(f"a ring of {ranks} has no such step", got=step, expected=f"0 to {2 * (ranks - 1)}")
    return {"rings": [_ring(count) for count in RANKS], "ranks": ranks, "step": step}


def _ring(ranks: int) -> dict[str, Any]:
    steps = [
        {
            "adds": state.adds,
            "held": [[list(content) for content in row] for row in state.held],
            "arrivals": [[one.source, one.destination, one.chunk, one.size_bytes] for one in state.arrivals],
        }
        for state in ring_states(ranks, ELEMENTS)
    ]
    return {"ranks": ranks, "steps": steps}


def ring_table(data: Mapping[str, Any]) -> str:
    """HTML table of the number of ranks summed in each chunk after each step."""
    ranks = data["ranks"]
    (ring,) = (one for one in data["rings"] if one["ranks"] == ranks)
    rows = (
        (number, *(", ".join(str(len(content)) for content in row) for row in step["held"]))
        for number, step in enumerate(ring["steps"])
    )
    return table(("ranks summed in each chunk, after step", *(f"rank {rank}" for rank in range(ranks))), rows)


class Ring(anywidget.AnyWidget):
    """Notebook figure of a ring all-reduce, step by step: `Ring.of(ranks=5)`. `step` is the step shown."""

    _esm = esm("ring")
    rings: traitlets.List[Any] = traitlets.List(traitlets.Dict()).tag(sync=True)
    ranks = traitlets.Int(4).tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)

    @classmethod
    def of(cls, ranks: int = 4, step: int = 0) -> Self:
        """Figure that initially shows a ring at a step; errors as in `ring_data`."""
        return cls(**ring_data(ranks, step))
