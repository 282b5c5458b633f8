"""Where drafts come from: a smaller model, or an earlier place in the text itself.

Dimension letters: k drafted tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch.nn import functional as F

from mlsys_lab.errors import InputError
from mlsys_lab.inference.cache import Contiguous, extend
from mlsys_lab.inference.generate import Sampling, draw
from mlsys_lab.models import Transformer


class Draft(NamedTuple):
    """Drafted tokens, and the distributions (k, V), float64, that they were drawn from."""

    tokens: list[int]
    probabilities: torch.Tensor


class Drafter(Protocol):
    """Whatever guesses how a text goes on, in tokens 0 to `vocab_size` - 1."""

    vocab_size: int

    def propose(self, text: Sequence[int], count: int, sampling: Sampling, generator: torch.Generator) -> Draft:
        """Draft up to `count` tokens to follow the tokens of `text`, which need not continue any text seen before."""
        ...


class PromptLookup:
    """Drafts copied from the last place at which the text's end stands once more (prompt look-up, A. Saxena, 2023).

    The longest end of `longest` to `shortest` tokens that occurs before decides. It costs no model, and serves texts
    that repeat their prompt: summaries, code, edits. `vocab_size` is the model's.
    """

    def __init__(self, vocab_size: int, *, longest: int = 3, shortest: int = 1) -> None:
        if not 1 <= shortest <= longest:
            expected = "1 <= shortest <= longest"
            raise InputError("tokens to look up", got=f"shortest {shortest}, longest {longest}", expected=expected)
        self.vocab_size, self.longest, self.shortest = vocab_size, longest, shortest

    def propose(self, text: Sequence[int], count: int, sampling: Sampling, generator: torch.Generator) -> Draft:
        """Draft up to `count` tokens, none where the end of the text is new; each with probability 1."""
        tokens = self._look_up(list(text), count)
        ids = torch.tensor(tokens, dtype=torch.int64)
        return Draft(tokens, F.one_hot(ids, self.vocab_size).double())

    def _look_up(self, text: list[int], count: int) -> list[int]:
        for length in range(min(self.longest, len(text) - 1), self.shortest - 1, -1):
            end = text[-length:]
            for place in range(len(text) - length - 1, -1, -1):
                if text[place : place + length] == end:
                    return text[place + length : place + length + count]
        return []


class ModelDrafter:
    """Drafts of a smaller model with the same vocabulary; it keeps keys and values of the text it last drafted for."""

    def __init__(self, model: Transformer) -> None:
        self.model, self.vocab_size = model, model.config.vocab_size
        self.cache = Contiguous(model, sequences=1, capacity=model.config.context)
        self.sequence = self.cache.start()
        self._fed: list[int] = []

    def propose(self, text: Sequence[int], count: int, sampling: Sampling, generator: torch.Generator) -> Draft:
        """Draft `count` tokens, fewer where the context ends, drawn as `sampling` says with one number each."""
        tokens, rows = list(text), []
        for _ in range(min(count, self.model.config.context - len(text))):
            p = sampling.probabilities(self._logits(tokens), tokens)
            uniform = torch.rand((), generator=generator, dtype=torch.float64).to(p.device)
            tokens.append(int(draw(p, uniform)))
            rows.append(p)
        return Draft(tokens[len(text) :], torch.stack(rows) if rows else torch.empty(0, self.vocab_size).double())

    def _logits(self, tokens: list[int]) -> torch.Tensor:
        """Logits (V,) after these tokens: cached as far as they are those fed before, the rest cut off and fed anew."""
        alike = 0
        while alike < min(len(self._fed), len(tokens) - 1) and self._fed[alike] == tokens[alike]:
            alike += 1
        self.cache.truncate(self.sequence, alike)
        del self._fed[alike:]
        logits = extend(self.model, self.cache, {self.sequence: tokens[alike:]})[0]
        self._fed = list(tokens)
        return logits
