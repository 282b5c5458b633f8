"""A transformer divided as Megatron divides it: heads, hidden units and vocabulary over the ranks."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_reduce import ring
from mlsys_lab.errors import InputError
from mlsys_lab.models.attention import SelfAttention
from mlsys_lab.models.experts import MLP
from mlsys_lab.models.transformer import Transformer
from mlsys_lab.parallel.tensor.layers import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from mlsys_lab.parallel.tensor.regions import copy_to_tensor_parallel_region, reduce_from_tensor_parallel_region
from mlsys_lab.parallel.tensor.sequence import gather, scatter, sequence_parallel_linears, split

REPLICATED_GRADIENTS = "gradients of copies"
"""The purpose with which the ledger counts gradients of parameters that all ranks have, each seen by some tokens."""


def apply_tensor_parallel(model: Transformer, group: Rank, *, sequence_parallel: bool = False) -> Transformer:
    """Keep this rank's part of a model that all ranks have whole, in place: ids (B, T) -> logits (B, T, V/p).

    A rank keeps N/p query heads with K/p key/value heads, F/p hidden units of each MLP and V/p tokens; norms are whole
    on every rank and stay equal. Attention and MLP send an all-reduce forward and one backward each. The loss is
    `vocab_parallel_cross_entropy`.

    sequence_parallel: what goes from block to block, and the norms between, are of T/p tokens. Norms and biases behind
    a sum then see some tokens each, so that every backward pass sums their gradients over the ranks.

    Raises InputError where a dimension cannot be divided evenly, and for experts, latent attention, parallel blocks,
    ALiBi and norms of queries and keys, which are not divided here.
    """
    _check(model, group)
    add_up = scatter if sequence_parallel else reduce_from_tensor_parallel_region

    def enter_here(_module: nn.Module, inputs: Any) -> Any:
        return copy_to_tensor_parallel_region(inputs[0], group), *inputs[1:]

    for block in model.blocks:
        attention, mlp = block.attention, block.mlp
        assert isinstance(attention, SelfAttention) and isinstance(mlp, MLP)
        attention.query, attention.key, attention.value = (
            ColumnParallelLinear(linear, group) for linear in (attention.query, attention.key, attention.value)
        )
        attention.out = RowParallelLinear(attention.out, group, add_up)
        mlp.up, mlp.down = ColumnParallelLinear(mlp.up, group), RowParallelLinear(mlp.down, group, add_up)
        if mlp.gate is not None:
            mlp.gate = ColumnParallelLinear(mlp.gate, group)
        if sequence_parallel:
            attention.project = mlp.project = partial(sequence_parallel_linears, group=group)
        else:
            attention.register_forward_pre_hook(enter_here)
            mlp.register_forward_pre_hook(enter_here)
    model.embedding = VocabParallelEmbedding(model.embedding, group)
    if model.head is not None:
        model.head = ColumnParallelLinear(model.head, group)
    if sequence_parallel:
        _divide_sequence(model, group)
    else:
        model.norm.register_forward_hook(lambda _module, _inputs, output: copy_to_tensor_parallel_region(output, group))
    return model


def _divide_sequence(model: Transformer, group: Rank) -> None:
    """Divide tokens before the first block, gather them before the head, and sum gradients of what sees some alone."""

    def split_here(_module: nn.Module, inputs: Any) -> Any:
        return split(inputs[0], group), *inputs[1:]

    model.blocks[0].register_forward_pre_hook(split_here)
    model.norm.register_forward_hook(lambda _module, _inputs, output: gather(output, group))
    for parameter in sequence_parallel_parameters(model):
        parameter.register_hook(lambda gradient: ring(group, gradient, REPLICATED_GRADIENTS))  # type: ignore[no-untyped-call]


def sequence_parallel_parameters(model: Transformer) -> list[nn.Parameter]:
    """Parameters that sequence parallelism applies to 1/p of the tokens: norms, and biases behind a sum."""
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
    if named := [name for name, there in unsupported.items() if there]:
        raise InputError("this model is not divided here", got=f"{c.name} with {', '.join(named)}")
    if c.n_kv_heads % group.size:
        raise InputError("heads cannot be divided evenly", got=f"{c.n_kv_heads} of keys over {group.size} ranks")
