"""Readers of Hugging Face's config.json, one for each architecture that this package counts correctly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mlsys_lab.configs.fields import Fields
from mlsys_lab.configs.transformer import Experts, LatentAttention, TransformerConfig
from mlsys_lab.errors import InputError

BIASED: Mapping[str, Any] = dict(norm="layer", norm_bias=True, qkv_bias=True, out_bias=True, mlp_bias=True)
"""A decoder of layer norms in which every matrix and every norm has a bias."""


def _name(c: Fields) -> str:
    path = Path(c.name)
    given = c.text("_name_or_path") or (path.resolve().parent.name if path.name == "config.json" else path.stem)
    return c.text("model_type") if given == "config" else given


def _gpt2(c: Fields) -> TransformerConfig:
    """Read GPT-2's fields: one activation under several names; by default an MLP four times as wide as the model."""
    c.refuse("scale_attn_weights", unless=True, default=True)
    c.refuse("scale_attn_by_inverse_layer_idx", unless=False, default=False)
    c.refuse("add_cross_attention", unless=False, default=False)
    d_model = c.size("n_embd", "hidden_size")
    return TransformerConfig(
        _name(c),
        n_layers=c.size("n_layer", "num_hidden_layers"),
        d_model=d_model,
        n_heads=c.size("n_head", "num_attention_heads"),
        d_ff=c.size("n_inner", default=4 * d_model),
        vocab_size=c.size("vocab_size"),
        context=c.size("n_positions", "max_position_embeddings"),
        position="learned",
        activation=_plain_activation(c, "activation_function", "gelu_new"),
        tied=c.get("tie_word_embeddings", default=True),
        norm_eps=c.get("layer_norm_epsilon", default=1e-5),
        **BIASED,
    )


def _bloom(c: Fields) -> TransformerConfig:
    """Read BLOOM's fields; its positions have no longest sequence, so `context` is the length it was trained on."""
    c.refuse("apply_residual_connection_post_layernorm", unless=False, default=False)
    d_model = c.size("hidden_size", "n_embed")
    return TransformerConfig(
        _name(c),
        n_layers=c.size("n_layer", "num_hidden_layers"),
        d_model=d_model,
        n_heads=c.size("n_head", "num_attention_heads"),
        d_ff=4 * d_model,
        vocab_size=c.size("vocab_size"),
        context=c.size("seq_length", default=2048),
        position="alibi",
        activation="gelu_tanh",
        embedding_norm=True,
        tied=c.get("tie_word_embeddings", default=True),
        norm_eps=c.get("layer_norm_epsilon", default=1e-5),
        **BIASED,
    )


def _opt(c: Fields) -> TransformerConfig:
    """Read OPT's fields; `context` leaves out two rows of the position embedding, which no token has."""
    d_model = c.size("hidden_size")
    c.refuse("do_layer_norm_before", unless=True, default=True)
    c.refuse("_remove_final_layer_norm", unless=False, default=False)
    c.refuse("word_embed_proj_dim", unless=d_model, default=d_model)
    c.refuse("layer_norm_elementwise_affine", unless=True, default=True)
    c.refuse("enable_bias", unless=True, default=True)
    return TransformerConfig(
        _name(c),
        n_layers=c.size("num_hidden_layers"),
        d_model=d_model,
        n_heads=c.size("num_attention_heads"),
        d_ff=c.size("ffn_dim"),
        vocab_size=c.size("vocab_size"),
        context=c.size("max_position_embeddings"),
        position="learned",
        activation=_plain_activation(c, "activation_function", "relu"),
        tied=c.get("tie_word_embeddings", default=True),
        **BIASED,
    )


def _llama(c: Fields, **other: Any) -> TransformerConfig:
    """Read the fields that LLaMA, Mistral, Mixtral, Phi-3 and Qwen share; `attention_bias`, `mlp_bias` are LLaMA's."""
    c.refuse("hidden_act", unless="silu", default="silu")
    return _rotary(c, **other)


