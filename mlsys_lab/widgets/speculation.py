"""Data of the figure of what speculative decoding gains, by how often a draft is accepted.

The figure repeats `inference.speculative.gain` in JavaScript, and a test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import anywidget
import traitlets

from mlsys_lab.errors import InputError
from mlsys_lab.inference.speculative import best_num_speculative_tokens, expected_tokens, flops_ratio, speedup
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table

MOST_DRAFTS, MOST_COST = 16, 0.5
_TABLE_ACCEPTANCES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)


def speculation_data(acceptance: float = 0.7, *, drafts: int = 4, cost: float = 0.05) -> dict[str, Any]:
    """The data of the figure, opened on a probability that a draft is accepted, drafts a step, and a draft's cost.

    `cost` is the time of one draft in steps of the model. Raises `InputError` for values that the figure does not have.
    """
    if not 0 <= acceptance <= 1 or drafts not in range(1, MOST_DRAFTS + 1) or not 0 <= cost <= MOST_COST:
        raise InputError(
            "the figure does not draw this",
            got=f"acceptance {acceptance}, {drafts} drafts of cost {cost}",
            expected=f"0 to 1, 1 to {MOST_DRAFTS}, 0 to {MOST_COST}",
        )
    return {"acceptance": acceptance, "drafts": drafts, "cost": cost}


def speculation_table(data: Mapping[str, Any]) -> str:
    """Gains at a few acceptances, with the figure's drafts and with the best number, as an HTML table."""
    drafts, cost = data["drafts"], data["cost"]
    rows = []
    for acceptance in _TABLE_ACCEPTANCES:
        best = best_num_speculative_tokens(acceptance, cost, MOST_DRAFTS)
        rows.append(
            (
                acceptance,
                f"{expected_tokens(acceptance, drafts):.2f}",
                f"{speedup(acceptance, drafts, cost):.2f}",
                f"{flops_ratio(acceptance, drafts, cost):.2f}",
                f"{best}: {speedup(acceptance, best, cost):.2f}",
            )
        )
    return table(("acceptance", "tokens a step", "times as fast", "times the operations", "best drafts"), rows)


class SpeculationGain(anywidget.AnyWidget):
    """Notebook figure of what speculation gains: `SpeculationGain.of(0.8, drafts=5, cost=0.1)`."""

    _esm = esm("speculation")
    acceptance = traitlets.Float(0.7).tag(sync=True)
    drafts = traitlets.Int(4).tag(sync=True)
    cost = traitlets.Float(0.05).tag(sync=True)

    @classmethod
    def of(cls, acceptance: float = 0.7, **options: Any) -> Self:
        """Figure opened on an acceptance; `options` are keyword arguments of `speculation_data`."""
        return cls(**speculation_data(acceptance, **options))
