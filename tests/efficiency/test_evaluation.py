"""What compression costs: losses of both models, and the divergence between them."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.efficiency.evaluation import compare_models
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer
from mlsys_lab.models.training import loss

CONFIG = TransformerConfig("small", n_layers=1, d_model=16, n_heads=2, d_ff=16, vocab_size=31, context=12)
WINDOWS = torch.randint(31, (3, 13), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def models() -> list[Transformer]:
    torch.manual_seed(0)
    models = [Transformer(CONFIG), Transformer(CONFIG)]
    for model in models:
        model.head.weight.data *= 50  # far from uniform
    return models


@torch.no_grad()
def test_losses_and_divergence_are_those_of_all_tokens_at_once(models: list[Transformer]) -> None:
    found = compare_models(*models, WINDOWS)
    assert found.original_loss == pytest.approx(loss(models[0], WINDOWS).item(), rel=1e-5)
    assert found.compressed_loss == pytest.approx(loss(models[1], WINDOWS).item(), rel=1e-5)
    p, q = (Categorical(logits=model(WINDOWS[:, :-1])) for model in models)
    assert found.divergence == pytest.approx(kl_divergence(p, q).mean().item(), rel=1e-4)
    assert found.divergence > 0.1
    assert found.perplexities == (math.exp(found.original_loss), math.exp(found.compressed_loss))


def test_a_model_does_not_diverge_from_itself(models: list[Transformer]) -> None:
    found = compare_models(models[0], models[0], WINDOWS)
    assert found.divergence == 0 and found.original_loss == found.compressed_loss


def test_no_text_is_one_line(models: list[Transformer]) -> None:
    with pytest.raises(InputError, match=r"nothing to compare models on: got shape \(0, 13\), expected \(W, T \+ 1\)"):
        compare_models(*models, WINDOWS[:0])
