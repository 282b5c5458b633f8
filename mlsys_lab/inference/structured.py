"""Structured outputs: sequences limited to the texts of a grammar, by a mask over the vocabulary at each token.

The library llguidance keeps a parser for each sequence and knows which tokens it can take next. Grammars are in its
dialect of Lark, in which `%json {...}` stands for the texts of a JSON schema. Needs the extra `serve`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from mlsys_lab.errors import InputError
from mlsys_lab.inference.text.interface import ChatTokenizer, TokenBytes

SOURCE_LINES = re.compile(r"\n +\d+ \| .*", re.DOTALL)
"""The part of an error message of llguidance that quotes the grammar."""


class GrammarCompiler:
    """Compiles grammars for one vocabulary: that of `tokenizer`, for a model with `vocab_size` logits.

    The model's stop tokens end a sequence, wherever its text may end.
    """

    def __init__(self, tokenizer: ChatTokenizer, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        # A model without stop tokens gets one outside its vocabulary, which is never sampled.
        stop_token_ids = list(tokenizer.stop_token_ids) or [vocab_size]
        vocabulary = _Vocabulary(tokenizer, vocab_size, stop_token_ids)
        self._tokenizer = LLTokenizer(TokenizerWrapper(vocabulary), eos_token=stop_token_ids)

    def compile(self, grammar: str) -> GrammarConstraint:
        """Constraint at the start of a grammar's texts; InputError, in one line, for an unsupported grammar."""
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            reason = " ".join(SOURCE_LINES.sub("", matcher.get_error()).split()).rpartition("JSON schema: ")[2]
            raise InputError("the grammar or schema is not supported", got=reason)
        return GrammarConstraint(matcher, self.vocab_size)


class GrammarConstraint:
    """`Constraint` of one sequence by a grammar."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher, self._vocab_size, self._has_failed = matcher, vocab_size, False

    def fork(self) -> GrammarConstraint:
        """A constraint that goes on from here independently."""
        return GrammarConstraint(self._matcher.deep_copy(), self._vocab_size)

    def mask(self) -> torch.Tensor:
        """Tokens that may come next, (V,); all of them once the parser has failed, since `accept` then ends the text.

        A parser fails where it exceeds llguidance's limits, and where no token continues the text.
        """
        words = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._has_failed = self._matcher.is_stopped()
        if self._has_failed:
            return torch.ones(self._vocab_size, dtype=torch.bool)
        bits = np.unpackbits(words, count=self._vocab_size, bitorder="little")
        return torch.from_numpy(bits.view(np.bool_))

    def accept(self, token_id: int) -> Literal["stop", "length"] | None:
        """Advance by a sampled token; "stop" if the text is complete, "length" if the parser has failed."""
        if self._has_failed or not self._matcher.consume_token(token_id):
            return "length"
        return "stop" if self._matcher.is_stopped() else None


class _Vocabulary:
    """What llguidance needs of a tokenizer: the bytes of all tokens, none for a stop token, and a tokenization."""

    bos_token_id = None

    def __init__(self, tokenizer: TokenBytes, vocab_size: int, stop_token_ids: Sequence[int]) -> None:
        self.eos_token_id = stop_token_ids[0]
        stops = set(stop_token_ids)
        num_tokens = max(vocab_size - 1, *stops) + 1
        self.tokens = [b"" if token in stops else tokenizer.token_bytes(token) for token in range(num_tokens)]
        self._token_of = {token_bytes: token for token, token_bytes in enumerate(self.tokens) if token_bytes}
        self._longest = max(map(len, self._token_of))

    def __call__(self, text: bytes) -> list[int]:
        """Longest tokens first, up to a byte that is no token; for text that a grammar leaves no choice of."""
        token_ids, start = [], 0
        while start < len(text):
            ends = range(min(len(text), start + self._longest), start, -1)
            end = next((end for end in ends if text[start:end] in self._token_of), None)
            if end is None:
                break
            token_ids.append(self._token_of[text[start:end]])
            start = end
        return token_ids
