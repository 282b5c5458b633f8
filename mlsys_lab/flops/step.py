"""Cost of one serving step: each of its sequences gets new tokens after its cached ones.

A step mixes whole prompts, chunks of them, drafts to be checked and single tokens; its weights are read once for all.
Letters: L layers, N query heads, H head_dim, and of latent attention R kv_rank, P rope_dim, M nope_dim, U v_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlsys_lab.configs.transformer import LatentAttention, TransformerConfig, Window
from mlsys_lab.errors import InputError
from mlsys_lab.flops import cache, compute
from mlsys_lab.flops.parameters import mlp_parameters, parameters
from mlsys_lab.validation import require_at_least_one, require_non_negative, require_positive

Part = tuple[int, int]
"""New tokens of a sequence, and the tokens before them whose keys and values are cached."""


@dataclass(frozen=True)
class StepCost:
    """FLOPs of a step, and bytes of weights read, of cached keys and values read, and of new ones written."""

    flops: float
    weight_bytes: float
    cache_read_bytes: float
    cache_written_bytes: float

    @property
    def memory_bytes(self) -> float:
        """Bytes that move to and from memory: weights and KV cache; activations stay on the chip."""
        return self.weight_bytes + self.cache_read_bytes + self.cache_written_bytes

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, in FLOPs per byte."""
        return self.flops / self.memory_bytes


def step_cost(
    config: TransformerConfig,
    parts: Sequence[Part],
    *,
    weight_bytes: float = 2,
    cache_bytes: float = 2,
    window: Window | None = None,
    every_token: bool = False,
) -> StepCost:
    """Work out a step in which each sequence of `parts` gets new tokens after cached ones; InputError for no sequence.

    `weight_bytes` and `cache_bytes` are those of one number. Logits are worked out for the last token of each sequence,
    or with `every_token`, as for drafts, for all. A new token's key is read where it is made, and counted as written.

    >>> from mlsys_lab.configs.presets import preset
    >>> one = step_cost(preset("llama3-8b"), [(1, 8191)])
    >>> f"{one.flops:.3g} FLOPs, {one.weight_bytes:.3g} + {one.cache_read_bytes:.3g} bytes"
    '1.93e+10 FLOPs, 1.5e+10 + 1.07e+09 bytes'
    """
    require_positive(weight_bytes=weight_bytes, cache_bytes=cache_bytes)
    if not parts:
        raise InputError("a step without sequences", expected="(new, past) of one or more")
    for new, past in parts:
        require_at_least_one(new=new)
        require_non_negative(past=past)
    element = cache.elements_per_token(config) * cache_bytes
    tokens = sum(new for new, _ in parts)
    return StepCost(
        flops=sum(
            forward(config, new, past, window=window, head_tokens=new if every_token else 1).total
            for new, past in parts
        ),
        weight_bytes=weight_bytes * parameters_read(config, tokens),
        cache_read_bytes=element * sum(cached_layers(config, past, window) for _, past in parts),
        cache_written_bytes=element * tokens * config.n_layers,
    )


def forward(
    config: TransformerConfig, new: int, past: int = 0, *, window: Window | None = None, head_tokens: int | None = None
) -> compute.Flops:
    """FLOPs, by kind, of `new` tokens of one sequence after `past` cached ones, with a causal mask.

    Latent attention can multiply queries with the vectors that are cached, or first unpack them into keys and values
    (arXiv:2405.04434, §2.1.2: matrices absorbed or not). Absorbed, a pair and head costs 2·(2R + P) instead of
    2·(M + P + U), but nothing is unpacked: 2·R·(M + U) a cached token and head. The cheaper way is counted:
    absorbed for a few new tokens, unpacked for a prompt.
    """
    once = compute.forward(config, new, causal=True, past=past, head_tokens=head_tokens)
    windowed = window.layers if window else 0
    seen = (config.n_layers - windowed) * compute.pairs(new, past, causal=True)
    if window:
        seen += windowed * compute.pairs(new, past, window=window.tokens)
    N, latent = config.n_heads, config.latent
    if latent is None:
        return replace(once, scores=2.0 * seen * N * config.head_dim, values=2.0 * seen * N * config.head_dim)
    unpacking = 2.0 * cached_layers(config, past, window) * N * latent.kv_rank * (latent.nope_dim + latent.v_dim)
    unpacked = replace(
        once,
        key_value=once.key_value + unpacking,
        scores=2.0 * seen * N * config.head_dim,
        values=2.0 * seen * N * latent.v_dim,
    )
    absorbed = replace(once, scores=2.0 * seen * N * _cached_width(latent), values=2.0 * seen * N * latent.kv_rank)
    return min(absorbed, unpacked, key=lambda flops: flops.total)


def cached_layers(config: TransformerConfig, past: int, window: Window | None = None) -> int:
    """Cached tokens that new ones after `past` see, summed over layers: `past` in each, less where a window ends.

    >>> from mlsys_lab.configs.presets import preset
    >>> cached_layers(preset("gemma2-2b"), 10_000), cached_layers(preset("gemma2-2b"), 10_000, Window(4096, 13))
    (260000, 183235)
    """
    windowed = window.layers if window else 0
    reach = min(past, window.tokens - 1) if window else 0
    return (config.n_layers - windowed) * past + windowed * reach


def parameters_read(config: TransformerConfig, tokens: float) -> float:
    """Parameters that a step over `tokens` tokens reads: all matrices once, of the experts those that a token picked.

    Rows of the embedding and of learned positions are not counted; the head is, where it is the embedding too.
    """
    whole, routed = parameters(config), 0
    if experts := config.experts:
        routed = (config.n_layers - experts.dense_layers) * experts.count * mlp_parameters(config, experts.d_ff)
    head = whole.embedding if config.tied else whole.head
    dense = whole.total - whole.embedding - whole.position - whole.head - routed
    return dense + head + experts_used(config, tokens) * routed


def experts_used(config: TransformerConfig, tokens: float) -> float:
    """Fraction of the experts that a step reads when each token picks its own at random: 1 - (1 - active/E)^tokens."""
    if config.experts is None:
        return 1.0
    skipped: float = (1 - config.experts.active / config.experts.count) ** tokens
    return 1 - skipped


def _cached_width(latent: LatentAttention) -> int:
    return latent.kv_rank + latent.rope_dim
