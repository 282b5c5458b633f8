"""Adapters of the small models, strong enough to change texts."""

from __future__ import annotations

import torch

from mlsys_lab.inference.adapters import Adapter, new_adapter

EVERY = ("query", "key", "value", "out", "gate", "up", "down")


def strong(model, rank, seed, targets=EVERY, alpha=8.0) -> Adapter:
    """An adapter whose B is no longer zero."""
    adapter = new_adapter(model, rank, lora_alpha=alpha, targets=targets, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for _, b in adapter.matrices.values():
        b.copy_(torch.randn(b.shape, generator=generator, dtype=torch.float64))
    return adapter
