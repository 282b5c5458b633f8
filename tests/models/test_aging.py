"""The aging model is a transformer with given weights, whose keys and values are others after each pass."""

from __future__ import annotations

import torch

from mlsys_lab.models import Transformer
from mlsys_lab.models.aging import AgingModel

TOKENS = torch.tensor([[3, 1, 4, 1, 5]])


def test_its_first_pass_is_that_of_a_transformer_with_these_weights() -> None:
    weights = torch.randn(AgingModel(kv_heads=2).count_weights, dtype=torch.float64)
    model = AgingModel(weights, kv_heads=2, window=3)
    plain = Transformer(model.config, window=3).double()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(torch.cat([parameter.flatten() for parameter in model.parameters()]), weights)
    assert torch.equal(model(TOKENS), plain(TOKENS))


def test_it_comes_round_when_all_rows_have() -> None:
    model = AgingModel(kv_heads=1)
    rows = model.config.head_dim  # of keys, and as many of values
    logits = [model(TOKENS) for _ in range(rows + 1)]
    assert not any(torch.allclose(logits[0], later, rtol=1e-6) for later in logits[1:rows])
    assert torch.equal(logits[0], logits[rows])
