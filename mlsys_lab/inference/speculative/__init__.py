"""Speculative decoding: cheap guesses, checked many at a time by the model, without a change to what it writes.

acceptance   accept(drafts, proposed, wanted, uniforms): which drafts stay, and the token after them
drafters     PromptLookup: from the text itself; ModelDrafter: from a smaller model
decoding     speculate(model, request, drafter, drafts=4, cache=None) -> Speculation
gain         acceptance_rate of two distributions; tokens of a step, speed-up, operations, best number of drafts
"""

from mlsys_lab.inference.speculative.acceptance import accept
from mlsys_lab.inference.speculative.decoding import Speculation, speculate
from mlsys_lab.inference.speculative.drafters import Draft, Drafter, ModelDrafter, PromptLookup
from mlsys_lab.inference.speculative.gain import (
    acceptance_rate,
    best_drafts,
    expected_tokens,
    operations_ratio,
    speedup,
)

__all__ = [
    "Draft",
    "Drafter",
    "ModelDrafter",
    "PromptLookup",
    "Speculation",
    "accept",
    "acceptance_rate",
    "best_drafts",
    "expected_tokens",
    "operations_ratio",
    "speculate",
    "speedup",
]
