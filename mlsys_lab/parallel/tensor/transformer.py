"""Tensor and sequence parallelism of a transformer: shards heads, MLP hidden units and vocabulary, as Megatron does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_reduce import all_reduce
from mlsys_lab.errors import InputError
from mlsys_lab.models.attention import SelfAttention
from mlsys_lab.models.experts import MLP, MixtureOfExperts
from mlsys_lab.models.latent import LatentSelfAttention
from mlsys_lab.models.transformer import Block, Transformer
from mlsys_lab.parallel.tags import Tag
from mlsys_lab.parallel.tensor.layers import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from mlsys_lab.parallel.tensor.mappings import (
    copy_to_tensor_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    scatter_to_sequence_parallel_region,
    sequence_parallel_linears,
)

RegionMapping = Callable[[torch.Tensor, Rank], torch.Tensor]

REPLICATED_INSIDE = ("query_norm", "key_norm", "latent_norm", "router")
"""Modules that every rank has in full and applies within a tensor-parallel region."""


def apply_tensor_parallel(model: Transformer, group: Rank, *, sequence_parallel: bool = False) -> Transformer:
    """Shard a model that every rank has in full, in place; it then maps token ids (B, T) to logits (B, T, V/p).

    Each rank keeps N/p query heads with K/p key/value heads, F/p hidden units of each MLP and of each expert, and V/p
    rows of the vocabulary. Norms, routers and the projections to latent vectors are replicated and stay equal.
    Attention and MLP each need one all-reduce forward and one backward: experts' partial results are combined before
    they are summed. The matching loss is `vocab_parallel_cross_entropy`.

    sequence_parallel: residual stream and norms hold T/p tokens.

    Gradients of `partial_gradient_parameters` are all-reduced in every backward pass.

    Raises InputError where a dimension does not divide evenly, and for what is not supported here: parallel blocks,
    ALiBi, norms over all heads' queries, and biases of experts.
    """
    _check(model, group)
    begin = gather_from_sequence_parallel_region if sequence_parallel else copy_to_tensor_parallel_region
    reduce = reduce_scatter_to_sequence_parallel_region if sequence_parallel else reduce_from_tensor_parallel_region

    def begin_region(module: SelfAttention | MLP) -> None:
        if sequence_parallel:
            module.project = partial(sequence_parallel_linears, group=group)
        else:
            module.register_forward_pre_hook(lambda _module, inputs: (begin(inputs[0], group), *inputs[1:]))

    for block in model.blocks:
        assert isinstance(block, Block)
        attention = block.attention
        if isinstance(attention, LatentSelfAttention):
            _shard_latent_attention(attention, group, begin, reduce)
        else:
            _shard_attention(attention, group, reduce)
            begin_region(attention)
        if isinstance(block.mlp, MixtureOfExperts):
            _shard_mixture(block, block.mlp, group, begin, reduce)
        else:
            _shard_mlp(block.mlp, group, reduce)
            begin_region(block.mlp)
    model.embedding = VocabParallelEmbedding(model.embedding, group)
    if model.head is not None:
        model.head = ColumnParallelLinear(model.head, group)
    if sequence_parallel:
        model.blocks[0].register_forward_pre_hook(
            lambda _module, inputs: (scatter_to_sequence_parallel_region(inputs[0], group), *inputs[1:])
        )
    model.norm.register_forward_hook(lambda _module, _inputs, output: begin(output, group))
    for parameter in partial_gradient_parameters(model, sequence_parallel=sequence_parallel):
        parameter.register_hook(lambda gradient: all_reduce(group, gradient, Tag.REPLICATED_GRADIENTS))  # type: ignore[no-untyped-call]
    return model


def _shard_attention(attention: SelfAttention, group: Rank, reduce: RegionMapping) -> None:
    attention.query = ColumnParallelLinear(attention.query, group)
    attention.key = ColumnParallelLinear(attention.key, group)
    attention.value = ColumnParallelLinear(attention.value, group)
    attention.out = RowParallelLinear(attention.out, group, reduce)


def _shard_latent_attention(
    attention: LatentSelfAttention, group: Rank, begin: RegionMapping, reduce: RegionMapping
) -> None:
    """Shard the up-projections by heads; the region begins with the latent vectors, which are narrower than D."""
    attention.heads //= group.size
    attention.query = ColumnParallelLinear(attention.query, group)
    attention.latent_up = ColumnParallelLinear(attention.latent_up, group)
    attention.out = RowParallelLinear(attention.out, group, reduce)
    attention.latent_down.register_forward_hook(lambda _module, _inputs, output: begin(output, group))
    if attention.query_down is None:
        attention.query.register_forward_pre_hook(lambda _module, inputs: (begin(inputs[0], group),))
    else:
        attention.query_down.register_forward_hook(lambda _module, _inputs, output: begin(output, group))


def _shard_mlp(mlp: MLP, group: Rank, reduce: RegionMapping) -> None:
    mlp.up, mlp.down = ColumnParallelLinear(mlp.up, group), RowParallelLinear(mlp.down, group, reduce)
    if mlp.gate is not None:
        mlp.gate = ColumnParallelLinear(mlp.gate, group)


def _shard_mixture(
    block: Block, mixture: MixtureOfExperts, group: Rank, begin: RegionMapping, reduce: RegionMapping
) -> None:
    """Shard every expert of a block's mixture; the region ends after the experts' results are combined.

    Hooks of the norms around the mixture begin and end it, so that expert parallelism can replace the mixture later.
    """
    assert block.mlp_norm is not None
    for expert in [*mixture.experts, *mixture.shared]:
        assert isinstance(expert, MLP)
        _shard_mlp(expert, group, lambda partial_result, _group: partial_result)
    block.mlp_norm.register_forward_hook(lambda _module, _inputs, output: begin(output, group))
    block.mlp_post_norm.register_forward_pre_hook(lambda _module, inputs: (reduce(inputs[0], group),))


def partial_gradient_parameters(model: Transformer, *, sequence_parallel: bool) -> list[nn.Parameter]:
    """Replicated parameters whose gradient on one rank is a partial sum.

    Inside a region a rank sees only its own heads or hidden units. With sequence parallelism it sees only T/p tokens
    between the regions: in norms, in projections to latent vectors, and in biases added after a sum.
    """
    inside = tuple(f"{module}.weight" for module in REPLICATED_INSIDE)
    between = ("norm.weight", "norm.bias", "out.bias", "down.bias", "query_down.weight", "latent_down.weight")
    return [
        parameter
        for name, parameter in model.named_parameters()
        if name.startswith(("blocks.", "norm.")) and name.endswith(inside + between if sequence_parallel else inside)
    ]


def _check(model: Transformer, group: Rank) -> None:
    c = model.config
    unsupported = {
        "parallel blocks": c.parallel_blocks,
        "ALiBi": c.position == "alibi",
        "norms over all heads": c.qk_norm_all_heads,
        "biases of experts": c.experts is not None and c.mlp_bias,
    }
    if named := [name for name, present in unsupported.items() if present]:
        raise InputError("tensor parallelism does not support this model", got=f"{c.name} with {', '.join(named)}")
    if c.n_kv_heads % group.size:
        raise InputError("KV heads cannot be divided evenly", got=f"{c.n_kv_heads} over {group.size} ranks")
