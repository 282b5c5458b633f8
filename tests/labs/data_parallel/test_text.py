"""Numbers in the text of lab 08."""

from __future__ import annotations

from tests.labs.figures import assert_held
from tests.labs.harness import labs

DATA_PARALLEL = next(lab for lab in labs() if lab.info.topic == "data-parallel")
IN_CODE = ("two ranks that have 60 points and 4", "2 of gradient, and 12 of optimiser states")
GIVEN = (
    "Give each of eight GPUs an eighth of the batch",
    "training is eight times as fast",
    "the same optimiser states eight times over",
)


def test_figures_are_in_code_or_given() -> None:
    assert_held(DATA_PARALLEL, in_code=IN_CODE, given=GIVEN)
