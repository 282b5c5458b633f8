"""Text from a random grammar whose entropy is known, so that a model's loss can be compared with the least possible.

A public repository cannot hide its texts, but a text sampled from a secret seed has never been seen. The grammar is
simple (Korenjak and Hopcroft 1966): the rules of a nonterminal begin with different tokens, so a sentence has one
derivation, and the nonterminals that are still open give the next token's probabilities. A model has to infer these
from the context, because nonterminals share tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import log
from random import Random

import numpy as np
from numpy.typing import NDArray

from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_integer

Tokens = NDArray[np.int64]
START = 0
"""Nonterminal of a whole sentence."""
END = 0
"""Token after each sentence."""
SENTENCE = (-1, START)
"""What is open before a sentence, the next last: -1 stands for its `END`."""
CHILDREN = (0, 0, 0, 1, 1, 2)
"""How many nonterminals a random rule opens, each as likely as the next; the rules of a sentence open 3."""
LARGEST_GROWTH = 0.9
"""Largest growth of the number of open nonterminals from one generation to the next in a random grammar."""


@dataclass(frozen=True)
class Rule:
    """A rule of a nonterminal: chosen with `probability`, it gives `token`, then expands `opens` from left to right."""

    probability: float
    token: int
    opens: tuple[int, ...] = ()


@dataclass(frozen=True)
class Grammar:
    """A probabilistic simple grammar: the rules of each nonterminal; a text is sentences, each followed by `END`.

    Raises InputError unless each nonterminal's rules have different tokens and probabilities that add to 1, and
    sentences end after finitely many tokens on average.
    """

    rules: tuple[tuple[Rule, ...], ...]

    def __post_init__(self) -> None:
        for nonterminal, rules in enumerate(self.rules):
            total = sum(rule.probability for rule in rules)
            if len({rule.token for rule in rules} - {END}) < len(rules) or abs(total - 1) > 1e-9:
                got = f"tokens {[rule.token for rule in rules]}, with probabilities of {total:g} together"
                expected = f"different tokens other than {END}, and 1"
                raise InputError(f"rules of nonterminal {nonterminal}", got=got, expected=expected)
        if (growth := _growth(self.rules)) >= 1:
            got = f"{growth:.3g} nonterminals opened by one"
            raise InputError("sentences that may never end", got=got, expected="fewer than 1")

    @classmethod
    def random(cls, seed: int, *, vocab_size: int = 64, nonterminals: int = 24, rules: int = 6) -> Grammar:
        """A grammar with `rules` rules for each nonterminal, whose probabilities follow Zipf's law.

        InputError for fewer than 2 nonterminals or rules, or without a token for each rule of a nonterminal and `END`.
        """
        require_integer("nonterminals", nonterminals, at_least=2)
        require_integer("rules", rules, at_least=2)
        require_integer("vocab_size", vocab_size, at_least=rules + 1)
        numbers = Random(seed)
        zipf = [1 / rank for rank in range(1, rules + 1)]

        def draw(nonterminal: int) -> tuple[Rule, ...]:
            counts = [3] * rules if nonterminal == START else numbers.choices(CHILDREN, k=rules)
            opened = [tuple(numbers.choices(range(1, nonterminals), k=count)) for count in counts]
            tokens = numbers.sample(range(1, vocab_size), rules)
            return tuple(
                Rule(p / sum(zipf), *rule) for p, rule in zip(zipf, zip(tokens, opened, strict=True), strict=True)
            )

        while True:
            table = tuple(draw(nonterminal) for nonterminal in range(nonterminals))
            if _growth(table) < LARGEST_GROWTH:
                return cls(table)

    @property
    def vocab_size(self) -> int:
        """One more than the largest token."""
        return 1 + max(rule.token for rules in self.rules for rule in rules)

    @cached_property
    def entropy(self) -> float:
        """Entropy of a token in nats: over long texts no model has a smaller mean loss.

        That of a sentence over its mean length. A nonterminal has those of its own choice and, for each nonterminal
        that it opens, those of the latter: two systems of linear equations.
        """
        choice = [-sum(rule.probability * log(rule.probability) for rule in rules) for rules in self.rules]
        own = np.stack([choice, np.ones(len(self.rules))], -1)
        entropy, length = np.linalg.solve(np.eye(len(self.rules)) - _mean_opened(self.rules), own)[START]
        return float(entropy / (length + 1))  # END is certain

    def sample(self, num_tokens: int, *, seed: int) -> Tokens:
        """The first tokens (num_tokens,) of a text, determined by the seed; it begins with a sentence."""
        require_integer("num_tokens", num_tokens, at_least=1)
        return np.fromiter(islice(self._generate(Random(seed)), num_tokens), np.int64, num_tokens)

    def loss(self, tokens: Tokens) -> float:
        """Mean negative log-likelihood of a text (D,) under the grammar, in nats per token; it starts with a sentence.

        InputError for a text that the grammar does not generate.
        """
        nats, open_ = 0.0, [*SENTENCE]
        for position, token in enumerate(tokens.tolist()):
            expected = {rule.token: rule for rule in self._table[open_.pop()]}
            if token not in expected:
                got, tokens_ = f"{token} at position {position}", ", ".join(map(str, sorted(expected)))
                raise InputError("not a text of this grammar", got=got, expected=f"one of {tokens_}")
            nats -= log(expected[token].probability)
            open_.extend(reversed(expected[token].opens))
            open_ = open_ or [*SENTENCE]
        return nats / len(tokens)

    def _generate(self, numbers: Random) -> Iterator[int]:
        """Tokens of a text without end."""
        table = [(rules, [rule.probability for rule in rules]) for rules in self._table]
        while True:
            open_ = [*SENTENCE]
            while open_:
                (rule,) = numbers.choices(*table[open_.pop()])
                yield rule.token
                open_.extend(reversed(rule.opens))

    @property
    def _table(self) -> tuple[tuple[Rule, ...], ...]:
        """The rules of each nonterminal, at -1 those of the end of a sentence."""
        return (*self.rules, (Rule(1.0, END),))


def _mean_opened(rules: tuple[tuple[Rule, ...], ...]) -> NDArray[np.float64]:
    """How many nonterminals of each kind one of each kind opens on average: (nonterminals, nonterminals)."""
    mean = np.zeros((len(rules), len(rules)))
    for nonterminal, alternatives in enumerate(rules):
        for rule in alternatives:
            for opened in rule.opens:
                mean[nonterminal, opened] += rule.probability
    return mean


def _growth(rules: tuple[tuple[Rule, ...], ...]) -> float:
    """Growth of the number of open nonterminals per generation: the largest eigenvalue of the mean."""
    return float(np.abs(np.linalg.eigvals(_mean_opened(rules))).max())
