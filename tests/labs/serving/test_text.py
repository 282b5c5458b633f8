"""Numbers in the text of lab 11."""

from __future__ import annotations

from tests.labs.figures import assert_held
from tests.labs.harness import labs

SERVING = next(lab for lab in labs() if lab.info.topic == "serving")


def test_figures_are_in_code_or_given() -> None:
    assert_held(SERVING)
