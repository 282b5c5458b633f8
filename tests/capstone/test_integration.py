"""Each integration point holds for the solved labs, and fails for a layer that is wrong where the point looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mlsys_lab.capstone import Stack
from mlsys_lab.capstone.integration import check_points
from mlsys_lab.capstone.swaps import replace_names


def plus(error: float) -> Callable[[Any], Any]:
    """A function whose result is off by an error."""
    return lambda function: lambda *args: function(*args) + error


def forget_moments(load_state: Any) -> Any:
    """Load a state without the optimizer's moments."""
    return lambda optimizer, state: load_state(
        optimizer, {name: torch.zeros_like(one) if name.startswith("exp_avg") else one for name, one in state.items()}
    )


def drop_a_token(cache: Any) -> Any:
    """Positions that are one too early from the second token on."""

    class Wrong(cache):  # type: ignore[misc]
        def slots(self, sequence: int, end: int) -> torch.Tensor:
            slots: torch.Tensor = super().slots(sequence, end)
            return slots.roll(1)

    return Wrong


def test_all_points_hold_for_the_solved_labs(stack: Stack) -> None:
    points = list(check_points(stack))
    assert [point.name for point in points] == ["logits", "ranks", "resume", "serving", "sheet"]
    assert all(point.holds for point in points), points


@pytest.mark.parametrize(
    ("point", "field", "name", "change"),
    [
        ("logits", "cache", "extend", plus(1e-8)),
        ("ranks", "data_parallel", "loss_weights", lambda _: lambda tokens, rank: [1.0 + 0.01 * rank.rank]),
        ("resume", "data_parallel", "load_state", forget_moments),
        ("serving", "capstone", "BlockCache", drop_a_token),
        ("sheet", "collectives", "ring_elements", lambda old: lambda n, p: [one + 1 for one in old(n, p)]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_point_fails_for_a_wrong_layer(
    stack: Stack, point: str, field: str, name: str, change: Callable[[Any], Any]
) -> None:
    wrong = replace_names(stack, field, **{name: change(getattr(getattr(stack, field), name))})
    points = {one.name: one for one in check_points(wrong)}
    assert [one for one in points if not points[one].holds] == [point], points
    assert str(points[point]).startswith(f"FAILS  {point}: ")
