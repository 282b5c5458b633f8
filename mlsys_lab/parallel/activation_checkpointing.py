"""Activation checkpointing: recompute activations in the backward pass instead of saving them (arXiv:1604.06174)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from mlsys_lab.flops.compute import check_recomputation


def apply_activation_checkpointing(blocks: Iterable[nn.Module], recomputation: str) -> None:
    """Make transformer blocks save fewer activations, in place; results do not change.

    "full" saves only a block's input and repeats its forward pass, messages included, up to the last tensor that has to
    be saved: the MLP's final all-reduce or reduce-scatter is not repeated. "selective" repeats the attention function
    only (Korthikanti et al., arXiv:2205.05198, §5); fused attention saves no scores anyway. "none" does nothing. Raises
    InputError for any other value.
    """
    check_recomputation(recomputation)
    for block in blocks:
        if recomputation == "full":
            block.forward = _checkpointed(block.forward)
        elif recomputation == "selective":
            attention: Any = block.attention
            attention.attention = _checkpointed(attention.attention)


def _checkpointed(function: Callable[..., Any]) -> Callable[..., Any]:
    return partial(checkpoint, function, use_reentrant=False)
