"""Tensor and sequence parallelism of a transformer: shards heads, MLP hidden units and vocabulary, as Megatron does."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_reduce import all_reduce
from mlsys_lab.errors import InputError
from mlsys_lab.models.attention import SelfAttention
from mlsys_lab.models.experts import MLP
from mlsys_lab.models.transformer import Transformer
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


def apply_tensor_parallel(model: Transformer, group: Rank, *, sequence_parallel: bool = False) -> Transformer:
    """Shard a model that every rank has in full, in place; it then maps token ids (B, T) to logits (B, T, V/p).

    Each rank keeps N/p query heads with K/p key/value heads, F/p hidden units of each MLP and V/p rows of the
    vocabulary; norms are replicated and stay equal. Attention and MLP each need one all-reduce forward and one
    backward. The matching loss is `vocab_parallel_cross_entropy`.

    sequence_parallel: residual stream and norms hold T/p tokens. Gradients of norms, and of biases added after a sum,
    are then all-reduced in every backward pass, because each rank saw only its own tokens.

    Raises InputError where a dimension does not divide evenly, and for what is not supported here: experts, latent
    attention, parallel blocks, ALiBi, and norms of queries and keys.
    """
    _check(model, group)
    reduce = reduce_scatter_to_sequence_parallel_region if sequence_parallel else reduce_from_tensor_parallel_region

    def copy_input(_module: nn.Module, inputs: Any) -> Any:
        return copy_to_tensor_parallel_region(inputs[0], group), *inputs[1:]

    for block in model.blocks:
        attention, mlp = block.attention, block.mlp
        assert isinstance(attention, SelfAttention) and isinstance(mlp, MLP)
        attention.query = ColumnParallelLinear(attention.query, group)
        attention.key = ColumnParallelLinear(attention.key, group)
        attention.value = ColumnParallelLinear(attention.value, group)
        attention.out = RowParallelLinear(attention.out, group, reduce)
        mlp.up, mlp.down = ColumnParallelLinear(mlp.up, group), RowParallelLinear(mlp.down, group, reduce)
        if mlp.gate is not None:
            mlp.gate = ColumnParallelLinear(mlp.gate, group)
        if sequence_parallel:
            attention.project = mlp.project = partial(sequence_parallel_linears, group=group)
        else:
            attention.register_forward_pre_hook(copy_input)
            mlp.register_forward_pre_hook(copy_input)
    model.embedding = VocabParallelEmbedding(model.embedding, group)
    if model.head is not None:
        model.head = ColumnParallelLinear(model.head, group)
    if sequence_parallel:
        _apply_sequence_parallel(model, group)
    else:
        model.norm.register_forward_hook(lambda _module, _inputs, output: copy_to_tensor_parallel_region(output, group))
    return model


def _apply_sequence_parallel(model: Transformer, group: Rank) -> None:
    """Scatter tokens before the first block, gather them before the head; all-reduce replicated gradients."""

    def scatter_input(_module: nn.Module, inputs: Any) -> Any:
        return scatter_to_sequence_parallel_region(inputs[0], group), *inputs[1:]

    model.blocks[0].register_forward_pre_hook(scatter_input)
    model.norm.register_forward_hook(
        lambda _module, _inputs, output: gather_from_sequence_parallel_region(output, group)
    )
    for parameter in sequence_parallel_parameters(model):
        parameter.register_hook(lambda gradient: all_reduce(group, gradient, Tag.SEQUENCE_PARALLEL_GRADIENTS))  # type: ignore[no-untyped-call]


def sequence_parallel_parameters(model: Transformer) -> list[nn.Parameter]:
    """Replicated parameters that are applied to T/p tokens on each rank: norms, and biases added after a sum."""
    return [
        parameter
        for name, parameter in model.named_parameters()
        if name.startswith(("blocks.", "norm.")) and ("norm." in name or name.endswith(("out.bias", "down.bias")))
    ]


def _check(model: Transformer, group: Rank) -> None:
    c = model.config
    unsupported = {
        "experts": c.experts is not None,
        "latent attention": c.latent is not None,
        "parallel blocks": c.parallel_blocks,
        "ALiBi": c.position == "alibi",
        "norms of queries and keys": c.qk_norm,
    }
    if named := [name for name, present in unsupported.items() if present]:
        raise InputError("tensor parallelism does not support this model", got=f"{c.name} with {', '.join(named)}")
    if c.n_kv_heads % group.size:
        raise InputError("KV heads cannot be divided evenly", got=f"{c.n_kv_heads} over {group.size} ranks")
