"""Numbers in the text of lab 10."""

from __future__ import annotations

from tests.labs.figures import assert_held
from tests.labs.harness import labs

KV_CACHE = next(lab for lab in labs() if lab.info.topic == "kv-cache")
IN_CODE = (
    "How many passes does it take to read 100 tokens in chunks of 32 and to write 10?",
    "What a text of 8,192 tokens keeps",
    "every sequence with 2,000 tokens",
)
GIVEN = (
    "a device of 989 TFLOP/s and 3.35 TB/s",
    "[(1, 100), (1, 40)] decodes two sequences, [(256, 512)] feeds a chunk, [(5, 100)] checks four drafted tokens",
    "A window of 4,096 in each of 32 layers",
    "What does a batch of 64 sequences change?",
)


def test_figures_are_in_code_or_given() -> None:
    assert_held(KV_CACHE, in_code=IN_CODE, given=GIVEN)
