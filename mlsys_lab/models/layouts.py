"""Names and layouts of `Transformer`'s weights in Hugging Face checkpoints.

Dimension letters: D d_model, F hidden size of the MLP, N query heads, H head_dim.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from mlsys_lab.configs import TransformerConfig


@dataclass(frozen=True)
class StoredWeight:
    """Location of one weight in a checkpoint: the tensor's name, and which part of it.

    `transposed`: stored as (inputs, outputs), like GPT-2's Conv1D. `parts` matrices are stacked along the outputs, ours
    being number `part`; `by_head`: they alternate head by head, (N, parts, H), as in BLOOM.
    """

    name: str
    transposed: bool = False
    part: int = 0
    parts: int = 1
    by_head: bool = False

    def shape(self, ours: torch.Size) -> tuple[int, ...]:
        """Shape of the stored tensor, from the shape `ours` of the weight to fill."""
        stacked = (ours[0] * self.parts, *ours[1:])
        return stacked[::-1] if self.transposed else stacked

    def take(self, stored: torch.Tensor, config: TransformerConfig) -> torch.Tensor:
        """Extract our weight from the stored tensor."""
        outputs_first = stored.mT if self.transposed and stored.ndim == 2 else stored
        if self.by_head:
            split = outputs_first.reshape(config.n_heads, self.parts, -1, *outputs_first.shape[1:])
            return split[:, self.part].flatten(0, 1)  # (N·H, ...)
        return outputs_first.chunk(self.parts)[self.part]


Layout = Mapping[str, StoredWeight]
"""Location of each weight: `StoredWeight` by the name of our module, with * for numbers in both names."""

GPT2: Layout = {
    "embedding": StoredWeight("transformer.wte"),
    "positions": StoredWeight("transformer.wpe"),
    "blocks.*.attention_norm": StoredWeight("transformer.h.*.ln_1"),
    "blocks.*.attention.query": StoredWeight("transformer.h.*.attn.c_attn", transposed=True, part=0, parts=3),
    "blocks.*.attention.key": StoredWeight("transformer.h.*.attn.c_attn", transposed=True, part=1, parts=3),
    "blocks.*.attention.value": StoredWeight("transformer.h.*.attn.c_attn", transposed=True, part=2, parts=3),
    "blocks.*.attention.out": StoredWeight("transformer.h.*.attn.c_proj", transposed=True),
    "blocks.*.mlp_norm": StoredWeight("transformer.h.*.ln_2"),
    "blocks.*.mlp.up": StoredWeight("transformer.h.*.mlp.c_fc", transposed=True),
    "blocks.*.mlp.down": StoredWeight("transformer.h.*.mlp.c_proj", transposed=True),
    "norm": StoredWeight("transformer.ln_f"),
    "head": StoredWeight("lm_head"),
}

BLOOM: Layout = {
    "embedding": StoredWeight("transformer.word_embeddings"),
    "embedding_norm": StoredWeight("transformer.word_embeddings_layernorm"),
    "blocks.*.attention_norm": StoredWeight("transformer.h.*.input_layernorm"),
    "blocks.*.attention.query": StoredWeight(
        "transformer.h.*.self_attention.query_key_value", part=0, parts=3, by_head=True
    ),
    "blocks.*.attention.key": StoredWeight(
        "transformer.h.*.self_attention.query_key_value", part=1, parts=3, by_head=True
    ),
    "blocks.*.attention.value": StoredWeight(
        "transformer.h.*.self_attention.query_key_value", part=2, parts=3, by_head=True
    ),
    "blocks.*.attention.out": StoredWeight("transformer.h.*.self_attention.dense"),
    "blocks.*.mlp_norm": StoredWeight("transformer.h.*.post_attention_layernorm"),
    "blocks.*.mlp.up": StoredWeight("transformer.h.*.mlp.dense_h_to_4h"),
    "blocks.*.mlp.down": StoredWeight("transformer.h.*.mlp.dense_4h_to_h"),
    "norm": StoredWeight("transformer.ln_f"),
    "head": StoredWeight("lm_head"),
}

LLAMA: Layout = {
    "embedding": StoredWeight("model.embed_tokens"),
    "blocks.*.attention_norm": StoredWeight("model.layers.*.input_layernorm"),
    "blocks.*.attention.query": StoredWeight("model.layers.*.self_attn.q_proj"),
    "blocks.*.attention.key": StoredWeight("model.layers.*.self_attn.k_proj"),
    "blocks.*.attention.value": StoredWeight("model.layers.*.self_attn.v_proj"),
    "blocks.*.attention.query_norm": StoredWeight("model.layers.*.self_attn.q_norm"),
    "blocks.*.attention.key_norm": StoredWeight("model.layers.*.self_attn.k_norm"),
    "blocks.*.attention.out": StoredWeight("model.layers.*.self_attn.o_proj"),
    "blocks.*.mlp_norm": StoredWeight("model.layers.*.post_attention_layernorm"),
    "blocks.*.mlp.gate": StoredWeight("model.layers.*.mlp.gate_proj"),
    "blocks.*.mlp.up": StoredWeight("model.layers.*.mlp.up_proj"),
    "blocks.*.mlp.down": StoredWeight("model.layers.*.mlp.down_proj"),
    "blocks.*.mlp.router": StoredWeight("model.layers.*.block_sparse_moe.gate"),
    "blocks.*.mlp.experts.*.gate": StoredWeight("model.layers.*.block_sparse_moe.experts.*.w1"),
    "blocks.*.mlp.experts.*.up": StoredWeight("model.layers.*.block_sparse_moe.experts.*.w3"),
    "blocks.*.mlp.experts.*.down": StoredWeight("model.layers.*.block_sparse_moe.experts.*.w2"),
    "norm": StoredWeight("model.norm"),
    "head": StoredWeight("lm_head"),
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
"""Layouts by `model_type` of config.json."""

IGNORED_BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
"""Suffixes of buffers in old checkpoints that follow from the configuration and are not loaded."""


def locate(weight: str, layout: Layout) -> StoredWeight:
    """Location of the weight that our `Transformer` calls `weight`.

    >>> locate("blocks.7.mlp.experts.2.up.weight", LLAMA).name
    'model.layers.7.block_sparse_moe.experts.2.w3.weight'
    """
    module, _, kind = weight.rpartition(".")
    stored = layout[re.sub(r"\d+", "*", module)]
    numbers = iter(re.findall(r"\d+", module))
    return replace(stored, name=re.sub(r"\*", lambda _: next(numbers), stored.name) + f".{kind}")
