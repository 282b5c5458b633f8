"""A transformer whose experts are divided over ranks that have different tokens."""

from __future__ import annotations

from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.models.experts import MixtureOfExperts
from mlsys_lab.models.transformer import Transformer
from mlsys_lab.parallel.expert.layer import ExpertParallelMoE


def apply_expert_parallel(model: Transformer, group: Rank) -> set[nn.Parameter]:
    """Let every mixture of experts keep this rank's E/p experts, in place; returns the parameters of those.

    Their gradients come out as means over the ranks, as data parallelism makes those of all other parameters, so that
    they are to be averaged among the ranks that have the same experts alone. Raises InputError where the ranks cannot
    have equally many.
    """
    own: set[nn.Parameter] = set()
    for block in model.blocks:
        if isinstance(block.mlp, MixtureOfExperts):
            block.mlp = layer = ExpertParallelMoE(block.mlp, group)
            for parameter in layer.experts.parameters():
                parameter.register_hook(lambda gradient: gradient / group.size)  # type: ignore[no-untyped-call]
                own.add(parameter)
    return own
