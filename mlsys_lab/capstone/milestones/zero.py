"""ZeRO (2019): what 64 ranks of the learner's sharded optimizer and FSDP layers keep, scaled to 7.5 B parameters."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mlsys_lab.capstone.milestones.milestone import Figure, Milestone
from mlsys_lab.capstone.stack import Stack
from mlsys_lab.comm import Rank, run

PARAMS, WORLD_SIZE = 7.5e9, 64
PUBLISHED_GB = {0: 120, 1: 31.4, 2: 16.6, 3: 1.9}
ELEMENTS = 4 * WORLD_SIZE  # of the small layer that is really sharded
ROUNDING_GB = 0.06  # printed with one decimal (1.875 as 1.9, 31.406 as 31.4)


def kept_fractions(stack: Stack) -> tuple[float, float, float]:
    """Fractions that the rank with most keeps of the optimizer's states (12 bytes a parameter), gradients, weights."""
    layer = stack.data_parallel

    def program(rank: Rank, x: torch.Tensor) -> tuple[int, int, int]:
        parameter = torch.nn.Parameter(x.clone())
        optimizer = layer.ShardedOptimizer([parameter], torch.optim.Adam, rank, lr=0.1)
        parameter.grad = torch.ones_like(parameter)
        optimizer.reduce_gradients()
        optimizer.optimizer.step()  # makes the states; the weights are not needed
        (shard,) = optimizer.optimizer.param_groups[0]["params"]
        moments = [state for state in optimizer.optimizer.state[shard].values() if state.ndim]
        states = 4 * (shard.numel() + sum(moment.numel() for moment in moments))  # float32: weight and two moments
        unit = layer.FSDPUnit(lambda x, w: x * w, [x.clone()], rank)
        return states, shard.grad.numel(), unit.shard.numel()

    results, _ = run(program, [torch.ones(ELEMENTS)] * WORLD_SIZE)
    states, gradients, weights = (max(kept) / ELEMENTS for kept in zip(*results, strict=True))
    return states / 12, gradients, weights


def _figures(stack: Stack) -> Iterator[Figure]:
    for stage, published in PUBLISHED_GB.items():
        by_formula = stack.data_parallel.zero_step_cost(int(PARAMS), WORLD_SIZE, stage)[0] / 1e9
        yield Figure(f"stage {stage}: GB, by the formula", published, by_formula, ROUNDING_GB, "one decimal is printed")
    sharded = kept_fractions(stack)
    for stage, published in PUBLISHED_GB.items():
        kept = [fraction if stage >= first else 1.0 for first, fraction in zip((1, 2, 3), sharded, strict=True)]
        counted = PARAMS * sum(size * one for size, one in zip((12, 2, 2), kept, strict=True)) / 1e9
        what = f"stage {stage}: GB, counted on {WORLD_SIZE} ranks"
        yield Figure(what, published, counted, ROUNDING_GB, "one decimal is printed")


ZERO = Milestone(
    "zero",
    2019,
    "7.5 B parameters on 64 GPUs: 120, 31.4, 16.6 and 1.9 GB of model states a GPU",
    "Rajbhandari, Rasley, Ruwase & He, arXiv:1910.02054, Fig. 1 and Table 1 (K = 12)",
    {"data_parallel": ("ShardedOptimizer", "FSDPUnit", "zero_step_cost")},
    "Fractions are counted on 64 ranks that shard one small layer, by what each keeps of states, gradients and "
    "weights; 7.5 B parameters, and 2 + 2 + 12 bytes for each, are the paper's arithmetic.",
    _figures,
)
