"""Milestones: eight published numbers, reproduced with the learner's own code, each in a few seconds.

milestone  Milestone(name, year, title, source, needs, scope, figures), Figure, reproduce(milestone, stack) -> Result
one module for each: backpropagation (1986), ring_all_reduce (2009), checkpointing (2016), zero (2019), scaling_law
(2022), flash_attention (2022), paged_cache (2023), speculative (2023)

A milestone's `scope` says what of the paper is an experiment here and what is a formula. `reproduce` runs it on a
stack, and stops at the first figure that differs: the result's `problem` is then one line. `mlsys-lab milestones` is
the command.
"""

from mlsys_lab.capstone.milestones.backpropagation import BACKPROPAGATION
from mlsys_lab.capstone.milestones.checkpointing import CHECKPOINTING
from mlsys_lab.capstone.milestones.flash_attention import FLASH_ATTENTION
from mlsys_lab.capstone.milestones.milestone import Figure, Milestone, Result, reproduce
from mlsys_lab.capstone.milestones.paged_cache import PAGED_CACHE
from mlsys_lab.capstone.milestones.ring_all_reduce import RING_ALL_REDUCE
from mlsys_lab.capstone.milestones.scaling_law import SCALING_LAW
from mlsys_lab.capstone.milestones.speculative import SPECULATIVE_DECODING
from mlsys_lab.capstone.milestones.zero import ZERO
from mlsys_lab.errors import InputError, did_you_mean

MILESTONES = (
    BACKPROPAGATION,
    RING_ALL_REDUCE,
    CHECKPOINTING,
    ZERO,
    SCALING_LAW,
    FLASH_ATTENTION,
    PAGED_CACHE,
    SPECULATIVE_DECODING,
)
"""In the order of their years."""

__all__ = ["MILESTONES", "Figure", "Milestone", "Result", "find_milestone", "reproduce"]


def find_milestone(name: str) -> Milestone:
    """Return a milestone by its name. Raises InputError for another name."""
    for milestone in MILESTONES:
        if milestone.name == name:
            return milestone
    names = [milestone.name for milestone in MILESTONES]
    near = did_you_mean(name, names)
    raise InputError("unknown milestone", got=repr(name), expected=f"one of {', '.join(names)}", help=near)
