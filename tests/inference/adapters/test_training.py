"""An adapter learns; the model does not."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from mlsys_lab.inference.adapters import apply_adapter, new_adapter, train_adapter
from mlsys_lab.models.training import loss, windows
from tests.inference.making import build


def test_a_text_is_learnt_by_the_thin_matrices_alone():
    model = build(dtype=torch.float32)
    before, ids = copy.deepcopy(model.state_dict()), np.arange(200, dtype=np.int64) % 7
    adapter = new_adapter(model, 4, lora_alpha=8, seed=0)
    how = {"batch_size": 4, "seq_len": 12, "steps": 30, "lr": 0.03, "seed": 0}
    losses = train_adapter(model, adapter, ids, **how)
    assert len(losses) == 30 and losses[-1] < 0.5 * losses[0]
    text = windows(ids, np.array([3]), 12)
    with torch.no_grad(), apply_adapter(model, adapter):
        assert loss(model, text).item() < 0.5 * losses[0]
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert all(one.requires_grad and one.grad is None for one in model.parameters())
    again = new_adapter(model, 4, lora_alpha=8, seed=0)
    assert train_adapter(model, again, ids, **how) == pytest.approx(losses, rel=1e-3)
