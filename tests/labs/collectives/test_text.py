"""Numbers in the text of lab 07."""

from __future__ import annotations

from tests.labs.figures import assert_held
from tests.labs.harness import labs

COLLECTIVES = next(lab for lab in labs() if lab.info.topic == "collectives")
IN_CODE = ("islands of 4, 1 µs and 450 GB/s inside, 5 µs and 50 GB/s across",)
GIVEN = (
    "How many steps does it take with 6 ranks? With 1000?",
    "One of eight ranks has fewer rows",
    "Is the mean of the eight gradients still the gradient",
)


def test_figures_are_in_code_or_given() -> None:
    assert_held(COLLECTIVES, in_code=IN_CODE, given=GIVEN)
