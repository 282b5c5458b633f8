"""Activations that are worked out again in the backward pass instead of being kept (Chen et al., arXiv:1604.06174)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from mlsys_lab.flops.compute import check_recomputation


def apply_activation_checkpointing(blocks: Iterable[nn.Module], kind: str) -> None:
    """Let blocks of a transformer keep less for their backward pass, in place; results stay as they are.

    "full" keeps a block's input alone, and repeats its forward pass with all messages but those behind the last thing
    that had to be kept: the MLP's last all-reduce or reduce-scatter is not sent again. "selective" repeats the function
    that attends and nothing else (Korthikanti et al., arXiv:2205.05198, §5); fused attention keeps no scores anyway.
    Raises InputError for a kind other than these and "none".
    """
    check_recomputation(kind)
    for block in blocks:
        if kind == "full":
            block.forward = _again(block.forward)
        elif kind == "selective":
            attention: Any = block.attention
            attention.attention = _again(attention.attention)


def _again(function: Callable[..., Any]) -> Callable[..., Any]:
    return partial(checkpoint, function, use_reentrant=False)
