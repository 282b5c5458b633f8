"""Tensor-parallel layers: linear layers sharded by columns or rows, embedding and loss sharded by vocabulary.

Letters: p ranks, I inputs and O outputs of a linear layer, V vocabulary, D d_model, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.reduce_scatter import all_gather
from mlsys_lab.errors import InputError
from mlsys_lab.parallel.tags import Tag
from mlsys_lab.parallel.tensor.mappings import reduce_from_tensor_parallel_region


class ColumnParallelLinear(nn.Linear):
    """Linear layer sharded by output features: (..., I) -> (..., O/p), without communication.

    Unlike Megatron's, it does not all-reduce the gradient of its input: the caller passes the input through
    `copy_to_tensor_parallel_region`. Built from the full layer, which every rank has. Raises InputError unless p
    divides O.
    """

    def __init__(self, linear: nn.Linear, group: Rank) -> None:
        super().__init__(linear.in_features, linear.out_features // group.size, linear.bias is not None, device="meta")
        self.weight = shard_parameter(linear.weight, 0, group)
        if linear.bias is not None:
            self.bias = shard_parameter(linear.bias, 0, group)


class RowParallelLinear(nn.Linear):
    """Linear layer sharded by input features: (..., I/p) -> (..., O), the sum of the ranks' partial products.

    reduce: how partial products are summed: `reduce_from_tensor_parallel_region`, or with sequence parallelism
    `reduce_scatter_to_sequence_parallel_region`, which leaves each rank the sum for its own tokens. The bias is
    replicated and added once, after the sum. Raises InputError unless p divides I.
    """

    def __init__(
        self,
        linear: nn.Linear,
        group: Rank,
        reduce: Callable[[torch.Tensor, Rank], torch.Tensor] = reduce_from_tensor_parallel_region,
    ) -> None:
        super().__init__(linear.in_features // group.size, linear.out_features, bias=False, device="meta")
        self.weight, self._group, self._reduce = shard_parameter(linear.weight, 1, group), group, reduce
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by this rank's rows of the matrix and sum over the ranks: (..., I/p) -> (..., O)."""
        total = self._reduce(F.linear(x, self.weight), self._group)
        return total if self.bias is None else total + self.bias


class VocabParallelEmbedding(nn.Embedding):
    """Embedding sharded by vocabulary, V/p rows on each rank: token ids (...) -> (..., D), replicated.

    Raises InputError unless p divides V.
    """

    def __init__(self, embedding: nn.Embedding, group: Rank) -> None:
        super().__init__(embedding.num_embeddings // group.size, embedding.embedding_dim, device="meta")
        self.weight, self._group = shard_parameter(embedding.weight, 0, group), group
        self._vocab_size = embedding.num_embeddings

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Look up ids in this rank's rows, use zeros for all others, and all-reduce.

        Raises IndexError for an unknown id, as torch's embedding does.
        """
        if token_ids.numel() and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < self._vocab_size:
            raise IndexError("token outside the vocabulary")
        local_ids, is_local = local_token_ids(token_ids, self.num_embeddings, self._group)
        return reduce_from_tensor_parallel_region(
            F.embedding(local_ids, self.weight) * is_local.unsqueeze(-1), self._group
        )


def vocab_parallel_cross_entropy(logits: torch.Tensor, targets: torch.Tensor, group: Rank) -> torch.Tensor:
    """Mean cross-entropy of vocabulary-parallel logits (T, V/p) and target ids (T,) in the full vocabulary -> scalar.

    Each rank sends three numbers for each token instead of V/p: its largest logit, its sum of exponentials relative to
    that, and the target's logit if the target is in its shard. The backward pass sends nothing (arXiv:1909.08053, §3).
    """
    return vocab_parallel_token_losses(logits, targets, group).mean()


def vocab_parallel_token_losses(logits: torch.Tensor, targets: torch.Tensor, group: Rank) -> torch.Tensor:
    """Cross-entropy of each token, as `vocab_parallel_cross_entropy` averages it: (T, V/p) and (T,) -> (T,).

    For a target outside the vocabulary the result means nothing: the caller must leave it out.
    """
    losses: torch.Tensor = _VocabParallelCrossEntropy.apply(logits, targets, group)  # type: ignore[no-untyped-call]
    return losses


class _VocabParallelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor, group: Rank) -> torch.Tensor:
        local_ids, is_local = local_token_ids(targets, logits.shape[1], group)
        local_max = logits.max(1).values  # (T,)
        local_sum = (logits - local_max[:, None]).exp().sum(1)
        target_logit = logits.gather(1, local_ids[:, None])[:, 0] * is_local
        stats = torch.stack(
            all_gather(group, torch.stack([local_max, local_sum, target_logit]), Tag.VOCAB_PARALLEL_LOSS)
        )  # (p, 3, T)
        global_max = stats[:, 0].max(0).values
        log_sum = global_max + ((stats[:, 0] - global_max).exp() * stats[:, 1]).sum(0).log()
        ctx.save_for_backward(logits, log_sum, local_ids, is_local)
        token_losses: torch.Tensor = log_sum - stats[:, 2].sum(0)  # (T,)
        return token_losses

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None, None]:
        logits, log_sum, local_ids, is_local = ctx.saved_tensors
        probabilities = (logits - log_sum[:, None]).exp()
        probabilities.scatter_add_(1, local_ids[:, None], -is_local.to(logits.dtype)[:, None])
        return probabilities * gradients[0][:, None], None, None


def local_token_ids(token_ids: torch.Tensor, shard_size: int, group: Rank) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices into this rank's vocabulary shard, 0 for ids outside it, and a mask of the ids inside."""
    local_ids = token_ids - group.rank * shard_size
    is_local = (local_ids >= 0) & (local_ids < shard_size)
    return local_ids.where(is_local, torch.zeros_like(local_ids)), is_local


def shard_parameter(parameter: torch.Tensor, dim: int, group: Rank) -> nn.Parameter:
    """This rank's shard of a parameter along `dim`, in its own storage; InputError unless p divides that dimension."""
    length = parameter.shape[dim]
    if length % group.size:
        raise InputError("a dimension cannot be divided evenly", got=f"{length} over {group.size} ranks")
    return nn.Parameter(parameter.detach().chunk(group.size, dim)[group.rank].clone())
