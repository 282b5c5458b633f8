"""Numbers in the text of lab 11."""

from __future__ import annotations

from tests.labs.figures import assert_held
from tests.labs.harness import labs

SERVING = next(lab for lab in labs() if lab.info.topic == "serving")
IN_CODE = ("when a prompt of 3,000 tokens comes",)
GIVEN = (
    "enables 23x throughput in LLM inference",
    "a step has 10 ms for everything",
    "wait longer than 30 ms for a token",
    "80 % of the requests that the judge's own policy serves well",
    "Blocks of 16 tokens or of 64",
)


def test_figures_are_in_code_or_given() -> None:
    assert_held(SERVING, in_code=IN_CODE, given=GIVEN)
