"""What a swapped layer gains: predicted by the lab's functions, and measured, next to the stack as it was."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

import torch

from mlsys_lab.capstone.functions import call
from mlsys_lab.capstone.job import Calibration
from mlsys_lab.capstone.measurement import TIMED_STEPS, measure
from mlsys_lab.capstone.settings import Settings
from mlsys_lab.capstone.sheet import COSTS, Cost, Sheet
from mlsys_lab.capstone.stack import Stack
from mlsys_lab.capstone.swaps import DATA_PARALLEL, REPLICATED
from mlsys_lab.comm import Rank, run
from mlsys_lab.models.training import Tokens, one_thread

Weights = Mapping[str, torch.Tensor]


class Gain(NamedTuple):
    """A cost before and after a layer was swapped, as predicted and as measured."""

    key: str
    predicted: float
    predicted_swapped: float
    measured: float
    measured_swapped: float

    @property
    def cost(self) -> Cost:
        """What the number is."""
        return COSTS[self.key]

    def format(self, number: float) -> str:
        """One of the numbers as text."""
        return f"{number:{',.4g' if self.cost.kind == 'seconds' else ',.0f'}}"


def predict_swapped(
    stack: Stack, settings: Settings, calibration: Calibration, sheet: Sheet, swaps: Mapping[str, str]
) -> dict[str, float]:
    """Numbers of a sheet that a swap changes: none but those of replicated optimizers, by lab 16's `predict_swap`.

    With these, no rank gathers weights, and a training step takes as much less as its communication.
    """
    kind = swaps.get(DATA_PARALLEL)
    if kind not in REPLICATED:
        return {}
    algorithm, _ = REPLICATED[kind]
    changed: dict[str, float] = call(
        stack, "capstone", "predict_swap", stack, settings.model, settings.ranks, algorithm, calibration
    )
    step_s = sheet["training_step_s"] - sheet["communication_s"] + changed["communication_s"]
    return changed | {"training_step_s": step_s, "weight_elements_sent": 0, "weight_messages": 0}


def measure_swapped(
    stack: Stack, settings: Settings, weights: Weights, ids: Tokens, swaps: Mapping[str, str]
) -> dict[str, float]:
    """Measure a stack with swapped layers as `measure` does; of replicated optimizers, time their all-reduce."""
    ranks = settings.ranks
    measured = measure(stack, settings.model, weights, ids, settings.train, ranks, serving=settings.serving)
    if swaps.get(DATA_PARALLEL) in REPLICATED:
        optimizer, size = stack.data_parallel.ShardedOptimizer, sum(one.numel() for one in weights.values())

        def time_all_reduce(rank: Rank, gradients: torch.Tensor) -> float:
            seconds = []
            for _ in range(TIMED_STEPS):
                start = time.perf_counter()
                optimizer.all_reduce(rank, gradients)
                seconds.append(time.perf_counter() - start)
            return min(seconds)

        with one_thread():
            measured["communication_s"] = run(time_all_reduce, [torch.zeros(size) for _ in range(ranks)]).results[0]
    return measured


def compare_swapped(
    sheet: Sheet, changed: Mapping[str, float], measured: Mapping[str, float], measured_swapped: Mapping[str, float]
) -> list[Gain]:
    """The costs that the swap was predicted to change, and all seconds."""
    keys = [key for key, cost in COSTS.items() if key in changed or cost.kind == "seconds"]
    return [Gain(key, sheet[key], changed.get(key, sheet[key]), measured[key], measured_swapped[key]) for key in keys]
