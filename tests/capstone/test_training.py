"""Integration point 2, first half: ranks on the stack train as one process does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mlsys_lab.capstone import Stack, load_stack
from mlsys_lab.capstone.training import train
from mlsys_lab.comm import RankError
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.models import training
from mlsys_lab.parallel.train.trainer import TrainConfig
from mlsys_lab.stack.workspace import Workspace

IDS = np.random.default_rng(0).integers(0, 53, 1500)
CONFIG = TrainConfig(batch_size=6, seq_len=11, steps=4, lr=1e-2)


def assert_equal_weights(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float) -> None:
    """Largest absolute difference of each weight."""
    assert got.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(got[name], weight, rtol=0, atol=tolerance, msg=lambda text, name=name: name + text)


def initial(config: TransformerConfig) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A new model in float64, and copies of its weights."""
    model = training.new_model(config, 0).double()
    return model, {name: weight.detach().clone() for name, weight in model.named_parameters()}


def test_four_ranks_train_as_one_process_on_torchs_own_autograd_and_optimizer(
    stack: Stack, config: TransformerConfig
) -> None:
    """Six sequences on four ranks: two ranks have one and two have two, which `loss_weights` has to balance."""
    model, weights = initial(config)
    before = {name: weight.clone() for name, weight in weights.items()}
    result = train(stack, config, weights, IDS, CONFIG, 4)
    losses = [loss for _, loss in training.train(model, IDS, **vars(CONFIG))]
    # torch clips by max_norm / (norm + 1e-6), the lab by max_norm / norm: a difference of 1e-6 of an update.
    np.testing.assert_allclose(result.losses, losses, rtol=1e-7)
    assert_equal_weights(result.weights, {name: one.detach() for name, one in model.named_parameters()}, 1e-7)
    assert_equal_weights(weights, before, 0)


def test_the_number_of_ranks_changes_rounding_alone(stack: Stack, config: TransformerConfig) -> None:
    _, weights = initial(config)
    one, three = (train(stack, config, weights, IDS, CONFIG, size) for size in (1, 3))
    assert_equal_weights(three.weights, one.weights, 1e-11)
    assert len(one.ledger.messages) == 0 < len(three.ledger.messages)


def test_reference_layers_train_the_same_weights(stack: Stack, config: TransformerConfig, tmp_path: Path) -> None:
    swaps = dict.fromkeys(("engine", "collectives", "data_parallel"), "reference")
    swapped, (_, weights) = load_stack(Workspace.create(tmp_path), swaps), initial(config)
    ours, theirs = (train(one, config, weights, IDS, CONFIG, 4) for one in (stack, swapped))
    assert_equal_weights(ours.weights, theirs.weights, 1e-11)


def test_a_rank_that_fails_is_named(stack: Stack, config: TransformerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> None:
        raise ValueError("out of shards")

    _, weights = initial(config)
    monkeypatch.setattr(stack.data_parallel.ShardedOptimizer, "reduce_gradients", fail)
    with pytest.raises(RankError, match=r"rank \d failed: ValueError: out of shards"):
        train(stack, config, weights, IDS, CONFIG, 2)


def test_more_ranks_than_sequences_are_refused(stack: Stack, config: TransformerConfig) -> None:
    with pytest.raises(InputError, match="a rank without sequences: got 6 for 7 ranks"):
        train(stack, config, {}, IDS, CONFIG, 7)
