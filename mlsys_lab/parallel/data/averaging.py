"""Gradients averaged after the backward pass: parameter by parameter, then as one array."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_reduce import ring
from mlsys_lab.comm.collectives.rooted import broadcast_tree
from mlsys_lab.parallel.flat import assign_buckets

GRADIENTS = "gradients"
"""The purpose with which the ledger counts messages of gradients."""


def sync_module_states(module: nn.Module, group: Rank) -> None:
    """Give every rank the parameters and buffers of the group's rank 0, so that all begin with the same model."""
    broadcast_tensors([*module.parameters(), *module.buffers()], group)


def sync_untrained_states(module: nn.Module, group: Rank) -> None:
    """Give every rank rank 0's buffers and the parameters that are not trained, which no shard and no bucket holds."""
    broadcast_tensors([*(one for one in module.parameters() if not one.requires_grad), *module.buffers()], group)


def broadcast_tensors(tensors: Iterable[torch.Tensor], group: Rank) -> None:
    """Overwrite tensors with those of the group's rank 0, one after the other."""
    for tensor in tensors:
        tensor.data.copy_(broadcast_tree(group, tensor.data))


def average_gradients(module: nn.Module, group: Rank) -> None:
    """Step 1: one all-reduce for each parameter. Small ones cost as much latency as large ones."""
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad.copy_(ring(group, parameter.grad, GRADIENTS) / group.size)


def average_gradients_flat(module: nn.Module, group: Rank) -> None:
    """Step 2: one all-reduce of all gradients laid end to end. No message leaves before the backward pass has ended.

    Raises InputError where a parameter that is trained has no gradient.
    """
    for bucket in assign_buckets(module.parameters(), float("inf")):
        bucket.write_gradients(ring(group, bucket.read_gradients(), GRADIENTS) / group.size)
