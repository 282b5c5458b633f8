"""Bytes of the KV cache: what a token keeps in every layer.

Multi-head, grouped and multi-query attention keep a key and a value for each of their K key/value heads (Shazeer,
arXiv:1911.02150; Ainslie et al., arXiv:2305.13245); latent attention one compressed vector and one rotary key for all
heads together (DeepSeek-V2, arXiv:2405.04434, §2.1). Scales of quantised caches and unused space in blocks are not
counted.
"""

from __future__ import annotations

from mlsys_lab.configs.transformer import TransformerConfig, Window
from mlsys_lab.validation import require_at_least_one, require_non_negative, require_positive


def elements_per_token(config: TransformerConfig) -> int:
    """Numbers that one token keeps in one layer's KV cache: 2·K·H, or with latent attention kv_rank + rope_dim."""
    if config.latent is not None:
        return config.latent.kv_rank + config.latent.rope_dim
    return 2 * config.n_kv_heads * config.head_dim


def bytes_per_token(config: TransformerConfig, element_bytes: float = 2) -> float:
    """Bytes that one token keeps in the KV cache, over all layers."""
    require_positive(element_bytes=element_bytes)
    return config.n_layers * elements_per_token(config) * element_bytes


def kv_cache_bytes(
    config: TransformerConfig, tokens: int, batch: int = 1, element_bytes: float = 2, *, window: Window | None = None
) -> float:
    """Bytes of the KV cache of `batch` sequences of `tokens` tokens each; layers with a `window` keep no more than it.

    >>> from mlsys_lab.configs.presets import WINDOWS, preset
    >>> mistral = preset("mistral-7b")  # arXiv:2310.06825, §2: 8 times less at 32k tokens
    >>> kv_cache_bytes(mistral, 32_768) / kv_cache_bytes(mistral, 32_768, window=WINDOWS["mistral-7b"])
    8.0
    """
    require_non_negative(tokens=tokens, batch=batch)
    require_positive(element_bytes=element_bytes)
    kept = config.n_layers * tokens
    if window is not None:
        require_at_least_one(window=window.tokens)
        kept -= window.layers * max(0, tokens - window.tokens)
    return batch * kept * elements_per_token(config) * element_bytes


def copies(config: TransformerConfig, tensor: int) -> float:
    """How many replicas of the KV cache a tensor-parallel group holds.

    Heads are divided among the devices; once there are more devices than key/value heads, some keep the same head, and
    the latent vector, which all heads share, is kept by every device.
    """
    require_at_least_one(tensor=tensor)
    if config.latent is not None:
        return tensor
    return max(1.0, tensor / config.n_kv_heads)
