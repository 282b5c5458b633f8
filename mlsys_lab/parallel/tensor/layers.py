"""Layers of which each rank has a part: columns of a matrix, rows of a matrix, tokens of a vocabulary.

Letters: p ranks, I inputs and O outputs of a linear layer, V tokens of a vocabulary, D d_model.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab.comm import Rank
from mlsys_lab.errors import InputError
from mlsys_lab.parallel.tensor.regions import reduce_from_tensor_parallel_region


def ColumnParallelLinear(linear: nn.Linear, group: Rank) -> nn.Linear:
    """This rank's O/p outputs of a linear layer, as a layer of its own: (..., I) -> (..., O/p).

    Nothing is sent. Raises InputError where the ranks cannot have equal parts.
    """
    part = nn.Linear(linear.in_features, linear.out_features // group.size, bias=linear.bias is not None)
    part.weight = shard_parameter(linear.weight, 0, group)
    if linear.bias is not None:
        part.bias = shard_parameter(linear.bias, 0, group)
    return part


class RowParallelLinear(nn.Linear):
    """A linear layer of which each rank has I/p inputs: (..., I/p) -> (..., O), the sum of what the ranks work out.

    add_up: what sums the ranks' partial results, or with sequence parallelism `scatter`, which gives each rank
    its tokens of the sum. The bias is added once, to the sum. Raises InputError where the ranks cannot have equal
    parts.
    """

    def __init__(
        self,
        linear: nn.Linear,
        group: Rank,
        add_up: Callable[[torch.Tensor, Rank], torch.Tensor] = reduce_from_tensor_parallel_region,
    ) -> None:
        super().__init__(linear.in_features // group.size, linear.out_features, bias=False)
        self.weight, self._group, self._add_up = shard_parameter(linear.weight, 1, group), group, add_up
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by this rank's rows and add up over the ranks: (..., I/p) -> (..., O)."""
        total = self._add_up(F.linear(x, self.weight), self._group)
        return total if self.bias is None else total + self.bias


class VocabParallelEmbedding(nn.Embedding):
    """An embedding of which each rank has V/p tokens: ids (...) -> (..., D), whole on every rank.

    Raises InputError where the ranks cannot have equal parts.
    """

    def __init__(self, embedding: nn.Embedding, group: Rank) -> None:
        super().__init__(embedding.num_embeddings // group.size, embedding.embedding_dim)
        self.weight, self._group = shard_parameter(embedding.weight, 0, group), group
        self._tokens = embedding.num_embeddings

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Look up the tokens that this rank has, zeros for others, and add up. IndexError beyond the vocabulary."""
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < self._tokens:
            raise IndexError("token outside the vocabulary")
        here, inside = local_token_ids(tokens, self.num_embeddings, self._group)
        return reduce_from_tensor_parallel_region(F.embedding(here, self.weight) * inside.unsqueeze(-1), self._group)


def local_token_ids(tokens: torch.Tensor, count: int, group: Rank) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids within this rank's `count` tokens, 0 for tokens that other ranks have, and which are its own (bool)."""
    here = tokens - group.rank * count
    inside = (here >= 0) & (here < count)
    return here.where(inside, torch.zeros_like(here)), inside


def shard_parameter(parameter: torch.Tensor, dim: int, group: Rank) -> nn.Parameter:
    """This rank's part of a parameter along `dim`, in storage of its own; InputError where parts are not equal."""
    length = parameter.shape[dim]
    if length % group.size:
        raise InputError("a dimension cannot be divided evenly", got=f"{length} over {group.size} ranks")
    return nn.Parameter(parameter.detach().chunk(group.size, dim)[group.rank].clone())
