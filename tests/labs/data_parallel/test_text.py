"""Numbers in the text of lab 08."""

from __future__ import annotations

from tests.labs.figures import assert_held
from tests.labs.harness import labs

DATA_PARALLEL = next(lab for lab in labs() if lab.info.topic == "data-parallel")
GIVEN = ("xx",)


def test_figures_are_in_code_or_given() -> None:
    assert_held(DATA_PARALLEL, given=GIVEN)
