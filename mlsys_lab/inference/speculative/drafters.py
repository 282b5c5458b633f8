"""Drafters: a smaller model, or a look-up in the sequence itself.

Dimension letters: k draft tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch.nn import functional as F

from mlsys_lab.errors import InputError
from mlsys_lab.inference.cache import Contiguous, extend
from mlsys_lab.inference.engine.sampler import adjust_logits, draw, next_token_probabilities
from mlsys_lab.inference.engine.sequence import SamplingParams
from mlsys_lab.models import Transformer


class Draft(NamedTuple):
    """Draft tokens, and the distributions (k, V), float64, that they were drawn from."""

    token_ids: list[int]
    probabilities: torch.Tensor


def certain(token_ids: Sequence[int], vocab_size: int) -> torch.Tensor:
    """Distributions (k, V), float64, that give each token a probability of 1."""
    return F.one_hot(torch.tensor(token_ids, dtype=torch.int64), vocab_size).double()


class Drafter(Protocol):
    """Proposes draft tokens of a sequence, from 0 to `vocab_size` - 1."""

    vocab_size: int

    def propose(
        self, token_ids: Sequence[int], num_tokens: int, params: SamplingParams, generator: torch.Generator
    ) -> Draft:
        """Draft up to `num_tokens` tokens to follow `token_ids`, which need not continue an earlier call's."""
        ...


class PromptLookup:
    """Drafts copied from the last earlier occurrence of the sequence's end (prompt look-up, A. Saxena, 2023).

    The longest end of `longest` to `shortest` tokens that occurs earlier is used. It costs no model, and suits outputs
    that repeat their prompt: summaries, code, edits. `vocab_size` is the model's.
    """

    def __init__(self, vocab_size: int, *, longest: int = 3, shortest: int = 1) -> None:
        if not 1 <= shortest <= longest:
            expected = "1 <= shortest <= longest"
            raise InputError("tokens to look up", got=f"shortest {shortest}, longest {longest}", expected=expected)
        self.vocab_size, self.longest, self.shortest = vocab_size, longest, shortest

    def propose(
        self, token_ids: Sequence[int], num_tokens: int, params: SamplingParams, generator: torch.Generator
    ) -> Draft:
        """Draft up to `num_tokens` tokens, none if the end is new; each with probability 1."""
        found = self._look_up(list(token_ids), num_tokens)
        return Draft(found, certain(found, self.vocab_size))

    def _look_up(self, token_ids: list[int], num_tokens: int) -> list[int]:
        for length in range(min(self.longest, len(token_ids) - 1), self.shortest - 1, -1):
            end = token_ids[-length:]
            for start in range(len(token_ids) - length - 1, -1, -1):
                if token_ids[start : start + length] == end:
                    return token_ids[start + length : start + length + num_tokens]
        return []


class ModelDrafter:
    """Drafts of a smaller model with the same vocabulary; it caches the sequence that it drafted for last."""

    def __init__(self, model: Transformer) -> None:
        self.model, self.vocab_size = model, model.config.vocab_size
        self.cache = Contiguous(model, sequences=1, capacity=model.config.context)
        self.sequence = self.cache.start()
        self._computed: list[int] = []

    def propose(
        self, token_ids: Sequence[int], num_tokens: int, params: SamplingParams, generator: torch.Generator
    ) -> Draft:
        """Draft `num_tokens` tokens, fewer at the end of the context, sampled with one random number each."""
        tokens, rows = list(token_ids), []
        for _ in range(min(num_tokens, self.model.config.context - len(token_ids))):
            logits = self._logits(tokens)
            if params.is_greedy:
                tokens.append(int(adjust_logits(params, logits[None], [tokens], [0])[0].argmax()))
                continue
            p = next_token_probabilities(params, logits, tokens)
            uniform = torch.rand((), generator=generator, dtype=torch.float64).to(p.device)
            tokens.append(int(draw(p, uniform)))
            rows.append(p)
        drafts = tokens[len(token_ids) :]
        return Draft(drafts, torch.stack(rows) if rows else certain(drafts, self.vocab_size))

    def _logits(self, token_ids: list[int]) -> torch.Tensor:
        """Logits (V,) after these tokens, of which the longest prefix in the cache is not computed again."""
        common = min(len(self._computed), len(token_ids) - 1)
        if self._computed[:common] != token_ids[:common]:
            common = next(i for i in range(common) if self._computed[i] != token_ids[i])
        logits = self._extend(common, token_ids[common:])
        self._computed = list(token_ids)
        return logits

    def _extend(self, common: int, token_ids: Sequence[int]) -> torch.Tensor:
        """Logits (V,) after these tokens, which follow the first `common` tokens in the cache."""
        self.cache.truncate(self.sequence, common)
        return extend(self.model, self.cache, {self.sequence: token_ids})[0]
