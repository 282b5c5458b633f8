"""Training on the stack: ranks with the learner's engine, collectives and sharded optimizer.

Dimension letters: D tokens of the data, B sequences of a batch, T tokens of a sequence, p ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mlsys_lab.capstone.model import GPT
from mlsys_lab.capstone.stack import Stack
from mlsys_lab.comm import Ledger, Rank, run
from mlsys_lab.comm.launcher import Backend
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.models.training import BETAS, GRADIENT_NORM, WEIGHT_DECAY, Batches, Tokens, learning_rate, windows
from mlsys_lab.parallel.train.trainer import TrainConfig
from mlsys_lab.validation import require_integer

State = dict[str, torch.Tensor]
"""What a rank needs to continue: its shard of the weights and of the optimizer's states, and its position."""


@dataclass(frozen=True)
class TrainResult:
    """What a run leaves.

    `losses` are the means of each step before its update, in nats per token; `weights` by name; `states` what each rank
    needs to continue (lab 08's `save_state`; none from the reference layer); `ledger` all messages.
    """

    losses: list[float]
    weights: dict[str, torch.Tensor]
    states: list[State]
    ledger: Ledger


@dataclass(frozen=True)
class RankInput:
    """What a rank is given; it copies the weights. `state` is its shard of an earlier run's."""

    stack: Stack
    config: TransformerConfig
    weights: Mapping[str, torch.Tensor]
    ids: Tokens
    train: TrainConfig
    state: State | None
    until: int


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
    for states that the data-parallel layer cannot load, and as `GPT` and `Batches` do; a rank that fails raises
    RankError.
    """
    require_integer("world_size", world_size)
    if train_config.batch_size < world_size:
        raise InputError("a rank without sequences", got=f"{train_config.batch_size} for {world_size} ranks")
    if states and not hasattr(stack.data_parallel, "reshard"):
        raise InputError(
            "the data_parallel layer cannot resume", got=stack.sources["data_parallel"], expected="reshard"
        )
    shards = stack.data_parallel.reshard(states, world_size) if states else [None] * world_size
    until = train_config.steps if until is None else until
    inputs = [RankInput(stack, config, weights, ids, train_config, shard, until) for shard in shards]
    results, ledger = run(train_rank, inputs, backend=backend, limit_s=limit_s)
    losses, trained, _ = results[0]
    return TrainResult(losses, trained, [state for *_, state in results if state is not None], ledger)


def train_rank(rank: Rank, given: RankInput) -> tuple[list[float], dict[str, torch.Tensor], State | None]:
    """Train as one rank; returns the mean losses of all ranks, the weights, and this rank's state."""
    layer, config = given.stack.data_parallel, given.train
    model = GPT(given.stack.engine, given.config, {name: one.detach().clone() for name, one in given.weights.items()})
    leaves = list(model.parameters.values())
    parameters = [nn.Parameter(leaf.data) for leaf in leaves]  # the optimizer's view of the leaves' memory
    options = {"lr": config.lr, "betas": BETAS, "weight_decay": WEIGHT_DECAY}
    optimizer = layer.ShardedOptimizer(parameters, torch.optim.AdamW, rank, **options)
    groups = optimizer.optimizer.param_groups
    shards = [shard for group in groups for shard in group["params"]]
    batches = Batches(len(given.ids), config.batch_size, config.seq_len, config.seed)
    losses, done = [], layer.load_state(optimizer, given.state) if given.state else 0
    for step, starts in zip(range(1, given.until + 1), batches, strict=False):
        if step <= done:
            continue
        _share_weights(parameters, leaves)
        sequences = windows(given.ids, starts, config.seq_len).tensor_split(rank.size)[rank.rank]
        (weight,) = layer.loss_weights([sequences[:, 1:].numel()], rank)
        loss = model.loss(sequences) * weight  # the mean of the ranks' losses is that of all tokens
        loss.backward()
        _move_gradients(leaves, parameters)
        optimizer.reduce_gradients()
        layer.clip_grad_norm(shards, GRADIENT_NORM, rank)
        for group in groups:
            group["lr"] = learning_rate(step, config.steps, config.lr)
        optimizer.step()
        losses.append(given.stack.collectives.all_reduce(rank, loss.data.reshape(1)).item() / rank.size)
    _share_weights(parameters, leaves)
    state = layer.save_state(optimizer, max(done, given.until)) if hasattr(layer, "save_state") else None
    return losses, {name: leaf.data for name, leaf in model.parameters.items()}, state


def _move_gradients(leaves: list[Any], parameters: list[nn.Parameter]) -> None:
    """Give the optimizer the gradients that the engine has left in its leaves, and free the leaves for the next."""
    for leaf, parameter in zip(leaves, parameters, strict=True):
        parameter.grad, leaf.grad = leaf.grad, None


def _share_weights(parameters: list[nn.Parameter], leaves: list[Any]) -> None:
    """Let the engine's leaves be the optimizer's parameters, also where an optimizer replaced their memory."""
    for parameter, leaf in zip(parameters, leaves, strict=True):
        leaf.data = parameter.data
