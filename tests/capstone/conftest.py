"""A stack of the solved labs, and a small model as weights and as a checkpoint in float64."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mlsys_lab.capstone import Stack, load_stack
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.models import Transformer
from mlsys_lab.models.saving import save
from mlsys_lab.models.training import one_thread
from mlsys_lab.stack.workspace import Workspace


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """The solved labs only."""
    return load_stack(Workspace.create(tmp_path_factory.mktemp("empty")))


@pytest.fixture(scope="session")
def config() -> TransformerConfig:
    """Odd sizes, and two query heads for each key head."""
    return TransformerConfig(
        "small", n_layers=2, d_model=20, n_heads=4, n_kv_heads=2, head_dim=6, d_ff=28, vocab_size=53, context=64
    )


@pytest.fixture(scope="session")
def model(config: TransformerConfig) -> Transformer:
    """Weights far from their initial values, so that no layer is close to an identity."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        model = Transformer(config).double().eval()
        for weight in model.parameters():
            weight.normal_(std=0.3) if weight.ndim == 2 else weight.normal_(1, 0.3)
    return model


@pytest.fixture(scope="session")
def weights(model: Transformer) -> dict[str, torch.Tensor]:
    """Its weights by name."""
    return {name: weight.detach() for name, weight in model.named_parameters()}


@pytest.fixture(scope="session")
def folder(model: Transformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It as config.json and one safetensors file."""
    path = tmp_path_factory.mktemp("model")
    save(model, path, dtype=torch.float64)
    return path
