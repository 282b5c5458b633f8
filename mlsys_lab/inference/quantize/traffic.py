"""Bytes that decoding moves: every token reads all weights, and the keys and values of its text."""

from __future__ import annotations

from mlsys_lab.flops.cache import bytes_per_token
from mlsys_lab.models import Transformer


def weight_bytes(model: Transformer) -> int:
    """Bytes of all weights with their scales, quantised or not; a tied embedding counts once."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def token_bytes(model: Transformer, past: float) -> float:
    """Bytes that one token moves after `past` others, alone in its batch: the least that a step must read and write.

    All weights are read, for an untied model all but an embedding of which one row is; keys and values of the tokens
    before are read and its own are written, in the model's dtype. Activations are left out: they stay in caches.
    """
    weight = model.embedding.weight
    rows = 0 if model.config.tied else weight.nbytes - weight[0].nbytes
    return weight_bytes(model) - rows + (past + 1) * bytes_per_token(model.config, weight.element_size())