def _rotary(c: Fields, **other: Any) -> TransformerConfig:
    """Read the fields of decoders with rotary positions; RMS norms and SwiGLU unless `other` says otherwise."""
    if "partial_rotary_factor" not in other:
        c.refuse("partial_rotary_factor", unless=1.0, default=c.rope.get("partial_rotary_factor", 1.0))
    bias = c.get("attention_bias", default=False)
    fields = {
        "d_ff": c.size("intermediate_size"),
        "n_kv_heads": c.size("num_key_value_heads", default=0),
        "head_dim": c.size("head_dim", default=0),
        "qkv_bias": bias,
        "out_bias": bias,
        "mlp_bias": c.get("mlp_bias", default=False),
        "tied": c.get("tie_word_embeddings", default=False),
        "norm_eps": c.get("rms_norm_eps", default=1e-6),
    }
    return TransformerConfig(
        _name(c),
        n_layers=c.size("num_hidden_layers"),
        d_model=c.size("hidden_size"),
        n_heads=c.size("num_attention_heads"),
        vocab_size=c.size("vocab_size"),
        context=c.size("max_position_embeddings"),
        rope_theta=c.rope_theta,
        rope_scaling=c.rope_scaling,
        **(fields | other),
    )


def _mistral(c: Fields) -> TransformerConfig:
    c.size("num_key_value_heads")  # where it is left out, `transformers` takes 8, and not as many as query heads
    return _llama(c, qkv_bias=False, out_bias=False, mlp_bias=False)


def _mixtral(c: Fields) -> TransformerConfig:
    c.size("num_key_value_heads")
    experts = Experts(c.size("num_local_experts"), c.size("num_experts_per_tok"), c.size("intermediate_size"))
    return _llama(c, experts=experts, qkv_bias=False, out_bias=False, mlp_bias=False)


def _qwen2(c: Fields) -> TransformerConfig:
    c.size("num_key_value_heads")
    return _llama(c, qkv_bias=True, out_bias=False, mlp_bias=False)


def _qwen3(c: Fields) -> TransformerConfig:
    c.size("num_key_value_heads")
    return _llama(c, mlp_bias=False, qk_norm=True, head_dim=c.size("head_dim", default=128))


def _qwen3_moe(c: Fields) -> TransformerConfig:
    """Read Qwen 3's mixtures; every layer has experts."""
    c.refuse("decoder_sparse_step", unless=1, default=1)
    c.refuse("mlp_only_layers", unless=[], default=[])
    experts = Experts(
        c.size("num_experts", "num_local_experts"), c.size("num_experts_per_tok"), c.size("moe_intermediate_size")
    )
    c.size("num_key_value_heads")
    return _llama(c, experts=experts, mlp_bias=False, qk_norm=True, head_dim=c.size("head_dim", default=128))


def _gpt_oss(c: Fields) -> TransformerConfig:
    """Read gpt-oss's fields; the MLP's activation is a bounded SwiGLU, which counts as that."""
    experts = Experts(c.size("num_local_experts"), c.size("num_experts_per_tok"), c.size("intermediate_size"))
    c.refuse("attention_bias", unless=True, default=True)
    own = {"mlp_bias": True, "attention_sinks": True, "router_bias": True}
    return _llama(c, experts=experts, qkv_bias=True, out_bias=True, **own)


def _phi3(c: Fields) -> TransformerConfig:
    """Read Phi-3's fields; that its matrices are stored fused changes no count."""
    factor = c.partial_rotary_factor(1.0)
    return _llama(c, qkv_bias=False, out_bias=False, mlp_bias=False, partial_rotary_factor=factor)


def _phi(c: Fields) -> TransformerConfig:
    """Read the fields of Phi 1, 1.5 and 2: parallel blocks, biases everywhere, rotary positions of half a head."""
    c.refuse("qk_layernorm", unless=False, default=False)
    return _rotary(
        c,
        activation=_plain_activation(c, "hidden_act", "gelu_new"),
        parallel_blocks=True,
        head_bias=True,
        partial_rotary_factor=c.partial_rotary_factor(0.5),
        norm_eps=c.get("layer_norm_eps", default=1e-5),
        **BIASED,
    )


def _olmo(c: Fields) -> TransformerConfig:
    """Read OLMo's fields: layer norms without weights, whose epsilon is fixed."""
    c.refuse("clip_qkv", unless=None, default=None)
    return _llama(c, norm="layer", norm_weight=False, norm_eps=1e-5, mlp_bias=False)


def _olmo2(c: Fields) -> TransformerConfig:
    """Read OLMo 2's fields: norms of queries, keys and results, none of inputs."""
    norms = {"pre_norms": False, "post_norms": True, "qk_norm": True, "qk_norm_all_heads": True}
    return _llama(c, mlp_bias=False, **norms)


def _gemma(c: Fields) -> TransformerConfig:
    """Read the fields of the first Gemma, whose GELU is the approximate one under either name."""
    if c.text("hidden_act") != "gelu":
        c.refuse("hidden_act", unless="gelu_pytorch_tanh", default="gelu_pytorch_tanh")
    c.refuse("use_bidirectional_attention", unless=False, default=False)
    tied = c.get("tie_word_embeddings", default=True)
    return _rotary(c, activation="geglu", scaled_embedding=True, mlp_bias=False, tied=tied)


