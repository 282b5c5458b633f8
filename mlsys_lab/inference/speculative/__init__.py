"""Speculative decoding: cheap draft tokens, several verified in one step, without a change to the outputs.

acceptance   accept: how many draft tokens are accepted, and the token after them; accept_among: one of several
drafters     PromptLookup: n-grams of the sequence itself; ModelDrafter: a smaller model
compiled     make_drafter: a smaller model, compiled if it is a small LLaMA on a CPU
controller   SpeculationController: how many tokens to draft, from measured acceptance and times
decoding     speculate(model, request, drafter) -> Speculation; speculate_all for many; verify
engine       SpeculativeEngine, SpeculativeScheduler: drafts verified in the serving engine's batch
trees        speculate_tree(model, request, drafter, branches=(2, 2, 1)): several candidates for each position
gain         acceptance_rate of two distributions; tokens per step, speed-up, FLOPs, best number of draft tokens
"""

from mlsys_lab.inference.speculative.acceptance import accept, accept_among
from mlsys_lab.inference.speculative.compiled import make_drafter
from mlsys_lab.inference.speculative.controller import SpeculationController
from mlsys_lab.inference.speculative.decoding import Speculation, speculate, speculate_all, verify
from mlsys_lab.inference.speculative.drafters import Draft, Drafter, ModelDrafter, PromptLookup
from mlsys_lab.inference.speculative.engine import SpeculativeEngine, SpeculativeScheduler
from mlsys_lab.inference.speculative.gain import (
    acceptance_among,
    acceptance_rate,
    best_num_speculative_tokens,
    expected_tokens,
    flops_ratio,
    speedup,
)
from mlsys_lab.inference.speculative.trees import speculate_tree

__all__ = [
    "Draft",
    "Drafter",
    "ModelDrafter",
    "PromptLookup",
    "Speculation",
    "SpeculationController",
    "SpeculativeEngine",
    "SpeculativeScheduler",
    "accept",
    "accept_among",
    "acceptance_among",
    "acceptance_rate",
    "best_num_speculative_tokens",
    "expected_tokens",
    "flops_ratio",
    "make_drafter",
    "speculate",
    "speculate_all",
    "speculate_tree",
    "speedup",
    "verify",
]
