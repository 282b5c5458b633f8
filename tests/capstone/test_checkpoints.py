"""Checkpoints of the capstone: what is saved is what is read, and a damaged one is one clear line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mlsys_lab.capstone import Stack, checkpoints
from mlsys_lab.capstone.training import train
from mlsys_lab.configs import TrainConfig, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.parallel.train.checkpoint import load_model, newest

Weights = dict[str, torch.Tensor]


def test_a_run_continues_from_a_checkpoint_as_if_it_had_not_stopped(
    stack: Stack, config: TransformerConfig, weights: Weights, tmp_path: Path
) -> None:
    ids, settings = np.random.default_rng(1).integers(0, 53, 400), TrainConfig(4, 7, 3, 1e-3)
    whole = train(stack, config, weights, ids, settings, 2)
    first = train(stack, config, weights, ids, settings, 2, until=1)
    path = checkpoints.save(tmp_path, config, first.weights, 1, states=first.states)
    rest = train(stack, config, weights, ids, settings, 2, states=checkpoints.load_states(path))
    assert first.losses + rest.losses == whole.losses
    assert all(torch.equal(rest.weights[name], weight) for name, weight in whole.weights.items())


def test_the_package_reads_the_weights(config: TransformerConfig, weights: Weights, tmp_path: Path) -> None:
    for step in (2, 11):
        checkpoints.save(tmp_path, config, {name: step * one for name, one in weights.items()}, step)
    loaded = load_model(newest(tmp_path, print))
    assert loaded.config == config
    assert all(torch.equal(one, 11 * weights[name]) for name, one in loaded.named_parameters())
    assert checkpoints.load_states(tmp_path / "step-00000011") == []


def test_a_damaged_state_is_one_clear_line(config: TransformerConfig, weights: Weights, tmp_path: Path) -> None:
    path = checkpoints.save(tmp_path, config, weights, 1, states=[{"weights": torch.ones(2)}] * 2)
    (path / "state-1.safetensors").write_bytes(b"half")
    with pytest.raises(InputError, match=r"step-00000001 cannot be resumed: got .*resume from another checkpoint"):
        checkpoints.load_states(path)
    (path / "state-1.safetensors").unlink()
    with pytest.raises(InputError, match=r"cannot be resumed: got .*state-1\.safetensors"):
        checkpoints.load_states(path)


def test_a_checkpoint_never_replaces_another(
    config: TransformerConfig, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    path = checkpoints.save(tmp_path, config, weights, 3)
    with pytest.raises(InputError, match=f"has a checkpoint of this step: got {path}"):
        checkpoints.save(tmp_path, config, weights, 3)
    with pytest.raises(InputError, match=r"weights of another shape: embedding\.weight: got no such weight"):
        checkpoints.save(tmp_path, config, {}, 4)
    assert [one.name for one in tmp_path.iterdir()] == ["step-00000003"]
