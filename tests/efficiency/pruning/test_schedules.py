"""Schedules by their papers' formulas, and training in which pruned weights stay 0."""

import itertools
import math

import numpy as np
import pytest
import torch

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.efficiency.blocks import linear_layers
from mlsys_lab.efficiency.pruning.convert import prune
from mlsys_lab.efficiency.pruning.schedules import (
    apply_masks,
    cubic_schedule,
    iterative_schedule,
    masks_of,
    one_shot_schedule,
    prune_while_training,
    train_with_masks,
)
from mlsys_lab.errors import InputError
from mlsys_lab.models import training

CONFIG = TransformerConfig("tiny", n_layers=2, d_model=16, n_heads=2, d_ff=32, vocab_size=13, context=16)
TOKENS = np.random.default_rng(0).integers(13, size=4000)


@pytest.fixture(autouse=True)
def one_thread():
    with training.one_thread():
        yield


def steps(model, count):
    return training.train(model, TOKENS, batch_size=4, seq_len=16, steps=count, lr=1e-2, seed=0)


def densities(model):
    return [(layer.weight != 0).float().mean().item() for layer in linear_layers(model.blocks).values()]


def test_sparsities_of_the_cubic_schedule_are_those_of_the_paper_s_equation():
    final, start, pruned_every, times = 0.875, 1000, 100, 20
    for k in range(times + 1):
        step = start + k * pruned_every
        sparsity = final + (0 - final) * (1 - (step - start) / (times * pruned_every)) ** 3
        assert cubic_schedule(step, start=1000, end=3000, density=1 - final) == pytest.approx(1 - sparsity)
    assert [cubic_schedule(s, start=1000, end=3000, density=0.125) for s in (0, 999, 9999)] == [1, 1, 0.125]


def test_iterative_pruning_keeps_the_same_fraction_in_each_round():
    values = [iterative_schedule(s, start=5, every=10, rounds=3, density=0.2) for s in range(60)]
    rounds = [values[0], *(after for before, after in itertools.pairwise(values) if after != before)]
    ratios = [after / before for before, after in itertools.pairwise(rounds)]
    assert ratios == pytest.approx([0.2 ** (1 / 3)] * 3) and math.prod(ratios) == pytest.approx(0.2)
    assert values[5:25:10] == rounds[1:3] and values[4] == 1
    assert [one_shot_schedule(s, start=5, density=0.2) for s in (4, 5, 6)] == [1, 0.2, 0.2]


def test_training_follows_the_schedule_and_pruned_weights_stay_0():
    model, seen, zeros = training.new_model(CONFIG, 0), [], {}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-3)  # no weight starts at 0

    def schedule(step):
        return cubic_schedule(step, start=0, end=16, density=0.25)

    for step, loss in prune_while_training(model, steps(model, 20), schedule, every=4):
        seen.append(step)
        assert math.isfinite(loss)
        wanted = schedule(step - step % 4)
        assert densities(model) == pytest.approx([wanted] * 14, abs=1 / 256)
        for name, layer in linear_layers(model.blocks).items():
            assert not layer.weight[zeros.get(name, layer.weight == 0)].any()
            zeros[name] = layer.weight == 0
    assert seen == list(range(1, 21)) and schedule(20) == 0.25


def test_masks_of_a_pruned_model_hold_while_it_trains_and_the_rest_moves():
    pruned = prune(training.new_model(CONFIG, 0), "magnitude", "2:4")
    masks, before = masks_of(pruned), pruned.blocks[0].mlp.up.weight.clone()
    for _ in train_with_masks(pruned, steps(pruned, 3), masks):
        assert not any(pruned.blocks.get_submodule(name).weight[~mask].any() for name, mask in masks.items())
    assert (pruned.blocks[0].mlp.up.weight != before)[masks["0.mlp.up"]].all()


def test_without_masks_an_optimizer_brings_weights_back():
    pruned = prune(training.new_model(CONFIG, 0), "magnitude", "2:4")
    list(steps(pruned, 3))
    assert min(densities(pruned)) > 0.9


def test_what_is_refused_is_one_line():
    model = training.new_model(CONFIG, 0)
    with pytest.raises(
        InputError, match=r"^the schedule ends before it starts: got steps 5 to 5, expected end > start"
    ):
        cubic_schedule(5, start=5, end=5, density=0.5)
    with pytest.raises(InputError, match=r"^rounds out of range: got 0"):
        iterative_schedule(5, start=5, every=5, rounds=0, density=0.5)
    for density in (0, 1.5):
        with pytest.raises(InputError, match=r"^density out of range"):
            one_shot_schedule(5, start=5, density=density)
    with pytest.raises(InputError, match=r"^every out of range: got 0"):
        next(prune_while_training(model, [(1, 0.0)], lambda _: 1.0, every=0))
    with pytest.raises(InputError, match=r"^mask of another weight: got \(2, 2\) of torch.bool, expected \(32, 16\)"):
        apply_masks(model, {"0.mlp.up": torch.ones(2, 2, dtype=torch.bool)})
