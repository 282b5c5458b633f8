"""Under which names, and how turned or stacked, Hugging Face checkpoints keep the weights of `Transformer`.

Dimension letters: D d_model, F hidden width of the MLP, N query heads, H head_dim.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from mlsys_lab.configs import TransformerConfig


@dataclass(frozen=True)
class Stored:
    """Where a weight of ours is: the tensor's name in the file, and which part of it.

    `transposed`: kept as (inputs, outputs), as GPT-2's Conv1D does. `parts` matrices are stacked along the outputs, of
    which ours is number `part`; `by_head`: they alternate head by head, (N, parts, H), as in BLOOM.
    """

    name: str
    transposed: bool = False
    part: int = 0
    parts: int = 1
    by_head: bool = False

    def shape(self, ours: torch.Size) -> tuple[int, ...]:
        """Shape that the tensor in the file must have, from the shape `ours` of the weight to fill."""
        stacked = (ours[0] * self.parts, *ours[1:])
        return stacked[::-1] if self.transposed else stacked

    def take(self, stored: torch.Tensor, config: TransformerConfig) -> torch.Tensor:
        """Cut a weight of our shape out of the tensor in the file."""
        outputs_first = stored.mT if self.transposed and stored.ndim == 2 else stored
        if self.by_head:
            split = outputs_first.reshape(config.n_heads, self.parts, -1, *outputs_first.shape[1:])
            return split[:, self.part].flatten(0, 1)  # (N·H, ...)
        return outputs_first.chunk(self.parts)[self.part]


Layout = Mapping[str, Stored]
"""Where a checkpoint keeps each weight: `Stored` by the name of our module, with * for numbers in both names."""

GPT2: Layout = {
    "embedding": Stored("transformer.wte"),
    "positions": Stored("transformer.wpe"),
    "blocks.*.attention_norm": Stored("transformer.h.*.ln_1"),
    "blocks.*.attention.query": Stored("transformer.h.*.attn.c_attn", transposed=True, part=0, parts=3),
    "blocks.*.attention.key": Stored("transformer.h.*.attn.c_attn", transposed=True, part=1, parts=3),
    "blocks.*.attention.value": Stored("transformer.h.*.attn.c_attn", transposed=True, part=2, parts=3),
    "blocks.*.attention.out": Stored("transformer.h.*.attn.c_proj", transposed=True),
    "blocks.*.mlp_norm": Stored("transformer.h.*.ln_2"),
    "blocks.*.mlp.up": Stored("transformer.h.*.mlp.c_fc", transposed=True),
    "blocks.*.mlp.down": Stored("transformer.h.*.mlp.c_proj", transposed=True),
    "norm": Stored("transformer.ln_f"),
    "head": Stored("lm_head"),
}

BLOOM: Layout = {
    "embedding": Stored("transformer.word_embeddings"),
    "embedding_norm": Stored("transformer.word_embeddings_layernorm"),
    "blocks.*.attention_norm": Stored("transformer.h.*.input_layernorm"),
    "blocks.*.attention.query": Stored("transformer.h.*.self_attention.query_key_value", part=0, parts=3, by_head=True),
    "blocks.*.attention.key": Stored("transformer.h.*.self_attention.query_key_value", part=1, parts=3, by_head=True),
    "blocks.*.attention.value": Stored("transformer.h.*.self_attention.query_key_value", part=2, parts=3, by_head=True),
    "blocks.*.attention.out": Stored("transformer.h.*.self_attention.dense"),
    "blocks.*.mlp_norm": Stored("transformer.h.*.post_attention_layernorm"),
    "blocks.*.mlp.up": Stored("transformer.h.*.mlp.dense_h_to_4h"),
    "blocks.*.mlp.down": Stored("transformer.h.*.mlp.dense_4h_to_h"),
    "norm": Stored("transformer.ln_f"),
    "head": Stored("lm_head"),
}

LLAMA: Layout = {
    "embedding": Stored("model.embed_tokens"),
    "blocks.*.attention_norm": Stored("model.layers.*.input_layernorm"),
    "blocks.*.attention.query": Stored("model.layers.*.self_attn.q_proj"),
    "blocks.*.attention.key": Stored("model.layers.*.self_attn.k_proj"),
    "blocks.*.attention.value": Stored("model.layers.*.self_attn.v_proj"),
    "blocks.*.attention.query_norm": Stored("model.layers.*.self_attn.q_norm"),
    "blocks.*.attention.key_norm": Stored("model.layers.*.self_attn.k_norm"),
    "blocks.*.attention.out": Stored("model.layers.*.self_attn.o_proj"),
    "blocks.*.mlp_norm": Stored("model.layers.*.post_attention_layernorm"),
    "blocks.*.mlp.gate": Stored("model.layers.*.mlp.gate_proj"),
    "blocks.*.mlp.up": Stored("model.layers.*.mlp.up_proj"),
    "blocks.*.mlp.down": Stored("model.layers.*.mlp.down_proj"),
    "blocks.*.mlp.router": Stored("model.layers.*.block_sparse_moe.gate"),
    "blocks.*.mlp.experts.*.gate": Stored("model.layers.*.block_sparse_moe.experts.*.w1"),
    "blocks.*.mlp.experts.*.up": Stored("model.layers.*.block_sparse_moe.experts.*.w3"),
    "blocks.*.mlp.experts.*.down": Stored("model.layers.*.block_sparse_moe.experts.*.w2"),
    "norm": Stored("model.norm"),
    "head": Stored("lm_head"),
}

LAYOUTS: Mapping[str, Layout] = {
    "gpt2": GPT2,
    "bloom": BLOOM,
    "llama": LLAMA,
    "mistral": LLAMA,
    "mixtral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
}
"""Layout of published checkpoints, by `model_type` of their config.json."""

NO_WEIGHTS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
"""Endings of names of buffers in old checkpoints, which follow from the configuration and are not loaded."""


def locate(weight: str, layout: Layout) -> Stored:
    """Where the checkpoint keeps the weight that our `Transformer` calls `weight`.

    >>> locate("blocks.7.mlp.experts.2.up.weight", LLAMA).name
    'model.layers.7.block_sparse_moe.experts.2.w3.weight'
    """
    module, _, kind = weight.rpartition(".")
    stored = layout[re.sub(r"\d+", "*", module)]
    numbers = iter(re.findall(r"\d+", module))
    return replace(stored, name=re.sub(r"\*", lambda _: next(numbers), stored.name) + f".{kind}")
