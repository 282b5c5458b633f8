"""Distillation on sequences: the teacher generates a text, and the student trains on it as on any other.

Dimension letters: B sequences of a batch, P prompt tokens, T new tokens, S cached tokens, N query heads, K KV heads,
H head_dim.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer
from mlsys_lab.validation import require_integer, require_positive_number


@torch.no_grad()
def generate_text(
    teacher: Transformer, prompts: torch.Tensor, num_tokens: int, *, seed: int, temperature: float = 1.0
) -> torch.Tensor:
    """Continuations of prompts (B, P), sampled from the teacher: (B, num_tokens) token ids, the prompts left out.

    Sequence-level distillation (Kim and Rush, arXiv:1606.07947, §3.2) replaces the data by such text; the paper takes
    the teacher's likeliest translation by beam search, while a language model without a source has to be sampled. A
    text may be longer than the context: when the context is full, generation continues from its second half.
    InputError for prompts that are empty or fill the context.
    """
    require_integer("num_tokens", num_tokens)
    require_positive_number("temperature", temperature)
    context = teacher.config.context
    if prompts.ndim != 2 or not prompts.numel() or prompts.shape[1] >= context:
        raise InputError("prompts", got=tuple(prompts.shape), expected=f"(B, P), P from 1 to {context - 1}")
    generator = torch.Generator(prompts.device).manual_seed(seed)
    text, length = prompts, prompts.shape[1] + num_tokens
    while text.shape[1] < length:
        new = text if text.shape[1] < context else text[:, -(context // 2) :]
        cache = _Cache(teacher)
        for _ in range(min(context - new.shape[1], length - text.shape[1])):
            logits = cache.extend(new)  # (B, V)
            new = torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator)
            text = torch.cat([text, new], 1)
    return text[:, prompts.shape[1] :]


class _Cache:
    """Keys and values (B, K, S, H) of all layers for sequences of one length."""

    def __init__(self, model: Transformer) -> None:
        self._model, self._num_cached = model, 0
        self._layers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def extend(self, tokens: torch.Tensor) -> torch.Tensor:
        """Compute new tokens (B, T); logits (B, V) after the last."""
        batch, num_new = tokens.shape
        positions = torch.arange(self._num_cached, self._num_cached + num_new, device=tokens.device)
        self._num_cached += num_new
        self._bias = self._model.score_bias(positions, torch.arange(self._num_cached, device=tokens.device))
        rows = torch.arange(batch, device=tokens.device) * num_new + num_new - 1
        logits: torch.Tensor = self._model(tokens, positions=positions, attend=self._attend, rows=rows)
        return logits

    def _attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attention of new tokens to all, which follow those in the cache: a `CachedAttention`."""
        if layer == len(self._layers):
            self._layers.append((k, v))
        else:
            past_k, past_v = self._layers[layer]
            self._layers[layer] = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
        k, v = self._layers[layer]
        scale = self._model.config.head_dim**-0.5
        return F.scaled_dot_product_attention(q, k, v, self._bias, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
