"""Data parallelism in three steps: an all-reduce for each gradient, one for all of them, and buckets that overlap.

Before training, all ranks start from rank 0's parameters (`sync_module_states`). With unequal numbers of tokens, losses
need `loss_weights`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_reduce import all_reduce, all_reduce_steps
from mlsys_lab.comm.collectives.rooted import broadcast
from mlsys_lab.comm.collectives.steps import InFlight
from mlsys_lab.errors import InputError
from mlsys_lab.parallel.buckets import BucketReducer, assign_buckets
from mlsys_lab.parallel.tags import Tag


def sync_module_states(module: nn.Module, group: Rank) -> None:
    """Broadcast rank 0's parameters and buffers, so that all ranks start from the same model."""
    broadcast_tensors([*module.parameters(), *module.buffers()], group)


def sync_frozen_params_and_buffers(module: nn.Module, group: Rank) -> None:
    """Broadcast rank 0's buffers and frozen parameters, which belong to no bucket and no shard."""
    broadcast_tensors([*(one for one in module.parameters() if not one.requires_grad), *module.buffers()], group)


def broadcast_tensors(tensors: Iterable[torch.Tensor], group: Rank) -> None:
    """Overwrite tensors with those of the group's rank 0, one after the other."""
    for tensor in tensors:
        tensor.data.copy_(broadcast(group, tensor.data))


def average_gradients(module: nn.Module, group: Rank) -> None:
    """Step 1: one all-reduce for each parameter, after the backward pass. Each all-reduce pays the full latency."""
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad.copy_(all_reduce(group, parameter.grad, Tag.GRADIENTS) / group.size)


def average_gradients_flat(module: nn.Module, group: Rank) -> None:
    """Step 2: one all-reduce of all gradients flattened, after the backward pass.

    Raises InputError if a trainable parameter has no gradient.
    """
    for bucket in assign_buckets(module.parameters(), float("inf")):
        bucket.write_gradients(all_reduce(group, bucket.read_gradients(), Tag.GRADIENTS) / group.size)


class DDP(nn.Module):
    """Step 3: a module whose gradients are averaged over `group` in buckets, during `backward()`.

    All ranks start from rank 0's parameters and buffers. Every forward pass in training mode first broadcasts rank 0's
    buffers, since those that training changes (a batch norm's running means) see different data on each rank. Call
    `finish_gradient_synchronization()` between `backward()` and the optimizer's step. Buckets hold up to `bucket_bytes`
    of gradients, the last layers' first (Li et al., arXiv:2006.15704). In torch: `DistributedDataParallel`, which waits
    at the end of `backward()` by itself.
    """

    def __init__(self, module: nn.Module, group: Rank, bucket_bytes: float = 25 * 2**20) -> None:
        super().__init__()
        self.module, self._group, self._size = module, group, group.size
        sync_module_states(module, group)
        self._reducer = BucketReducer(
            assign_buckets(module.parameters(), bucket_bytes),
            lambda bucket: InFlight(all_reduce_steps(group, bucket.read_gradients(), Tag.GRADIENTS)),
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module on this rank's part of the batch."""
        if self.training:
            broadcast_tensors(self.module.buffers(), self._group)
        return self.module(*args, **kwargs)

    def no_sync(self) -> AbstractContextManager[None]:
        """Context for gradient accumulation: `backward()` sends nothing. Use it for all micro-batches but the last."""
        return self._reducer.no_sync()

    def finish_gradient_synchronization(self) -> None:
        """Wait until every gradient is the mean over all ranks.

        Raises InputError if a parameter has got no gradient since the last call.
        """
        for bucket, total in self._reducer.finish():
            bucket.write_gradients(total / self._size)


def loss_weights(num_tokens: Sequence[int], group: Rank) -> list[float]:
    """Weights tᵢ·p/Σt for the mean losses of this rank's micro-batches, which have `num_tokens` target tokens each.

    Weighted like this, gradients accumulated over micro-batches and averaged over the p ranks are those of the mean
    loss over ALL tokens of all ranks. Unweighted, tokens of short sequences would count more than those of long ones.
    Costs one scalar all-reduce. A micro-batch that is all padding has weight 0. Raises InputError if no rank
    has a token.
    """
    if any(count < 0 for count in num_tokens):
        raise InputError("tokens of a micro-batch must not be negative", got=list(num_tokens))
    total = int(all_reduce(group, torch.tensor([sum(num_tokens)], device=group.device), Tag.TOKEN_COUNTS))
    if not total:
        raise InputError("no rank has a token", got=f"{list(num_tokens)} here and 0 elsewhere")
    return [count * group.size / total for count in num_tokens]
