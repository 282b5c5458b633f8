"""Integration point 2, first half: ranks on the stack train as one process does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mlsys_lab.capstone import Stack, load_stack
from mlsys_lab.capstone.training import train
from mlsys_lab.comm import RankError
from mlsys_lab.configs import TrainConfig, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.models import training
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


def test_processes_train_the_same_weights_as_threads(stack: Stack, config: TransformerConfig) -> None:
    _, weights = initial(config)
    threads = train(stack, config, weights, IDS, CONFIG, 2)
    processes = train(stack, config, weights, IDS, CONFIG, 2, backend="gloo")
    assert_equal_weights(processes.weights, threads.weights, 0)
    assert processes.losses == threads.losses


@pytest.mark.parametrize("then", [4, 3])
def test_a_run_that_stopped_continues_on_as_many_ranks_or_fewer(
    stack: Stack, config: TransformerConfig, then: int
) -> None:
    _, weights = initial(config)
    whole = train(stack, config, weights, IDS, CONFIG, 4)
    first = train(stack, config, weights, IDS, CONFIG, 4, until=2)
    rest = train(stack, config, weights, IDS, CONFIG, then, states=first.states)
    np.testing.assert_allclose([*first.losses, *rest.losses], whole.losses, rtol=1e-12)
    assert_equal_weights(rest.weights, whole.weights, 0 if then == 4 else 1e-11)


def test_the_reference_optimizer_cannot_resume_from_lab_08s_states(
    stack: Stack, config: TransformerConfig, tmp_path: Path
) -> None:
    swapped, (_, weights) = load_stack(Workspace.create(tmp_path), {"data_parallel": "reference"}), initial(config)
    states = train(stack, config, weights, IDS, CONFIG, 2, until=1).states
    with pytest.raises(InputError, match=r"cannot resume: got the reference package's .*, expected reshard"):
        train(swapped, config, weights, IDS, CONFIG, 2, states=states)


def test_the_products_of_a_step_are_those_that_lab_05_counts(stack: Stack, config: TransformerConfig) -> None:
    """Counted by torch, which sees every product that the learner's engine computes."""
    _, weights = initial(config)
    with FlopCounterMode(display=False) as counter:
        stack.capstone.GPT(stack.engine, config, weights).loss(torch.zeros(3, 12, dtype=torch.int64)).backward()
    products = stack.arithmetic.step_products(config, 11, 3)
    assert counter.get_total_flops() == stack.arithmetic.flops_of(products)
    assert sum(weight.numel() for weight in weights.values()) == stack.arithmetic.count_parameters(config)


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_elements_that_a_rank_sends_are_those_that_lab_08_counts(
    stack: Stack, config: TransformerConfig, world_size: int
) -> None:
    """The weights are a multiple of p. Next to them go three sums of one number: tokens, squared norm and loss."""
    _, weights = initial(config)
    num_params = sum(weight.numel() for weight in weights.values())
    assert num_params % world_size == 0
    two, three = (
        train(stack, config, weights, IDS, replace(CONFIG, steps=steps), world_size).ledger.messages for steps in (2, 3)
    )
    sent = [sum(m.size_bytes for m in run if m.source == 0) for run in (two, three)]
    _, elements = stack.data_parallel.zero_step_cost(num_params, world_size, 1)
    of_one_number = stack.collectives.ring_elements(1, world_size)[0]
    assert sent[1] - sent[0] == 8 * (elements + 3 * of_one_number)


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
