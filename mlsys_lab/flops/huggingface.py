"""From a Hugging Face config.json to a `TransformerConfig`, for the architectures that this package computes rightly.

What changes no count is not part of a `TransformerConfig`; `omissions` says what of it a file has. What would make the
arithmetic wrong is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.flops.config import Experts, LatentAttention, TransformerConfig, refuse_without_attention
from mlsys_lab.flops.fields import Fields, reach

Source = str | Path | Mapping[str, Any]


def read_config(source: Source) -> TransformerConfig:
    """Read a model's sizes from its config.json: a path to the file or its folder, or the content as a mapping.

    Fields that a file may leave out have the value that `transformers` gives them. Raises InputError for a file that
    cannot be read, lacks a size, is of an unknown `model_type`, or asks for something that is not computed here.
    """
    found = read_fields(source)
    return FAMILIES[found.text("model_type")](found)


def omissions(source: Source) -> tuple[str, ...]:
    """Phrases for what a config.json asks for beyond a `TransformerConfig`; none of it changes `parameters`.

    >>> omissions({"model_type": "mistral", "sliding_window": 4096})
    ('attention reaches back 4096 tokens only (sliding_window)',)
    """
    found = read_fields(source)
    said = []
    if found.unknown_scaling:
        said.append(f"rotary angles are stretched ({found.unknown_scaling})")
    if found.window is not None:
        said.append(
            reach(found.window, found.windowed_layers, found.size("num_hidden_layers", default=0)) + " (sliding_window)"
        )
    if modules := found.get("num_nextn_predict_layers"):
        said.append(f"{modules} further module predicts a later token (num_nextn_predict_layers)")
    if found.get("quantization_config"):
        said.append("weights are stored quantised (quantization_config)")
    return tuple(said)


def read_fields(source: Source) -> Fields:
    """Read a model's config.json: a mapping, the file's path or that of its folder.

    Raises InputError for a file that cannot be read, is no JSON object or has a `model_type` that is not known here.
    """
    if isinstance(source, Mapping):
        fields: Any = source
        name = "config"
    else:
        path = Path(source)
        path = path / "config.json" if path.is_dir() else path
        name = str(path)
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except OSError as problem:
            raise InputError(f"cannot read {path}", got=problem.strerror, expected="a config.json") from None
        except (ValueError, RecursionError) as problem:
            raise InputError(f"{path} is not JSON", got=str(problem)) from None
    if not isinstance(fields, Mapping):
        raise InputError(f"{name} is not an object", got=type(fields).__name__, expected="names and values")
    kind = fields.get("model_type")
    refuse_without_attention(str(kind))
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise InputError(
            f"{name}: unknown architecture",
            got=f"model_type {kind!r}" if kind is not None else "no model_type",
            expected=f"one of {', '.join(FAMILIES)}",
            help=did_you_mean(str(kind), FAMILIES) if kind is not None else "",
        )
    return Fields(fields, name)


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
        norm="layer",
        activation=_plain_activation(c, "activation_function", "gelu_new"),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        norm_bias=True,
        tied=c.get("tie_word_embeddings", default=True),
        norm_eps=c.get("layer_norm_epsilon", default=1e-5),
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
        norm="layer",
        activation="gelu_tanh",
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        norm_bias=True,
        embedding_norm=True,
        tied=c.get("tie_word_embeddings", default=True),
        norm_eps=c.get("layer_norm_epsilon", default=1e-5),
    )


def _llama(c: Fields, **other: Any) -> TransformerConfig:
    """Read the fields that LLaMA, Mistral, Mixtral, Phi-3 and Qwen share; `attention_bias`, `mlp_bias` are LLaMA's."""
    c.refuse("hidden_act", unless="silu", default="silu")
    return _rotary(c, **other)


def _rotary(c: Fields, **other: Any) -> TransformerConfig:
    """Read the fields of decoders with rotary positions and RMS norms, whatever activates their MLP."""
    c.refuse("partial_rotary_factor", unless=1.0, default=c.rope.get("partial_rotary_factor", 1.0))
    bias = c.get("attention_bias", default=False)
    fields = {
        "n_kv_heads": c.size("num_key_value_heads", default=0),
        "head_dim": c.size("head_dim", default=0),
        "qkv_bias": bias,
        "out_bias": bias,
        "mlp_bias": c.get("mlp_bias", default=False),
        "tied": c.get("tie_word_embeddings", default=False),
    }
    return TransformerConfig(
        _name(c),
        n_layers=c.size("num_hidden_layers"),
        d_model=c.size("hidden_size"),
        n_heads=c.size("num_attention_heads"),
        d_ff=c.size("intermediate_size"),
        vocab_size=c.size("vocab_size"),
        context=c.size("max_position_embeddings"),
        rope_theta=c.rope_theta,
        rope_scaling=c.rope_scaling,
        norm_eps=c.get("rms_norm_eps", default=1e-5 if c.text("model_type") == "mixtral" else 1e-6),
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
    experts = Experts(c.size("num_experts"), c.size("num_experts_per_tok"), c.size("moe_intermediate_size"))
    c.size("num_key_value_heads")
    return _llama(c, experts=experts, mlp_bias=False, qk_norm=True, head_dim=c.size("head_dim", default=128))


def _gpt_oss(c: Fields) -> TransformerConfig:
    """Read gpt-oss's fields; the MLP's activation is a bounded SwiGLU, which counts as that."""
    experts = Experts(c.size("num_local_experts"), c.size("num_experts_per_tok"), c.size("intermediate_size"))
    c.refuse("attention_bias", unless=True, default=True)
    own = {"mlp_bias": True, "attention_sinks": True, "router_bias": True}
    return _llama(c, experts=experts, qkv_bias=True, out_bias=True, **own)


def _phi3(c: Fields) -> TransformerConfig:
    """Read Phi-3's fields; its matrices are stored joined, which makes no difference to their number."""
    return _llama(c, qkv_bias=False, out_bias=False, mlp_bias=False)


def _gemma2(c: Fields, **other: Any) -> TransformerConfig:
    """Read Gemma 2's fields: a gated MLP with GELU, post-norms, tied unless it is said."""
    c.refuse("hidden_activation", unless="gelu_pytorch_tanh", default="gelu_pytorch_tanh")
    fields = {"activation": "geglu", "post_norms": True, "mlp_bias": False}
    return _rotary(c, tied=c.get("tie_word_embeddings", default=True), **fields, **other)


def _gemma3(c: Fields) -> TransformerConfig:
    """Read the fields of Gemma 3's decoder, as they stand in `text_config` of those that take pictures too."""
    return _gemma2(c, qk_norm=True)


def _deepseek_v3(c: Fields) -> TransformerConfig:
    """Read DeepSeek-V2's and V3's fields, without multi-token prediction; experts in all but the dense layers."""
    c.refuse("moe_layer_freq", unless=1, default=1)
    c.refuse("attention_bias", unless=False, default=False)
    experts = Experts(
        count=c.size("n_routed_experts"),
        active=c.size("num_experts_per_tok"),
        d_ff=c.size("moe_intermediate_size"),
        shared=c.size("n_shared_experts", default=0),
        dense_layers=c.size("first_k_dense_replace", default=0),
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
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "deepseek_v2": _deepseek_v3,
    "deepseek_v3": _deepseek_v3,
    "bloom": _bloom,
}
"""Functions that read a model's sizes from its fields, by `model_type`."""
