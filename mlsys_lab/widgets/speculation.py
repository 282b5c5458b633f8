"""Interactive figure of the speed-up of speculative decoding by acceptance rate.

The figure reimplements `inference.speculative.gain` in JavaScript; a test compares the two.
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

MAX_SPECULATIVE_TOKENS, MAX_DRAFT_COST = 16, 0.5
_TABLE_ACCEPTANCE_RATES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)


def speculation_data(
    acceptance_rate: float = 0.7, *, num_speculative_tokens: int = 4, draft_cost: float = 0.05
) -> dict[str, Any]:
    """Data of the figure, which initially shows these values; InputError for values out of range.

    `draft_cost` is the time to draft one token over the time of one step of the target model.
    """
    values = {
        "acceptance_rate": acceptance_rate,
        "num_speculative_tokens": num_speculative_tokens,
        "draft_cost": draft_cost,
    }
    if (
        not 0 <= acceptance_rate <= 1
        or num_speculative_tokens not in range(1, MAX_SPECULATIVE_TOKENS + 1)
        or not 0 <= draft_cost <= MAX_DRAFT_COST
    ):
        raise InputError(
            "not supported by the figure",
            got=f"acceptance rate {acceptance_rate}, {num_speculative_tokens} draft tokens of cost {draft_cost}",
            expected=f"0 to 1, 1 to {MAX_SPECULATIVE_TOKENS}, 0 to {MAX_DRAFT_COST}",
        )
    return values


def speculation_table(data: Mapping[str, Any]) -> str:
    """HTML table of the speed-up at a few acceptance rates, with the figure's and the best number of draft tokens."""
    k, cost = data["num_speculative_tokens"], data["draft_cost"]
    rows = []
    for rate in _TABLE_ACCEPTANCE_RATES:
        best = best_num_speculative_tokens(rate, cost, MAX_SPECULATIVE_TOKENS)
        rows.append(
            (
                rate,
                f"{expected_tokens(rate, k):.2f}",
                f"{speedup(rate, k, cost):.2f}",
                f"{flops_ratio(rate, k, cost):.2f}",
                f"{best}: {speedup(rate, best, cost):.2f}",
            )
        )
    return table(("acceptance rate", "tokens per step", "speed-up", "FLOPs ratio", "best draft tokens"), rows)


class SpeculationGain(anywidget.AnyWidget):
    """Notebook figure of speculative decoding: `SpeculationGain.of(0.8, num_speculative_tokens=5, draft_cost=0.1)`."""

    _esm = esm("speculation")
    acceptance_rate = traitlets.Float(0.7).tag(sync=True)
    num_speculative_tokens = traitlets.Int(4).tag(sync=True)
    draft_cost = traitlets.Float(0.05).tag(sync=True)

    @classmethod
    def of(cls, acceptance_rate: float = 0.7, **options: Any) -> Self:
        """Figure that initially shows an acceptance rate; `options` are keyword arguments of `speculation_data`."""
        return cls(**speculation_data(acceptance_rate, **options))
