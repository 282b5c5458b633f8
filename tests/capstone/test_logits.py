"""Integration point 1: one safetensors file, three ways to the same logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mlsys_lab.capstone import Stack, load_stack
from mlsys_lab.capstone.logits import logit_errors
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer
from mlsys_lab.models.saving import save
from mlsys_lab.stack.workspace import Workspace

TOKENS = torch.randint(53, (29,), generator=torch.Generator().manual_seed(1)).tolist()


def test_engine_and_cache_give_the_logits_of_the_transformer(stack: Stack, folder: Path) -> None:
    assert max(logit_errors(stack, folder, TOKENS)) < 1e-10
    assert max(logit_errors(stack, folder, TOKENS[:1])) < 1e-10


def test_reference_layers_give_them_too(folder: Path, tmp_path: Path) -> None:
    stack = load_stack(Workspace.create(tmp_path), {"engine": "reference", "cache": "reference"})
    assert max(logit_errors(stack, folder, TOKENS)) < 1e-10


def test_a_wrong_layer_shows_in_its_error_alone(stack: Stack, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = stack.capstone.GPT.__init__.__globals__
    monkeypatch.setitem(names, "silu_mul", lambda engine, gate, up: gate * up)
    errors = logit_errors(stack, folder, TOKENS)
    assert errors.engine > 1e-3 and errors.cache < 1e-10


def test_a_checkpoint_of_another_architecture_is_one_clear_line(stack: Stack, tmp_path: Path) -> None:
    config = TransformerConfig("gemma-like", 1, 8, 2, 12, 11, 16, tied=True)
    save(Transformer(config), tmp_path, dtype=torch.float64)
    assert max(logit_errors(stack, tmp_path, [3, 1])) < 1e-10  # a tied head is the capstone's as well
    with pytest.raises(InputError, match=r"config\.json"):
        logit_errors(stack, tmp_path / "none", [3, 1])
