"""Numbers in the text of lab 12."""

from __future__ import annotations

from tests.labs.figures import assert_held
from tests.labs.harness import labs

DIFFUSION = next(lab for lab in labs() if lab.info.topic == "diffusion")
IN_CODE = (
    "EDM's own numbers are 0.002, 80 and 7",
    "256 sines and cosines",
    "all tokens of an image, and there are 256 of them",
)
GIVEN = (
    "a device of 989 TFLOP/s and 3.35 TB/s",
    "A network that was trained on 1,000 levels is sampled at 20 others",
)


def test_figures_are_in_code_or_given() -> None:
    assert_held(DIFFUSION, in_code=IN_CODE, given=GIVEN)
