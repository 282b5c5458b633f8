"""Published decoders by name: `preset("llama3-70b")`.

Sizes are those of the paper's table or of the released config.json; `context` is the longest sequence that the base
model was released for.
"""

from __future__ import annotations

import re
from types import MappingProxyType

from mlsys_lab.configs.families import (
    KI,
    deepseek,
    gemma,
    gemma3,
    gpt,
    gpt_oss,
    llama,
    llama3,
    llama4,
    palm,
    qwen,
    qwen3_moe,
)
from mlsys_lab.configs.fields import reach
from mlsys_lab.configs.transformer import Experts, RotaryScaling, TransformerConfig, Window, refuse_without_attention
from mlsys_lab.errors import InputError, did_you_mean

LLAMA31 = RotaryScaling("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8 * KI)


_ROWS = (
    # Radford et al. 2019, table 2, with the heads and vocabulary of the released models.
    gpt("gpt2", 12, 768, 12, KI),
    gpt("gpt2-medium", 24, 1024, 16, KI),
    gpt("gpt2-large", 36, 1280, 20, KI),
    gpt("gpt2-xl", 48, 1600, 25, KI),
    # Brown et al. 2020 (arXiv:2005.14165), table 2.1. Two rows of it do not fit together as printed: 24 heads of 128
    # in a width of 2048 would make the sixth model 1.5B, with 16 it is the 1.3B that its name says; and 5140 is not
    # 40 heads of 128, which is 5120.
    gpt("gpt3-125m", 12, 768, 12, 2 * KI),
    gpt("gpt3-350m", 24, 1024, 16, 2 * KI),
    gpt("gpt3-760m", 24, 1536, 16, 2 * KI),
    gpt("gpt3-1.3b", 24, 2048, 16, 2 * KI),
    gpt("gpt3-2.7b", 32, 2560, 32, 2 * KI),
    gpt("gpt3-6.7b", 32, 4096, 32, 2 * KI),
    gpt("gpt3-13b", 40, 5120, 40, 2 * KI),
    gpt("gpt3-175b", 96, 12288, 96, 2 * KI),
    # Touvron et al. 2023 (arXiv:2307.09288), released config.json.
    llama("llama2-7b", 32, 4096, 32, 32, 11_008, vocab_size=32_000, context=4 * KI),
    llama("llama2-13b", 40, 5120, 40, 40, 13_824, vocab_size=32_000, context=4 * KI),
    llama("llama2-70b", 80, 8192, 64, 8, 28_672, vocab_size=32_000, context=4 * KI),
    # Grattafiori et al. 2024 (arXiv:2407.21783), table 3, and released config.json; the 405B was released as 3.1 only.
    llama3("llama3-8b", 32, 4096, 32, 14_336),
    llama3("llama3-70b", 80, 8192, 64, 28_672),
    llama3("llama3-405b", 126, 16_384, 128, 53_248, LLAMA31),
    llama3("llama3.1-8b", 32, 4096, 32, 14_336, LLAMA31),
    llama3("llama3.1-70b", 80, 8192, 64, 28_672, LLAMA31),
    # Jiang et al. 2023 (arXiv:2310.06825) and 2024 (arXiv:2401.04088), released config.json.
    llama("mistral-7b", 32, 4096, 32, 8, 14_336, vocab_size=32_000, context=32 * KI),
    llama(
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
    llama(
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
    qwen("qwen2.5-0.5b", 24, 896, 14, 2, 4_864, 151_936),
    qwen("qwen2.5-1.5b", 28, 1536, 12, 2, 8_960, 151_936),
    qwen("qwen2.5-3b", 36, 2048, 16, 2, 11_008, 151_936),
    qwen("qwen2.5-7b", 28, 3584, 28, 4, 18_944),
    qwen("qwen2.5-14b", 48, 5120, 40, 8, 13_824),
    qwen("qwen2.5-32b", 64, 5120, 40, 8, 27_648),
    qwen("qwen2.5-72b", 80, 8192, 64, 8, 29_568),
    # DeepSeek-AI 2024 (arXiv:2412.19437), §4.2, without the module that predicts a second token.
    deepseek("deepseek-v3", 61, 7168, 128, 18_432, 129_280, 1536, Experts(256, 8, 2048, 1, 3, max_groups=4)),
    # DeepSeek-AI 2024 (arXiv:2405.04434), §3.1.2 and appendix B, released config.json.
    deepseek("deepseek-v2", 60, 5120, 128, 12_288, 102_400, 1536, Experts(160, 6, 1536, 2, 1, max_groups=3)),
    deepseek("deepseek-v2-lite", 27, 2048, 16, 10_944, 102_400, None, Experts(64, 6, 1408, shared=2, dense_layers=1)),
    # Qwen team 2025 (arXiv:2505.09388), table 2, widths from the released config.json.
    qwen3_moe("qwen3-30b-a3b", 48, 2048, 32, 6144, 768),
    qwen3_moe("qwen3-235b-a22b", 94, 4096, 64, 12_288, 1536),
    # Abdin et al. 2024 (arXiv:2404.14219), released config.json of the versions for 4,096 tokens.
    llama("phi3-mini", 32, 3072, 32, 32, 8192, vocab_size=32_064, context=4 * KI),
    llama("phi3-medium", 40, 5120, 40, 10, 17_920, vocab_size=32_064, context=4 * KI),
    # Gemma team 2024 (arXiv:2408.00118), table 1, and 2025 (arXiv:2503.19786), released config.json.
    gemma("gemma2-2b", 26, 2304, 8, 4, 9216),
    gemma("gemma2-9b", 42, 3584, 16, 8, 14_336),
    gemma("gemma2-27b", 46, 4608, 32, 16, 36_864, head_dim=128),
    gemma("gemma3-1b", 26, 1152, 4, 1, 6912, vocab_size=262_144, context=32 * KI, rope_theta=1e6, qk_norm=True),
    gemma3("gemma3-4b", 34, 2560, 8, 4, 10_240),
    gemma3("gemma3-12b", 48, 3840, 16, 8, 15_360),
    gemma3("gemma3-27b", 62, 5376, 32, 16, 21_504, head_dim=128),
    # OpenAI 2025 (arXiv:2508.10925), table 1, released config.json.
    gpt_oss("gpt-oss-20b", 24, experts=32),
    gpt_oss("gpt-oss-120b", 36, experts=128),
    # Meta 2025, released config.json. In Maverick dense layers and layers with experts take turns.
    llama4("llama4-scout", Experts(16, 1, d_ff=8192, shared=1), context=10 * KI * KI),
    llama4("llama4-maverick", Experts(128, 1, d_ff=8192, shared=1, dense_layers=24), context=KI * KI),
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
    palm("palm-8b", 32, 4096, 16),
    palm("palm-62b", 64, 8192, 32),
    palm("palm-540b", 118, 18_432, 48),
)

PRESETS = MappingProxyType({row.name: row for row in _ROWS})
"""Every published decoder that the course computes with, by name."""


PUBLISHED_ACTIVE = MappingProxyType(
    {
        "mixtral-8x7b": (12.9, "all parameters", "https://mistral.ai/news/mixtral-of-experts"),
        "mixtral-8x22b": (39.0, "all parameters", "https://mistral.ai/news/mixtral-8x22b"),
        "qwen3-30b-a3b": (3.3, "all parameters", "arXiv:2505.09388, §2"),
        "qwen3-235b-a22b": (22.0, "all parameters", "arXiv:2505.09388, §2"),
        "llama4-scout": (17.0, "all parameters", "https://ai.meta.com/blog/llama-4-multimodal-intelligence/"),
        "llama4-maverick": (17.0, "all parameters", "https://ai.meta.com/blog/llama-4-multimodal-intelligence/"),
        "deepseek-v3": (37.0, "without the embedding", "arXiv:2412.19437, abstract; README_WEIGHTS.md: 36.6"),
        "deepseek-v2": (21.0, "all parameters", "arXiv:2405.04434, abstract"),
        "gpt-oss-20b": (3.61, "without the embedding", "arXiv:2508.10925, table 1"),
        "gpt-oss-120b": (5.13, "without the embedding", "arXiv:2508.10925, table 1"),
    }
)
"""Active parameters in billions as each publisher of a mixture of experts prints them: what is counted, and where."""


WINDOWS = MappingProxyType(
    {
        "mistral-7b": Window(4096, 32),
        "phi3-mini": Window(2047, 32),
        "phi3-medium": Window(2047, 40),
        "gemma2-2b": Window(4096, 13),
        "gemma2-9b": Window(4096, 21),
        "gemma2-27b": Window(4096, 23),
        "gemma3-1b": Window(512, 22),
        "gemma3-4b": Window(1024, 29),
        "gemma3-12b": Window(1024, 40),
        "gemma3-27b": Window(1024, 52),
        "gpt-oss-20b": Window(128, 12),
        "gpt-oss-120b": Window(128, 18),
        "llama4-scout": Window(8192, 36),
        "llama4-maverick": Window(8192, 36),
    }
)
"""Windows of those that have any, by name: `cache.cache_bytes` and `step.step_cost` count them where they are given."""


def preset_omissions(name: str) -> tuple[str, ...]:
    """Phrases for what a preset's counts leave out, as `huggingface.omissions` has them for a config.json.

    >>> preset_omissions("gemma2-9b")
    ('attention reaches back 4096 tokens only in 21 of 42 layers',)
    """
    config = preset(name)
    return (reach(*WINDOWS[config.name], config.n_layers),) if config.name in WINDOWS else ()


def preset(name: str) -> TransformerConfig:
    """Look up a published decoder by name, however it is cased and divided; InputError suggests near names.

    >>> preset("LLaMA 2 7B").d_ff
    11008
    """
    by_letters = {_letters(known): config for known, config in PRESETS.items()}
    letters = _letters(name)
    refuse_without_attention(name)
    if letters in by_letters:
        return by_letters[letters]
    near = [known for known in PRESETS if letters and _letters(known).startswith(letters)]
    help_ = f"did you mean {' or '.join(map(repr, near))}?" if near else did_you_mean(name.lower(), PRESETS)
    raise InputError("no such preset", got=repr(name), expected=f"one of {', '.join(PRESETS)}", help=help_)


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())
