"""Sizes of families of decoders: what its models have in common is said once, a row says what sets it apart."""

from __future__ import annotations

from mlsys_lab.configs.transformer import Experts, LatentAttention, RotaryScaling, TransformerConfig

KI = 1024


def gpt(name: str, n_layers: int, d_model: int, n_heads: int, context: int) -> TransformerConfig:
    """Sizes of GPT-2 and GPT-3.

    Learned positions, layer norms, an MLP of four times the model's width, biases, tied.
    """
    return TransformerConfig(
        name,
        n_layers,
        d_model,
        n_heads,
        d_ff=4 * d_model,
        vocab_size=50_257,
        context=context,
        position="learned",
        norm="layer",
        activation="gelu_tanh",
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        norm_bias=True,
        tied=True,
    )


def llama(
    name: str,
    n_layers: int,
    d_model: int,
    n_heads: int,
    n_kv_heads: int,
    d_ff: int,
    *,
    vocab_size: int,
    context: int,
    rope_theta: float = 1e4,
    norm_eps: float = 1e-5,
    qkv_bias: bool = False,
    tied: bool = False,
    experts: Experts | None = None,
    rope_scaling: RotaryScaling | None = None,
) -> TransformerConfig:
    """Sizes of LLaMA and its kin: rotary positions, RMS norms, SwiGLU, no biases but those that a row names."""
    return TransformerConfig(
        name,
        n_layers,
        d_model,
        n_heads,
        d_ff,
        vocab_size,
        context,
        n_kv_heads,
        rope_theta=rope_theta,
        norm_eps=norm_eps,
        qkv_bias=qkv_bias,
        tied=tied,
        experts=experts,
        rope_scaling=rope_scaling,
    )


def llama3(
    name: str, n_layers: int, d_model: int, n_heads: int, d_ff: int, scaling: RotaryScaling | None = None
) -> TransformerConfig:
    """Sizes of LLaMA 3, with eight key/value heads.

    3.1 is LLaMA 3 trained on, for longer sequences by stretched angles.
    """
    return llama(
        name,
        n_layers,
        d_model,
        n_heads,
        8,
        d_ff,
        vocab_size=128_256,
        context=128 * KI if scaling else 8 * KI,
        rope_theta=5e5,
        rope_scaling=scaling,
    )


def qwen(
    name: str, n_layers: int, d_model: int, n_heads: int, n_kv_heads: int, d_ff: int, vocab_size: int = 152_064
) -> TransformerConfig:
    """Sizes of Qwen 2.5: LLaMA's block with biases of queries, keys, values; tied up to 3B, which have fewer tokens."""
    small = vocab_size == 151_936
    return llama(
        name,
        n_layers,
        d_model,
        n_heads,
        n_kv_heads,
        d_ff,
        vocab_size=vocab_size,
        context=32 * KI if small else 128 * KI,
        rope_theta=1e6,
        norm_eps=1e-6 if d_model < 5120 else 1e-5,
        qkv_bias=True,
        tied=small,
    )


def palm(name: str, n_layers: int, d_model: int, n_heads: int) -> TransformerConfig:
    """Sizes of PaLM: attention and MLP side by side, one key and value for all heads of 256, no biases, tied."""
    return TransformerConfig(
        name,
        n_layers,
        d_model,
        n_heads,
        d_ff=4 * d_model,
        vocab_size=256_000,
        context=2 * KI,
        n_kv_heads=1,
        head_dim=256,
        norm="layer",
        parallel_blocks=True,
        tied=True,
    )


def qwen3_moe(name: str, n_layers: int, d_model: int, n_heads: int, d_ff: int, expert_d_ff: int) -> TransformerConfig:
    """Sizes of Qwen 3's mixtures: 8 of 128 experts in every layer, norms of queries and keys, heads of 128."""
    return TransformerConfig(
        name,
        n_layers,
        d_model,
        n_heads,
        d_ff,
        vocab_size=151_936,
        context=32 * KI,
        n_kv_heads=4,
        head_dim=128,
        qk_norm=True,
        rope_theta=1e6,
        norm_eps=1e-6,
        experts=Experts(count=128, active=8, d_ff=expert_d_ff),
    )


def deepseek(
    name: str,
    n_layers: int,
    d_model: int,
    n_heads: int,
    d_ff: int,
    vocab_size: int,
    q_rank: int | None,
    experts: Experts,
) -> TransformerConfig:
    """Sizes of DeepSeek-V2 and V3: latent attention of rank 512, heads of 128 and 64 more with positions, experts."""
    return TransformerConfig(
        name,
        n_layers,
        d_model,
        n_heads,
        d_ff,
        vocab_size,
        context=160 * KI,
        norm_eps=1e-6,
        experts=experts,
        latent=LatentAttention(q_rank=q_rank, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128),
    )


def gemma(
    name: str,
    n_layers: int,
    d_model: int,
    n_heads: int,
    n_kv_heads: int,
    d_ff: int,
    *,
    head_dim: int = 256,
    vocab_size: int = 256_000,
    context: int = 8 * KI,
    rope_theta: float = 1e4,
    rope_scaling: RotaryScaling | None = None,
    qk_norm: bool = False,
) -> TransformerConfig:
    """Sizes of Gemma 2, and with `qk_norm` of Gemma 3: a GEGLU MLP, post-norms, tied.

    Some layers reach back a window of tokens only; the angles are those of the layers that do not.
    """
    return TransformerConfig(
        name,
        n_layers,
        d_model,
        n_heads,
        d_ff,
        vocab_size,
        context,
        n_kv_heads,
        head_dim,
        activation="geglu",
        qk_norm=qk_norm,
        post_norms=True,
        tied=True,
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        norm_eps=1e-6,
    )


def gemma3(
    name: str, n_layers: int, d_model: int, n_heads: int, n_kv_heads: int, d_ff: int, head_dim: int = 256
) -> TransformerConfig:
    """Sizes of the decoders of Gemma 3 that take pictures too, without what reads the pictures."""
    return gemma(
        name,
        n_layers,
        d_model,
        n_heads,
        n_kv_heads,
        d_ff,
        head_dim=head_dim,
        vocab_size=262_208,
        context=128 * KI,
        rope_theta=1e6,
        rope_scaling=RotaryScaling("linear", factor=8.0),
        qk_norm=True,
    )


def gpt_oss(name: str, n_layers: int, experts: int) -> TransformerConfig:
    """Sizes of gpt-oss: 4 of many experts as wide as the model, biases everywhere, sinks, a head of its own.

    Every second layer reaches back a window of tokens only.
    """
    return TransformerConfig(
        name,
        n_layers,
        d_model=2880,
        n_heads=64,
        d_ff=2880,
        vocab_size=201_088,
        context=128 * KI,
        n_kv_heads=8,
        head_dim=64,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        attention_sinks=True,
        router_bias=True,
        rope_theta=1.5e5,
        experts=Experts(count=experts, active=4, d_ff=2880),
    )


def llama4(name: str, experts: Experts, context: int) -> TransformerConfig:
    """Sizes of the decoders of Llama 4, without what reads pictures: one routed expert and a shared one.

    Three of four layers attend within chunks of tokens only, the fourth has no positions.
    """
    return llama(
        name,
        48,
        5120,
        40,
        8,
        16_384,
        vocab_size=202_048,
        context=context,
        rope_theta=5e5,
        experts=experts,
    )
