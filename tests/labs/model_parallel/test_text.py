"""Numbers in the text of lab 09."""

from __future__ import annotations

from tests.labs.figures import assert_held
from tests.labs.harness import labs

MODEL_PARALLEL = next(lab for lab in labs() if lab.info.topic == "model-parallel")
IN_CODE = (
    "4 ranks, 256 tokens, a vocabulary of 8,192, 8 bytes a number",
    "each of eight ranks works out for 4,096 tokens",
    "12/d more (states, by ZeRO 1), and activations of T·D·(10 + 24/t) bytes",
)
GIVEN = (
    "a model of 70 billion parameters leaves no card room",
    "LLaMA 2 70B's size with as many heads of keys as of queries, on 512 H100s",
)


def test_figures_are_in_code_or_given() -> None:
    assert_held(MODEL_PARALLEL, in_code=IN_CODE, given=GIVEN)
