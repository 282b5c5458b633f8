"""Bars that move beneath a cell."""

from __future__ import annotations

import pytest

from mlsys_lab.widgets import progress


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What stood in the cell's one output, one text after the other."""
    texts: list[str] = []

    class Handle:
        def update(self, what: object) -> None:
            texts.append(what.data)  # type: ignore[attr-defined]

    def display(what: object, display_id: bool) -> Handle:
        assert display_id
        handle = Handle()
        handle.update(what)
        return handle

    monkeypatch.setattr(progress, "display", display)
    return texts


def test_a_bar_says_what_share_is_done(shown: list[str]) -> None:
    move = progress.progress_bar("FLOPs")
    move(1e9, 4e9)
    assert shown == ["FLOPs …", "<progress value='0.2500' max='1'></progress> FLOPs: 25% of 4e+09"]


@pytest.mark.parametrize(("steps", "moves"), [(0, 0), (1, 1), (30, 30), (100, 100), (3001, 100)])
def test_all_steps_are_gone_through_and_the_bar_moves_by_one_percent_or_more(
    shown: list[str], steps: int, moves: int
) -> None:
    assert list(progress.track(range(steps))) == list(range(steps))
    assert len(shown) == 1 + moves
    assert moves == 0 or "'1.0000'" in shown[-1]
