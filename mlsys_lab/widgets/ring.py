"""Data of the ring that one steps through: whose numbers each rank has in each chunk, recorded from runs.

The figure shows what `comm.collectives.ring_states` read from a run of `all_reduce` and knows nothing of rings.
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
    """The data of the figure for rings of 2 to 6 ranks, opened on one of them and on a step of it, 0 being the start.

    Of each step: by rank and chunk the list of ranks whose numbers it holds, and what has arrived, as (source,
    destination, chunk, bytes). Raises `InputError` for a number of ranks or a step that there is not.
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
    """How many ranks' numbers are in each chunk after each step, as an HTML table, for where no script runs."""
    ranks = data["ranks"]
    (ring,) = (one for one in data["rings"] if one["ranks"] == ranks)
    rows = (
        (number, *(", ".join(str(len(content)) for content in row) for row in step["held"]))
        for number, step in enumerate(ring["steps"])
    )
    return table(("ranks summed in each chunk, after step", *(f"rank {rank}" for rank in range(ranks))), rows)


class Ring(anywidget.AnyWidget):
    """Notebook figure of a ring all-reduce that one steps through: `Ring.of(ranks=5)`. `step` follows it."""

    _esm = esm("ring")
    rings: traitlets.List[Any] = traitlets.List(traitlets.Dict()).tag(sync=True)
    ranks = traitlets.Int(4).tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)

    @classmethod
    def of(cls, ranks: int = 4, step: int = 0) -> Self:
        """Figure opened on a ring of 2 to 6 ranks and one of its steps; errors as in `ring_data`."""
        return cls(**ring_data(ranks, step))
