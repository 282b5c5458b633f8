"""Blocks shared, copied, found again and evicted, and how many there are."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.cache import Paged, extend
from tests.inference.making import CONTEXT, build, draw, uncached

TOKEN_BYTES = 2 * 2 * 2 * 4 * 8  # keys and values, layers, key/value heads, width, float64


def fed(cache, tokens):
    """Number of a new sequence of the cache with these tokens, and the logits after the last."""
    sequence = cache.start(tokens)
    return sequence, extend(cache.model, cache, {sequence: tokens[cache.length(sequence) :]})[0]


@pytest.mark.parametrize(("length", "num_blocks", "wasted"), [(1, 1, 3), (4, 1, 0), (5, 2, 3), (8, 2, 0), (23, 6, 1)])
def test_a_sequence_holds_whole_blocks(length, num_blocks, wasted):
    cache = Paged(build(), num_blocks=8, block_size=4)
    fed(cache, draw(length))
    assert cache.bytes_held == num_blocks * 4 * TOKEN_BYTES and cache.bytes_wasted == wasted * TOKEN_BYTES


def test_a_shared_prefix_is_computed_and_held_once():
    cache, text = Paged(build(), num_blocks=12, block_size=4), draw(11)
    fed(cache, text)
    other = [*text[:10], (text[10] + 1) % 13, 5]
    sequence = cache.start(other)
    assert cache.length(sequence) == 8 and cache.bytes_held == 3 * 4 * TOKEN_BYTES
    logits = extend(cache.model, cache, {sequence: other[8:]})[0]
    torch.testing.assert_close(logits, uncached(cache.model, other)[-1])
    assert cache.bytes_held == 4 * 4 * TOKEN_BYTES and cache.bytes_wasted == TOKEN_BYTES


@pytest.mark.parametrize(("length", "known"), [(8, 4), (9, 8), (4, 0), (12, 8)])
def test_the_last_token_of_a_cached_prompt_is_computed_again(length, known):
    cache, text = Paged(build(), num_blocks=12, block_size=4), draw(13)
    fed(cache, text)
    sequence, logits = fed(cache, text[:length])
    assert cache.length(sequence) == length
    assert cache.length(cache.start(text[:length])) == known
    torch.testing.assert_close(logits, uncached(cache.model, text[:length])[-1])


def test_equal_blocks_after_different_prefixes_are_not_shared():
    cache, text = Paged(build(), num_blocks=12, block_size=4), draw(13)
    fed(cache, text)
    assert cache.length(cache.start(text[4:13])) == 0  # its first block is cached as a second one only
    assert cache.length(cache.start(text[:4] + text[8:13])) == 4
    assert cache.length(cache.start(draw(4, seed=5) + text[4:])) == 0


def test_free_blocks_stay_cached_until_they_are_evicted():
    cache, text = Paged(build(), num_blocks=6, block_size=4), draw(17)
    sequence, _ = fed(cache, text)
    cache.drop(sequence)
    assert cache.bytes_held == 0
    sequence = cache.start(text)
    assert cache.length(sequence) == 16  # all four full blocks
    cache.drop(sequence)
    sequence, _ = fed(cache, draw(13, seed=3))  # four blocks: two are blank, two are evicted from the end of the text
    cache.drop(sequence)
    sequence = cache.start(text)
    assert cache.length(sequence) == 8
    logits = extend(cache.model, cache, {sequence: text[8:]})[0]
    torch.testing.assert_close(logits, uncached(cache.model, text)[-1])


def test_the_least_recently_used_block_is_evicted_first():
    cache, texts = Paged(build(), num_blocks=4, block_size=4), [draw(5, seed=seed) for seed in (1, 2)]
    for text in texts:
        sequence, _ = fed(cache, text)
        cache.drop(sequence)
    sequence, _ = fed(cache, draw(9, seed=3))  # of four blocks two are blank; the third was the first text's
    assert [cache.length(cache.start(text)) for text in texts] == [0, 4]


def test_writing_into_a_truncated_block_uncaches_it():
    cache, text = Paged(build(), num_blocks=6, block_size=4), draw(9)
    sequence, _ = fed(cache, text)
    cache.truncate(sequence, 2)
    extend(cache.model, cache, {sequence: [(token + 1) % 13 for token in text[2:5]]})
    newcomer = cache.start(text)
    assert cache.length(newcomer) == 0
    logits = extend(cache.model, cache, {newcomer: text})[0]
    torch.testing.assert_close(logits, uncached(cache.model, text)[-1])


def test_a_step_without_room_changes_nothing():
    cache, text = Paged(build(), num_blocks=4, block_size=4), draw(12)
    first, _ = fed(cache, text[:6])
    second = cache.fork(first)
    third = cache.start()
    held = cache.bytes_held
    # A copy of the shared block, and three blocks of the third; two are free.
    with pytest.raises(InputError, match="the cache is full: got 4 more blocks needed, expected up to 2; help: drop a"):
        extend(cache.model, cache, {first: [1], second: [2], third: text})
    assert cache.bytes_held == held and cache.length(third) == 0
    got = extend(cache.model, cache, {first: [1], second: [2], third: [3]})  # one copy and one block: just enough
    for row, tokens in enumerate(([*text[:6], 1], [*text[:6], 2], [3])):
        torch.testing.assert_close(got[row], uncached(cache.model, tokens)[-1])


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_events(seed, window):
    """Sequences with shared prefixes start, grow, fork, are truncated and dropped in a small pool: logits are right."""
    random, model = Random(seed), build(window=window)
    cache, texts = Paged(model, num_blocks=11, block_size=3), {}
    prefixes = draw(2, 10, seed=seed)
    refused = 0
    for _ in range(90):
        sequence = random.choice([*texts, None, None])
        event = random.choice(["extend", "extend", "fork", "truncate", "drop"])
        try:
            if sequence is None:
                text = random.choice(prefixes)[: random.randint(1, 10)] + draw(2, seed=random.randint(0, 3))
                sequence = cache.start(text)
                new, texts[sequence] = text[cache.length(sequence) :], text[: cache.length(sequence)]
                event = "extend"
            else:
                new = draw(random.randint(1, 4), seed=random.randint(0, 3))
            if event == "extend":
                if len(texts[sequence]) + len(new) > CONTEXT:
                    continue
                logits = extend(model, cache, {sequence: new})[0]
                texts[sequence] = texts[sequence] + new
                torch.testing.assert_close(logits, uncached(model, texts[sequence])[-1])
            elif event == "fork":
                texts[cache.fork(sequence)] = texts[sequence]
            elif event == "truncate":
                length = random.randint(0, len(texts[sequence]))
                cache.truncate(sequence, length)
                texts[sequence] = texts[sequence][:length]
            else:
                cache.drop(sequence)
                del texts[sequence]
        except InputError:
            refused += 1
        assert {s: cache.length(s) for s in texts} == {s: len(text) for s, text in texts.items()}
        counted = Counter(block for number in cache.sequences for block in cache.block_table(number))
        assert [counted[block] for block in range(11)] == cache.pool.ref_cnt
    assert refused > 0 and len(texts) > 0
    for sequence in texts:
        cache.drop(sequence)
    assert cache.bytes_held == 0 and cache.pool.num_free_blocks == 11
