"""Training on the stack: ranks with the learner's engine, collectives and sharded optimizer.

Dimension letters: D tokens of the data, p ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from mlsys_lab.capstone.job import State, TrainJob
from mlsys_lab.capstone.sheet import check_training
from mlsys_lab.capstone.stack import Stack
from mlsys_lab.capstone.weights import check_weights
from mlsys_lab.comm import Ledger, run
from mlsys_lab.comm.launcher import Backend
from mlsys_lab.configs import TrainConfig, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.models.training import Tokens


@dataclass(frozen=True)
class TrainResult:
    """What a run leaves.

    `losses` are the means of each step before its update, in nats per token; `weights` by name; `states` what each rank
    needs to continue (lab 08's `save_state`); `ledger` all messages.
    """

    losses: list[float]
    weights: dict[str, torch.Tensor]
    states: list[State]
    ledger: Ledger


def train(
    stack: Stack,
    config: TransformerConfig,
    weights: Mapping[str, torch.Tensor],
    ids: Tokens,
    train_config: TrainConfig,
    world_size: int,
    *,
    states: Sequence[State] = (),
    until: int | None = None,
    backend: Backend = "threads",
    limit_s: float = 600.0,
) -> TrainResult:
    """Train a model on ids (D,) with p ranks; its steps are those of `models.training.train`.

    Each rank computes its sequences of every batch; gradients are averaged, sharded and clipped by the norm over all
    ranks, AdamW updates each rank's shard, and weights are gathered (ZeRO stage 1). The run stops after step `until`,
    which is the configuration's last by default, and continues from the `states` of any number of ranks at an earlier
    stop as if it had not stopped. `backend` and `limit_s`, the seconds that a rank may run without a message, are those
    of `comm.run`: deterministic threads, or processes. Raises InputError for fewer sequences in a batch than ranks,
    for states that the data-parallel layer cannot load, and for weights, sequences and data that do not fit the
    configuration; a rank that fails raises RankError.
    """
    check_training(config, train_config, world_size)
    check_weights(config, weights)
    if states and not hasattr(stack.data_parallel, "reshard"):
        raise InputError(
            "the data_parallel layer cannot resume", got=stack.sources["data_parallel"], expected="reshard"
        )
    shards = stack.data_parallel.reshard(states, world_size) if states else [None] * world_size
    until = train_config.steps if until is None else until
    jobs = [TrainJob(stack, config, weights, ids, train_config, shard, until) for shard in shards]
    results, ledger = run(stack.capstone.train_rank, jobs, backend=backend, limit_s=limit_s)
    losses, trained, _ = results[0]
    return TrainResult(losses, trained, [state for *_, state in results if state is not None], ledger)
