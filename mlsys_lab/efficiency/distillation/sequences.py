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
    """Keys and values (B, K, S, H) of all layers for sequences of one length, with room for the context."""

    def __init__(self, model: Transformer) -> None:
        self._model, self._num_cached = model, 0
        self._layers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def extend(self, tokens: torch.Tensor) -> torch.Tensor:
        """Compute new tokens (B, T); logits (B, V) after the last."""
        batch, num_new = tokens.shape
        self._num_cached += num_new
        positions = torch.arange(self._num_cached, device=tokens.device)  # (S,)
        biased = num_new > 1 or self._model.config.position == "alibi" or self._model.window is not None
        self._bias = self._model.score_bias(positions[-num_new:], positions) if biased else None  # 20 times as fast
        last = torch.arange(batch, device=tokens.device) * num_new + num_new - 1
        logits: torch.Tensor = self._model(tokens, positions=positions[-num_new:], attend=self._attend, rows=last)
        return logits

    def _attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attention of new tokens to all, which follow those in the cache: a `CachedAttention`."""
        config = self._model.config
        if layer == len(self._layers):
            self._layers.append((_room(k, config.context), _room(v, config.context)))
        stored, num_new = self._layers[layer], k.shape[2]
        for kept, new in zip(stored, (k, v), strict=True):
            kept[:, :, self._num_cached - num_new : self._num_cached] = new
        k, v = (kept[:, :, : self._num_cached] for kept in stored)
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, self._bias, scale=config.head_dim**-0.5, enable_gqa=grouped)


def _room(new: torch.Tensor, context: int) -> torch.Tensor:
    """An empty tensor (B, K, context, H) for what is (B, K, T, H)."""
    return new.new_empty(*new.shape[:2], context, new.shape[3])
