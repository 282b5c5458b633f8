"""Figures in the labs' texts: found wherever they stand, and each lab says where its own come from."""

from __future__ import annotations

import pytest

from tests.labs.figures import assert_held, figures_in, uncovered
from tests.labs.harness import LabUnderTest, labs


def test_a_figure_that_nobody_holds_is_found() -> None:
    text = "Trained on sixty thousand tokens, 99 % of\nthem once; see Lab 05, `x[10]` and $10^3$."
    assert [found[0] for found in figures_in(text)] == ["sixty", "99 %"]
    assert uncovered(text, ["99 % of them"]) == ["Trained on sixty thousand tokens, 99 % of them"]


@pytest.mark.parametrize("lab", labs(), ids=lambda lab: lab.info.topic)
def test_every_lab_holds_its_figures(lab: LabUnderTest) -> None:
    sources = [path.read_text(encoding="utf-8") for path in lab.folder.glob("test_*.py")]
    assert any(f"{assert_held.__name__}(" in source for source in sources)
