"""KV-cache bytes against published figures."""

from __future__ import annotations

import pytest

from mlsys_lab.configs.presets import preset
from mlsys_lab.configs.transformer import LatentAttention, TransformerConfig
from mlsys_lab.flops import cache

MULTI_HEAD = TransformerConfig("m", n_layers=3, d_model=32, n_heads=4, d_ff=64, vocab_size=10, context=16)
LATENT = LatentAttention(q_rank=None, kv_rank=20, nope_dim=8, rope_dim=4, v_dim=6)


def test_a_key_and_a_value_for_each_head_layer_and_token() -> None:
    assert cache.elements_per_token(MULTI_HEAD) == 2 * 4 * 8
    assert cache.bytes_per_token(MULTI_HEAD) == 3 * 64 * 2
    assert cache.kv_cache_bytes(MULTI_HEAD, 5, batch=7, element_bytes=1) == 7 * 5 * 3 * 64
    assert cache.kv_cache_bytes(MULTI_HEAD, 0) == 0


@pytest.mark.parametrize(
    ("name", "element_bytes", "per_token"),
    [
        ("llama3-8b", 2, 131_072),
        ("llama3-70b", 2, 327_680),
        ("llama3-405b", 2, 516_096),
        ("llama3-70b", 1, 163_840),
        ("deepseek-v3", 2, 70_272),  # DeepSeek-V3 at ISCA 2025 (arXiv:2505.09343), table 1: 70.272 KB
        ("gpt3-175b", 2, 2 * 96 * 2 * 12288),
    ],
)
def test_published_sizes(name: str, element_bytes: float, per_token: int) -> None:
    assert cache.bytes_per_token(preset(name), element_bytes) == per_token


def test_a_tensor_parallel_group_keeps_copies_once_it_has_more_devices_than_heads() -> None:
    grouped = TransformerConfig("g", 1, 32, 4, 64, 10, 16, n_kv_heads=2)
    latent = TransformerConfig("l", 1, 32, 4, 64, 10, 16, latent=LATENT)
    assert [cache.copies(MULTI_HEAD, t) for t in (1, 2, 4)] == [1, 1, 1]
    assert [cache.copies(grouped, t) for t in (1, 2, 4)] == [1, 1, 2]
    assert [cache.copies(latent, t) for t in (1, 2, 4)] == [1, 2, 4]
