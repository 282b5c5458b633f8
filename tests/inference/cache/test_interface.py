"""What is not possible is said in one line, and changes nothing."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.cache import Contiguous, Paged, SlidingWindow, extend
from tests.inference.making import CONTEXT, build, caches, draw, uncached

MODEL = build()


def lines(cache):
    sequence = cache.start()
    extend(MODEL, cache, {sequence: [1, 2]})
    return {
        "no such sequence in the cache: got 9": lambda: extend(MODEL, cache, {9: [1]}),
        "a step without sequences: expected new tokens": lambda: extend(MODEL, cache, {}),
        "no new token of sequence 0: nothing to attend with; help: a prompt that is fully cached": lambda: extend(
            MODEL, cache, {sequence: []}
        ),
        "sequence 0 outgrows the context: got 25, expected up to 24": lambda: extend(
            MODEL, cache, {sequence: draw(CONTEXT - 1)}
        ),
        "token outside the vocabulary: got 1 to 13, expected 0 to 12": lambda: extend(
            MODEL, cache, {sequence: [1, 13]}
        ),
        "length to cut to: got 3, expected 0 to 2": lambda: cache.truncate(sequence, 3),
        "length to cut to: got -1": lambda: cache.truncate(sequence, -1),
        "the cache belongs to another model: got rotary 2": lambda: extend(build(), cache, {sequence: [1]}),
    }


@pytest.mark.parametrize("name", caches(MODEL))
def test_refusals(name):
    cache = caches(MODEL)[name]
    for words, action in lines(cache).items():
        with pytest.raises(InputError) as refused:
            action()
        assert str(refused.value).startswith(words) and "\n" not in str(refused.value)
    got = extend(MODEL, cache, {0: [3, 4]})[0]
    torch.testing.assert_close(got, uncached(MODEL, [1, 2, 3, 4])[-1])


def test_a_fork_of_a_window_holds_no_more_than_the_window():
    """What the other could take back, the fork cannot: the tokens before its window were not copied."""
    model, tokens = build(window=4), draw(12)
    cache = SlidingWindow(model, sequences=2, chunk=2)
    sequence = cache.start()
    for first in range(0, 10, 2):
        extend(model, cache, {sequence: tokens[first : first + 2]})
    copy = cache.fork(sequence)
    with pytest.raises(
        InputError, match="the window before this length has been replaced: got 9, expected 0, or 10 and"
    ):
        cache.truncate(copy, 9)
    cache.truncate(sequence, 9)
    got = extend(model, cache, {copy: tokens[10:11], sequence: tokens[11:]})
    expected = [uncached(model, text)[-1] for text in (tokens[:11], tokens[:9] + tokens[11:])]
    torch.testing.assert_close(got, torch.stack(expected))


def test_a_pass_that_fails_leaves_the_cache_as_it_was():
    for window in (None, 3):
        model = build(window=window)
        for cache in caches(model, chunk=4).values():
            sequence = cache.start()
            for token in draw(7):
                extend(model, cache, {sequence: [token]})
            block = model.blocks[1].mlp.register_forward_hook(lambda *_: 1 / 0)  # after keys have been written
            with pytest.raises(ZeroDivisionError):
                extend(model, cache, {sequence: draw(4, seed=2)})
            block.remove()
            got = extend(model, cache, {sequence: [5, 6]})[0]
            torch.testing.assert_close(got, uncached(model, [*draw(7), 5, 6])[-1])


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda: Contiguous(MODEL, sequences=0, capacity=5), "sequences must be at least 1: got 0"),
        (lambda: Contiguous(MODEL, sequences=-1, capacity=-5), "sequences must be at least 1: got -1"),
        (lambda: Paged(MODEL, num_blocks=0), "num_blocks must be at least 1"),
        (lambda: Paged(MODEL, num_blocks=1, block_size=0), "block_size must be at least 1: got 0"),
        (lambda: SlidingWindow(MODEL, sequences=1, chunk=1), "a model without a window of attention: got rotary 2"),
        (lambda: SlidingWindow(build(window=3), sequences=1, chunk=0), "chunk must be at least 1: got 0"),
    ],
)
def test_caches_that_cannot_be(action, words):
    with pytest.raises(InputError, match=words):
        action()


def test_rows_that_are_taken_or_full():
    cache = Contiguous(MODEL, sequences=1, capacity=3)
    sequence = cache.start()
    with pytest.raises(InputError, match="every row of the cache is taken: got 1 sequences; help: drop one"):
        cache.start()
    with pytest.raises(InputError, match="a row of the cache is full: got 4 tokens of sequence 0, expected up to 3"):
        extend(MODEL, cache, {sequence: draw(4)})
    cache.drop(sequence)
    assert cache.start() != sequence  # numbers do not come again


def test_a_window_cut_too_far_back():
    model, tokens = build(window=4), draw(12)
    cache = SlidingWindow(model, sequences=1, chunk=2)
    sequence = cache.start()
    with pytest.raises(InputError, match="too many new tokens for one step: got 3, expected up to 2"):
        extend(model, cache, {sequence: tokens[:3]})
    for first in range(0, 10, 2):
        extend(model, cache, {sequence: tokens[first : first + 2]})
    with pytest.raises(
        InputError, match="the window before this length has been replaced: got 7, expected 0, or 8 and"
    ):
        cache.truncate(sequence, 7)
    cache.truncate(sequence, 8)
    got = extend(model, cache, {sequence: tokens[10:]})[0]
    torch.testing.assert_close(got, uncached(model, tokens[:8] + tokens[10:])[-1])
    cache.truncate(sequence, 0)
    extend(model, cache, {sequence: tokens[:2]})
    cache.truncate(sequence, 1)
    got = extend(model, cache, {sequence: tokens[5:6]})[0]
    torch.testing.assert_close(got, uncached(model, [tokens[0], tokens[5]])[-1])
