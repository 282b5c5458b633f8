"""A transformer divided as Megatron divides it: heads, hidden units and vocabulary over the ranks."""

from __future__ import annotations

from typing import Any

from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.errors import InputError
from mlsys_lab.models.attention import SelfAttention
from mlsys_lab.models.experts import MLP
from mlsys_lab.models.transformer import Transformer
from mlsys_lab.parallel.tensor.layers import RowLinear, VocabularyEmbedding, take_columns
from mlsys_lab.parallel.tensor.regions import enter


def divide_transformer(model: Transformer, group: Rank) -> Transformer:
    """Keep this rank's part of a model that all ranks have whole, in place: ids (B, T) -> logits (B, T, V/p).

    A rank keeps N/p query heads with K/p key/value heads, F/p hidden units of each MLP and V/p tokens; norms are whole
    on every rank and stay equal. Attention and MLP send an all-reduce forward and one backward each. The loss is
    `divided_cross_entropy`. Raises InputError where a dimension cannot be divided evenly, and for experts, latent
    attention, parallel blocks, ALiBi and norms of queries and keys, which are not divided here.
    """
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

    def enter_here(_module: nn.Module, inputs: Any) -> Any:
        return enter(inputs[0], group), *inputs[1:]

    for block in model.blocks:
        attention, mlp = block.attention, block.mlp
        assert isinstance(attention, SelfAttention) and isinstance(mlp, MLP)
        attention.query, attention.key, attention.value = (
            take_columns(linear, group) for linear in (attention.query, attention.key, attention.value)
        )
        attention.out = RowLinear(attention.out, group)
        mlp.up, mlp.down = take_columns(mlp.up, group), RowLinear(mlp.down, group)
        if mlp.gate is not None:
            mlp.gate = take_columns(mlp.gate, group)
        attention.register_forward_pre_hook(enter_here)
        mlp.register_forward_pre_hook(enter_here)
    model.embedding = VocabularyEmbedding(model.embedding, group)
    if model.head is not None:
        model.head = take_columns(model.head, group)
    model.norm.register_forward_hook(lambda _module, _inputs, output: enter(output, group))
    return model
