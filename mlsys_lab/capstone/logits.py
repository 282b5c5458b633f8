"""Integration point 1: one safetensors file gives the same logits on every layer that can compute them.

Dimension letters: T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from mlsys_lab.capstone.stack import Stack
from mlsys_lab.capstone.weights import check_config
from mlsys_lab.models import Transformer, load


class LogitErrors(NamedTuple):
    """Largest absolute differences of logits from those of `models.Transformer`."""

    engine: float
    cache: float


def logit_errors(stack: Stack, folder: Path, tokens: Sequence[int], dtype: torch.dtype = torch.float64) -> LogitErrors:
    """Errors of the logits (T, V) of a checkpoint's weights: by the stack's engine, and through its KV cache.

    Raises InputError for a folder that `models.load` refuses, and for weights of another model than the capstone's.
    """
    model = load(folder, dtype=dtype).eval()
    check_config(model.config)
    ids = torch.tensor([list(tokens)])
    with torch.no_grad():
        expected = model(ids)[0]
    gpt = stack.capstone.GPT(stack.engine, model.config, dict(model.named_parameters()))
    with stack.engine.no_grad():
        by_engine = gpt(ids).data
    by_cache = decode_logits(stack, model, tokens)
    return LogitErrors(*((got - expected).abs().max().item() for got in (by_engine, by_cache)))


def decode_logits(stack: Stack, model: Transformer, tokens: Sequence[int]) -> torch.Tensor:
    """Logits (T, V) of a sequence that enters the stack's contiguous KV cache token by token."""
    cache = stack.cache.Contiguous(model, sequences=1, capacity=len(tokens))
    sequence = cache.start()
    return torch.cat([stack.cache.extend(model, cache, {sequence: [token]}) for token in tokens])
