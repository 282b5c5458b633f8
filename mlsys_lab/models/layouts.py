"""Names and layouts of `Transformer`'s weights in Hugging Face checkpoints.

Dimension letters: D d_model, F hidden size of the MLP, N query heads, H head_dim.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from mlsys_lab.configs import TransformerConfig


def qkv_rows(c: TransformerConfig) -> list[int]:
    """Rows of the matrices of queries, keys and values."""
    return [c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim, c.n_kv_heads * c.head_dim]


def gate_up_rows(c: TransformerConfig) -> list[int]:
    """Rows of a gated MLP's two matrices of hidden units."""
    return [c.d_ff, c.d_ff]


@dataclass(frozen=True)
class StoredWeight:
    """Location of one weight in a checkpoint: the tensor's name, and which part of it.

    `transposed`: stored as (inputs, outputs), like GPT-2's Conv1D. `stack`: rows of the matrices that are stacked along
    the outputs, ours being number `part`; `by_head`: they alternate head by head, (N, 3, H), as in BLOOM. The first
    `unused` rows are skipped (OPT's positions). `plus` is to be added in our dtype (Gemma's norms multiply by
    1 + weight).
    """

    name: str
    transposed: bool = False
    part: int = 0
    stack: Callable[[TransformerConfig], list[int]] | None = None
    by_head: bool = False
    unused: int = 0
    plus: float = 0.0

    def shape(self, ours: torch.Size, config: TransformerConfig) -> tuple[int, ...]:
        """Shape of the stored tensor, from the shape `ours` of the weight to fill."""
        rows = sum(self.stack(config)) if self.stack else ours[0] + self.unused
        return (rows, *ours[1:])[::-1] if self.transposed else (rows, *ours[1:])

    def take(self, stored: torch.Tensor, config: TransformerConfig) -> torch.Tensor:
        """Extract our weight from the stored tensor, before `plus`."""
        outputs_first = stored.mT if self.transposed and stored.ndim == 2 else stored
        if self.by_head:
            split = outputs_first.reshape(config.n_heads, 3, -1, *outputs_first.shape[1:])
            return split[:, self.part].flatten(0, 1)  # (N·H, ...)
        if self.stack:
            return torch.split(outputs_first, self.stack(config))[self.part]
        return outputs_first[self.unused :]

    def join(self, weights: Sequence[torch.Tensor], config: TransformerConfig) -> torch.Tensor:
        """The tensor to store, from our weights of all its parts in order: the inverse of `take`, unused rows 0."""
        if self.by_head:
            by_head = [one.reshape(config.n_heads, -1, *one.shape[1:]) for one in weights]  # (N, H, ...)
            joined = torch.stack(by_head, dim=1).flatten(0, 2)
        else:
            joined = torch.cat([weights[0].new_zeros(self.unused, *weights[0].shape[1:]), *weights])
        return joined.mT if self.transposed and joined.ndim == 2 else joined


Layout = Mapping[str, StoredWeight]
"""Location of each weight: `StoredWeight` by the name of our module, with * for numbers in both names."""

GPT2: Layout = {
    "embedding": StoredWeight("transformer.wte"),
    "positions": StoredWeight("transformer.wpe"),
    "blocks.*.attention_norm": StoredWeight("transformer.h.*.ln_1"),
    "blocks.*.attention.query": StoredWeight("transformer.h.*.attn.c_attn", transposed=True, part=0, stack=qkv_rows),
    "blocks.*.attention.key": StoredWeight("transformer.h.*.attn.c_attn", transposed=True, part=1, stack=qkv_rows),
    "blocks.*.attention.value": StoredWeight("transformer.h.*.attn.c_attn", transposed=True, part=2, stack=qkv_rows),
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
        "transformer.h.*.self_attention.query_key_value", part=0, stack=qkv_rows, by_head=True
    ),
    "blocks.*.attention.key": StoredWeight(
        "transformer.h.*.self_attention.query_key_value", part=1, stack=qkv_rows, by_head=True
    ),
    "blocks.*.attention.value": StoredWeight(
        "transformer.h.*.self_attention.query_key_value", part=2, stack=qkv_rows, by_head=True
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

QWEN3_MOE: Layout = {
    **LLAMA,
    "blocks.*.mlp.router": StoredWeight("model.layers.*.mlp.gate"),
    "blocks.*.mlp.experts.*.gate": StoredWeight("model.layers.*.mlp.experts.*.gate_proj"),
    "blocks.*.mlp.experts.*.up": StoredWeight("model.layers.*.mlp.experts.*.up_proj"),
    "blocks.*.mlp.experts.*.down": StoredWeight("model.layers.*.mlp.experts.*.down_proj"),
}

GEMMA: Layout = {name: replace(stored, plus=1.0) if name.endswith("norm") else stored for name, stored in LLAMA.items()}

OLMO2: Layout = {
    **LLAMA,
    "blocks.*.attention_post_norm": StoredWeight("model.layers.*.post_attention_layernorm"),
    "blocks.*.mlp_post_norm": StoredWeight("model.layers.*.post_feedforward_layernorm"),
}

PHI3: Layout = {
    **LLAMA,
    "blocks.*.attention.query": StoredWeight("model.layers.*.self_attn.qkv_proj", part=0, stack=qkv_rows),
    "blocks.*.attention.key": StoredWeight("model.layers.*.self_attn.qkv_proj", part=1, stack=qkv_rows),
    "blocks.*.attention.value": StoredWeight("model.layers.*.self_attn.qkv_proj", part=2, stack=qkv_rows),
    "blocks.*.mlp.gate": StoredWeight("model.layers.*.mlp.gate_up_proj", part=0, stack=gate_up_rows),
    "blocks.*.mlp.up": StoredWeight("model.layers.*.mlp.gate_up_proj", part=1, stack=gate_up_rows),
}

PHI: Layout = {
    **LLAMA,
    "blocks.*.attention.out": StoredWeight("model.layers.*.self_attn.dense"),
    "blocks.*.mlp.up": StoredWeight("model.layers.*.mlp.fc1"),
    "blocks.*.mlp.down": StoredWeight("model.layers.*.mlp.fc2"),
    "norm": StoredWeight("model.final_layernorm"),
}

OPT: Layout = {
    "embedding": StoredWeight("model.decoder.embed_tokens"),
    "positions": StoredWeight("model.decoder.embed_positions", unused=2),
    "blocks.*.attention_norm": StoredWeight("model.decoder.layers.*.self_attn_layer_norm"),
    "blocks.*.attention.query": StoredWeight("model.decoder.layers.*.self_attn.q_proj"),
    "blocks.*.attention.key": StoredWeight("model.decoder.layers.*.self_attn.k_proj"),
    "blocks.*.attention.value": StoredWeight("model.decoder.layers.*.self_attn.v_proj"),
    "blocks.*.attention.out": StoredWeight("model.decoder.layers.*.self_attn.out_proj"),
    "blocks.*.mlp_norm": StoredWeight("model.decoder.layers.*.final_layer_norm"),
    "blocks.*.mlp.up": StoredWeight("model.decoder.layers.*.fc1"),
    "blocks.*.mlp.down": StoredWeight("model.decoder.layers.*.fc2"),
    "norm": StoredWeight("model.decoder.final_layer_norm"),
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
    "qwen3_moe": QWEN3_MOE,
    "gemma": GEMMA,
    "olmo": LLAMA,
    "olmo2": OLMO2,
    "phi": PHI,
    "phi3": PHI3,
    "opt": OPT,
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