def _gemma2(c: Fields, **other: Any) -> TransformerConfig:
    """Read Gemma 2's fields: a gated MLP with GELU, post-norms, tied by default."""
    c.refuse("hidden_activation", unless="gelu_pytorch_tanh", default="gelu_pytorch_tanh")
    fields = {"activation": "geglu", "post_norms": True, "mlp_bias": False}
    return _rotary(c, tied=c.get("tie_word_embeddings", default=True), **fields, **other)


def _gemma3(c: Fields) -> TransformerConfig:
    """Read the fields of Gemma 3's decoder."""
    return _gemma2(c, qk_norm=True)


def _llama4(c: Fields) -> TransformerConfig:
    """Read the fields of Llama 4's decoder: a shared expert next to the routed ones, dense layers of another width.

    Norms of queries and keys have no weights; how angles are stretched is left out, since some layers turn none.
    """
    c.refuse("attention_bias", unless=False, default=False)
    layers, step = c.size("num_hidden_layers"), c.size("interleave_moe_layer_step", default=1)
    if step < 1:
        raise InputError(f"{c.name}: interleave_moe_layer_step out of range", got=step, expected="at least 1")
    routed = c.entries("moe_layers")
    experts = Experts(
        count=c.size("num_local_experts"),
        active=c.size("num_experts_per_tok"),
        d_ff=c.size("intermediate_size"),
        shared=1,
        dense_layers=layers - (layers // step if routed is None else len(routed)),
    )
    return _llama(c, experts=experts, d_ff=c.size("intermediate_size_mlp"), mlp_bias=False)


def _deepseek_v3(c: Fields) -> TransformerConfig:
    """Read DeepSeek-V2's and V3's fields, without multi-token prediction; experts in all but the dense layers."""
    c.refuse("moe_layer_freq", unless=1, default=1)
    c.refuse("attention_bias", unless=False, default=False)
    c.refuse("index_topk", unless=None, default=None)  # V3.2 selects keys by an indexer with weights of its own
    groups, max_groups = (8, 4) if c.get("model_type") == "deepseek_v3" else (1, 0)  # as transformers fills them in
    experts = Experts(
        count=c.size("n_routed_experts"),
        active=c.size("num_experts_per_tok"),
        d_ff=c.size("moe_intermediate_size"),
        shared=c.size("n_shared_experts", default=0),
        dense_layers=c.size("first_k_dense_replace", default=0),
        max_groups=c.size("topk_group", default=max_groups) if c.size("n_group", default=groups) > 1 else 0,
    )
    latent = LatentAttention(
        q_rank=c.size("q_lora_rank") if c.get("q_lora_rank") is not None else None,
        kv_rank=c.size("kv_lora_rank"),
        nope_dim=c.size("qk_nope_head_dim"),
        rope_dim=c.size("qk_rope_head_dim"),
        v_dim=c.size("v_head_dim"),
    )
    return _llama(c, experts=experts, latent=latent, head_dim=0, n_kv_heads=0)


def _plain_activation(c: Fields, name: str, default: str) -> Any:
    known = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
    value = c.text(name) or default
    if value not in known:
        raise InputError(f"{c.name}: unknown {name}", got=repr(value), expected=f"one of {', '.join(known)}")
    return known[value]


FAMILIES: dict[str, Callable[[Fields], TransformerConfig]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gpt_oss": _gpt_oss,
    "phi3": _phi3,
    "phi": _phi,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "opt": _opt,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "llama4_text": _llama4,
    "deepseek_v2": _deepseek_v3,
    "deepseek_v3": _deepseek_v3,
    "bloom": _bloom,
}
"""Functions that read a model's sizes from its fields, by `model_type`."""

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "mixtral": {"rope_theta": 1e6, "rms_norm_eps": 1e-5},
    "gpt_oss": {"head_dim": 64, "rope_theta": 1.5e5, "rms_norm_eps": 1e-5},
    "phi3": {"rms_norm_eps": 1e-5},
    "olmo2": {"rms_norm_eps": 1e-5},
    "gemma": {"head_dim": 256},
    "gemma2": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 256_000,
        "max_position_embeddings": 8192,
    },
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "rope_theta": 1e6,
    },
    "llama4_text": {"head_dim": 128, "attention_chunk_size": 8192, "rope_theta": 5e5, "rms_norm_eps": 1e-5},
}
"""Defaults of `transformers` for fields that a file omits, where they differ between architectures."""
