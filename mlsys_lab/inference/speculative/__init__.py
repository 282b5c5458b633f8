"""Speculative decoding: cheap guesses, checked many at a time by the model, without a change to what it writes.

acceptance   accept: which of some drafts stay, and the token after them; accept_among: which of several for one place
drafters     PromptLookup: from the text itself; ModelDrafter: from a smaller model
decoding     speculate(model, request, drafter, drafts=4, cache=None) -> Speculation; speculate_all for many; verify
trees        speculate_tree(model, request, drafter, branches=(2, 2, 1)): several candidates for each place
gain         acceptance_rate of two distributions; tokens of a step, speed-up, operations, best number of drafts
"""

from mlsys_lab.inference.speculative.acceptance import accept, accept_among
from mlsys_lab.inference.speculative.decoding import Speculation, speculate, speculate_all, verify
from mlsys_lab.inference.speculative.drafters import Draft, Drafter, ModelDrafter, PromptLookup
from mlsys_lab.inference.speculative.gain import (
    acceptance_among,
    acceptance_rate,
    best_drafts,
    expected_tokens,
    operations_ratio,
    speedup,
)
from mlsys_lab.inference.speculative.trees import speculate_tree

__all__ = [
    "Draft",
    "Drafter",
    "ModelDrafter",
    "PromptLookup",
    "Speculation",
    "accept",
    "accept_among",
    "acceptance_among",
    "acceptance_rate",
    "best_drafts",
    "expected_tokens",
    "operations_ratio",
    "speculate",
    "speculate_all",
    "speculate_tree",
    "speedup",
    "verify",
]
