"""Random grammars: entropy by hand and by sampling, texts by their seed, and what is refused."""

from math import log

import numpy as np
import pytest

from mlsys_lab.efficiency.grammar import END, Grammar, Rule
from mlsys_lab.errors import InputError

LIST = Grammar((
    (Rule(1.0, 1, (1,)),),
    (Rule(0.5, 2, (1,)), Rule(0.5, 3)),
))  # fmt: skip
"""1, then any number of 2, then 3 and END: each choice is a bit, and there are two on average."""


def test_the_entropy_of_a_list_by_hand():
    assert LIST.entropy == pytest.approx(2 * log(2) / 4)  # 1, 2 choices, END
    assert LIST.vocab_size == 4


def test_the_loss_is_the_surprise_of_each_choice():
    assert LIST.loss(np.array([1, 2, 2, 3, END, 1, 3])) == pytest.approx(4 * log(2) / 7)


@pytest.mark.parametrize("seed", range(5))
def test_a_long_text_has_the_entropy_s_surprise(seed):
    grammar = Grammar.random(seed)
    tokens = grammar.sample(100_000, seed=seed)
    assert grammar.loss(tokens) == pytest.approx(grammar.entropy, rel=0.02)
    assert tokens.min() >= 0 and tokens.max() < grammar.vocab_size <= 64


def test_a_text_is_determined_by_its_seed_and_any_length_is_a_beginning():
    grammar = Grammar.random(3)
    assert grammar == Grammar.random(3) != Grammar.random(4)
    whole = grammar.sample(1000, seed=1)
    np.testing.assert_array_equal(whole[:123], grammar.sample(123, seed=1))
    assert not np.array_equal(whole, grammar.sample(1000, seed=2))


def test_what_is_refused_in_one_line():
    with pytest.raises(InputError, match="not a text of this grammar: got 1 at position 2, expected one of 2, 3"):
        LIST.loss(np.array([1, 2, 1]))
    with pytest.raises(
        InputError, match=r"rules of nonterminal 0: got tokens .2, 2., with probabilities of 0.9 together"
    ):
        Grammar(((Rule(0.5, 2), Rule(0.4, 2)),))
    with pytest.raises(InputError, match="sentences that may never end: got 1 nonterminals opened by one"):
        Grammar(((Rule(0.5, 1, (0, 0)), Rule(0.5, 2)),))
    with pytest.raises(InputError, match="vocab_size"):
        Grammar.random(0, vocab_size=6)
