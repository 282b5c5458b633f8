"""Bytes that decoding moves: every token reads all weights, and the KV cache of its sequence."""

from __future__ import annotations

from mlsys_lab.flops.cache import bytes_per_token
from mlsys_lab.models import Transformer


def weight_bytes(model: Transformer) -> int:
    """Bytes of all weights with their scales, quantized or not; a tied embedding counts once."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def token_bytes(model: Transformer, past: float) -> float:
    """Bytes that one token moves after `past` others, alone in its batch: a lower bound of a step's memory traffic.

    All weights are read, except that of an untied embedding one row is; keys and values of earlier tokens are read and
    those of the token are written, in the model's dtype. Activations are not counted: they stay in the GPU's caches.
    """
    weight = model.embedding.weight
    rows = 0 if model.config.tied else weight.nbytes - weight[0].nbytes
    return weight_bytes(model) - rows + (past + 1) * bytes_per_token(model.config, weight.element_size())
