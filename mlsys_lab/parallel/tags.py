"""Traffic tags: what a message carries, as the ledger and the byte counters report it."""

from __future__ import annotations

from enum import StrEnum


class Tag(StrEnum):
    """Tag of a message of the parallel package."""

    ACTIVATIONS = "activations"
    EXPERT_LOADS = "choices of experts"
    EXPERT_COUNTS = "counts of experts"
    EXPERT_TOKENS = "tokens of experts"
    GRADIENTS = "gradients"
    GRAD_NORM = "norm"
    MEAN_LOSS = "mean loss"
    REPLICATED_GRADIENTS = "gradients of replicated parameters"
    RING_KV = "keys and values"
    RING_KV_GRADIENTS = "gradients of keys and values"
    SECONDARY_WEIGHTS = "weights in secondary group"
    STAGE_ACTIVATIONS = "activations between stages"
    STAGE_GRADIENTS = "gradients between stages"
    TIED_EMBEDDING = "gradients of the tied embedding"
    TOKEN_COUNTS = "token counts"
    VOCAB_PARALLEL_LOSS = "loss"
    WEIGHTS = "weights"
