"""Replicated optimizers: the weights of sharded ones, and the costs that lab 16 predicts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mlsys_lab.capstone import Stack
from mlsys_lab.capstone.job import Serving
from mlsys_lab.capstone.measurement import measure
from mlsys_lab.capstone.swaps import REPLICATED, load_swapped
from mlsys_lab.capstone.training import train
from mlsys_lab.configs import TrainConfig, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.stack.workspace import Workspace
from tests.capstone.calibrations import plain_calibration

IDS = np.random.default_rng(0).integers(0, 53, 1500)
TRAIN = TrainConfig(batch_size=6, seq_len=11, steps=3, lr=1e-2)


@pytest.mark.parametrize("kind", REPLICATED)
def test_replicated_optimizers_train_the_same_weights_and_resume(
    kind: str, stack: Stack, config: TransformerConfig, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    swapped = load_swapped(Workspace.create(tmp_path), {"data_parallel": kind})
    expected = train(stack, config, weights, IDS, TRAIN, 4)
    first = train(swapped, config, weights, IDS, TRAIN, 4, until=1)
    rest = train(swapped, config, weights, IDS, TRAIN, 3, states=first.states)
    for name, weight in expected.weights.items():
        torch.testing.assert_close(rest.weights[name], weight, rtol=0, atol=1e-7)
    assert swapped.report().splitlines()[3].endswith(f"the reference package's (swapped for {kind})")


@pytest.mark.parametrize("kind", REPLICATED)
def test_counts_of_a_swap_are_those_that_lab_16_predicts(
    kind: str, stack: Stack, config: TransformerConfig, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    swapped, single = load_swapped(Workspace.create(tmp_path), {"data_parallel": kind}), {}
    single = {name: weight.float() for name, weight in weights.items()}
    measured = measure(swapped, config, single, IDS, TRAIN, 4, serving=Serving(7, 5))
    calibration = plain_calibration(config, TRAIN, 4)
    predicted = stack.capstone.predict_swap(stack, config, 4, REPLICATED[kind][0], calibration)
    del predicted["communication_s"]
    assert {key: measured[key] for key in predicted} == predicted
    assert measured["weight_elements_sent"] == 0


def test_a_kind_that_the_layer_does_not_have_is_one_line(tmp_path: Path) -> None:
    workspace = Workspace.create(tmp_path)
    for swaps, message in (
        (
            {"data_parallel": "ring"},
            "cannot be swapped: got 'ring', expected one of solved, reference, replicated-ring",
        ),
        ({"collectives": "replicated-ring"}, "collectives layer cannot be swapped for 'replicated-ring'"),
    ):
        with pytest.raises(InputError, match=message):
            load_swapped(workspace, swaps)
