"""Published decoders by name: `preset("llama3-70b")`.

Sizes are those of the paper's table or of the released config.json; `context` is the longest sequence that the base
model was released for.
"""

from __future__ import annotations

import re
from types import MappingProxyType

from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.flops.config import Experts, LatentAttention, RotaryScaling, TransformerConfig

KI = 1024
LLAMA31 = RotaryScaling("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8 * KI)


def _gpt(name: str, n_layers: int, d_model: int, n_heads: int, context: int) -> TransformerConfig:
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


def _llama(
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


def _llama3(
    name: str, n_layers: int, d_model: int, n_heads: int, d_ff: int, scaling: RotaryScaling | None = None
) -> TransformerConfig:
    """Sizes of LLaMA 3, with eight key/value heads.

    3.1 is LLaMA 3 trained on, for longer sequences by stretched angles.
    """
    return _llama(
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


def _qwen(
    name: str, n_layers: int, d_model: int, n_heads: int, n_kv_heads: int, d_ff: int, vocab_size: int = 152_064
) -> TransformerConfig:
    """Sizes of Qwen 2.5: LLaMA's block with biases of queries, keys, values; tied up to 3B, which have fewer tokens."""
    small = vocab_size == 151_936
    return _llama(
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


def _palm(name: str, n_layers: int, d_model: int, n_heads: int) -> TransformerConfig:
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


_ROWS = (
    # Radford et al. 2019, table 2, with the heads and vocabulary of the released models.
    _gpt("gpt2", 12, 768, 12, KI),
    _gpt("gpt2-medium", 24, 1024, 16, KI),
    _gpt("gpt2-large", 36, 1280, 20, KI),
    _gpt("gpt2-xl", 48, 1600, 25, KI),
    # Brown et al. 2020 (arXiv:2005.14165), table 2.1. Two rows of it do not fit together as printed: 24 heads of 128
    # in a width of 2048 would make the sixth model 1.5B, with 16 it is the 1.3B that its name says; and 5140 is not
    # 40 heads of 128, which is 5120.
    _gpt("gpt3-125m", 12, 768, 12, 2 * KI),
    _gpt("gpt3-350m", 24, 1024, 16, 2 * KI),
    _gpt("gpt3-760m", 24, 1536, 16, 2 * KI),
    _gpt("gpt3-1.3b", 24, 2048, 16, 2 * KI),
    _gpt("gpt3-2.7b", 32, 2560, 32, 2 * KI),
    _gpt("gpt3-6.7b", 32, 4096, 32, 2 * KI),
    _gpt("gpt3-13b", 40, 5120, 40, 2 * KI),
    _gpt("gpt3-175b", 96, 12288, 96, 2 * KI),
    # Touvron et al. 2023 (arXiv:2307.09288), released config.json.
    _llama("llama2-7b", 32, 4096, 32, 32, 11_008, vocab_size=32_000, context=4 * KI),
    _llama("llama2-13b", 40, 5120, 40, 40, 13_824, vocab_size=32_000, context=4 * KI),
    _llama("llama2-70b", 80, 8192, 64, 8, 28_672, vocab_size=32_000, context=4 * KI),
    # Grattafiori et al. 2024 (arXiv:2407.21783), table 3, and released config.json; the 405B was released as 3.1 only.
    _llama3("llama3-8b", 32, 4096, 32, 14_336),
    _llama3("llama3-70b", 80, 8192, 64, 28_672),
    _llama3("llama3-405b", 126, 16_384, 128, 53_248, LLAMA31),
    _llama3("llama3.1-8b", 32, 4096, 32, 14_336, LLAMA31),
    _llama3("llama3.1-70b", 80, 8192, 64, 28_672, LLAMA31),
    # Jiang et al. 2023 (arXiv:2310.06825) and 2024 (arXiv:2401.04088), released config.json.
    _llama("mistral-7b", 32, 4096, 32, 8, 14_336, vocab_size=32_000, context=32 * KI),
    _llama(
        "mixtral-8x7b",
        32,
        4096,
        32,
        8,
        14_336,
        vocab_size=32_000,
        context=32 * KI,
        rope_theta=1e6,
        experts=Experts(count=8, active=2, d_ff=14_336),
    ),
    _llama(
        "mixtral-8x22b",
        56,
        6144,
        48,
        8,
        16_384,
        vocab_size=32_000,
        context=64 * KI,
        rope_theta=1e6,
        experts=Experts(count=8, active=2, d_ff=16_384),
    ),
    # Qwen team 2024 (arXiv:2412.15115), table 1, widths from the released config.json.
    _qwen("qwen2.5-0.5b", 24, 896, 14, 2, 4_864, 151_936),
    _qwen("qwen2.5-1.5b", 28, 1536, 12, 2, 8_960, 151_936),
    _qwen("qwen2.5-3b", 36, 2048, 16, 2, 11_008, 151_936),
    _qwen("qwen2.5-7b", 28, 3584, 28, 4, 18_944),
    _qwen("qwen2.5-14b", 48, 5120, 40, 8, 13_824),
    _qwen("qwen2.5-32b", 64, 5120, 40, 8, 27_648),
    _qwen("qwen2.5-72b", 80, 8192, 64, 8, 29_568),
    # DeepSeek-AI 2024 (arXiv:2412.19437), §4.2, without the module that predicts a second token. Trained with a token
    # sent once to each of at most four nodes (§3.2.2), which `communication.expert_parallel_bytes` does not count.
    TransformerConfig(
        "deepseek-v3",
        n_layers=61,
        d_model=7168,
        n_heads=128,
        d_ff=18_432,
        vocab_size=129_280,
        context=160 * KI,
        norm_eps=1e-6,
        experts=Experts(count=256, active=8, d_ff=2048, shared=1, dense_layers=3),
        latent=LatentAttention(q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128),
    ),
    # BigScience 2022 (arXiv:2211.05100), table 3 and released config.json.
    TransformerConfig(
        "bloom-176b",
        n_layers=70,
        d_model=14_336,
        n_heads=112,
        d_ff=57_344,
        vocab_size=250_880,
        context=2 * KI,
        position="alibi",
        norm="layer",
        activation="gelu_tanh",
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        norm_bias=True,
        embedding_norm=True,
        tied=True,
    ),
    # Chowdhery et al. 2022 (arXiv:2204.02311), table 1.
    _palm("palm-8b", 32, 4096, 16),
    _palm("palm-62b", 64, 8192, 32),
    _palm("palm-540b", 118, 18_432, 48),
)

PRESETS = MappingProxyType({row.name: row for row in _ROWS})
"""Every published decoder that the course computes with, by name."""


def preset(name: str) -> TransformerConfig:
    """Look up a published decoder by name, however it is cased and divided; InputError suggests near names.

    >>> preset("LLaMA 2 7B").d_ff
    11008
    """
    by_letters = {_letters(known): config for known, config in PRESETS.items()}
    letters = _letters(name)
    if letters in by_letters:
        return by_letters[letters]
    near = [known for known in PRESETS if letters and _letters(known).startswith(letters)]
    help_ = f"did you mean {' or '.join(map(repr, near))}?" if near else did_you_mean(name.lower(), PRESETS)
    raise InputError("no such preset", got=repr(name), expected=f"one of {', '.join(PRESETS)}", help=help_)


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())
