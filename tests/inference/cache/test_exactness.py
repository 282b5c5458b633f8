"""Logits with a cache are those without, whatever the layout, the heads, the batch and where a prompt is cut."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.inference.cache import Contiguous, Paged, SlidingWindow, extend
from tests.inference.making import CONTEXT, V, build, caches, draw, uncached

# Logits are up to 7 in size; 3e-15 was seen.
CLOSE = {"rtol": 0, "atol": 1e-13}
KINDS = [(position, heads) for position in ("learned", "rotary", "alibi") for heads in (4, 2, 1)]
KINDS.append(("rotary", "latent"))


@pytest.mark.parametrize("window", [None, 1, 6])
@pytest.mark.parametrize(("position", "heads"), KINDS)
def test_token_by_token(position, heads, window):
    model, (tokens,) = build(position, heads, window), draw(1, 17)
    expected = uncached(model, tokens)
    for name, cache in caches(model, chunk=1).items():
        sequence = cache.start()
        got = torch.cat([extend(model, cache, {sequence: [token]}) for token in tokens])
        torch.testing.assert_close(got, expected, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize(("position", "heads"), [("learned", 2), ("rotary", 2), ("alibi", 2), ("rotary", "latent")])
def test_a_prompt_cut_anywhere(position, heads, window):
    model, (tokens,) = build(position, heads, window), draw(1, 13)
    expected = uncached(model, tokens)
    for cut in range(1, 13):
        for name, cache in caches(model).items():
            sequence = cache.start()
            parts = [extend(model, cache, {sequence: part}, every_token=True) for part in (tokens[:cut], tokens[cut:])]
            torch.testing.assert_close(
                torch.cat(parts), expected, **CLOSE, msg=lambda text, name=name, cut=cut: f"{name}, {cut}: {text}"
            )


@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize(("position", "heads"), KINDS)
def test_ragged_batches_with_several_queries_a_sequence(position, heads, window, experts):
    """Chunks of prompts, drafts and single tokens of sequences of all lengths in one step, in changing company."""
    model, texts = build(position, heads, window, experts=experts), draw(3, CONTEXT)
    steps = [{0: 7, 1: 1}, {1: 2, 2: 11, 0: 1}, {2: 1}, {0: 4, 2: 3, 1: 9}, {1: 1, 0: 1, 2: 1}]
    expected = [uncached(model, text) for text in texts]
    for name, cache in caches(model).items():
        sequences = [cache.start() for _ in texts]
        for step in steps:
            first = {i: cache.length(sequences[i]) for i in step}
            new = {sequences[i]: texts[i][first[i] : first[i] + count] for i, count in step.items()}
            got = extend(model, cache, new)
            wanted = torch.stack([expected[i][first[i] + count - 1] for i, count in step.items()])
            torch.testing.assert_close(got, wanted, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("window", [None, 6])
def test_what_is_taken_back_leaves_nothing_behind(window):
    """As after rejected drafts: no stale key is attended to, and positions go on from the length cut to."""
    model, texts = build(window=window), draw(2, 18)
    for name, cache in caches(model, chunk=5).items():
        sequence = cache.start()
        for first in range(0, 12, 4):
            extend(model, cache, {sequence: texts[0][first : first + 4]})
        for kept in (12, 11, 9):
            drafts = extend(model, cache, {sequence: texts[1][:2]}, every_token=True)
            torch.testing.assert_close(
                drafts, uncached(model, texts[0][: cache.length(sequence) - 2] + texts[1][:2])[-2:]
            )
            cache.truncate(sequence, kept)
        assert cache.length(sequence) == 9
        got = extend(model, cache, {sequence: texts[1][5:8]}, every_token=True)
        expected = uncached(model, texts[0][:9] + texts[1][5:8])[-3:]
        torch.testing.assert_close(got, expected, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("window", [None, 6])
def test_forks_go_their_own_ways(window):
    model, (tokens, one, other) = build(window=window), draw(3, 9)
    for name, cache in caches(model).items():
        first = cache.start()
        extend(model, cache, {first: tokens})
        second = cache.fork(first)
        for part in range(0, 9, 3):  # together, so that both write into the page that they share
            got = extend(model, cache, {first: one[part : part + 3], second: other[part : part + 3]})
            wanted = torch.stack([uncached(model, tokens + new[: part + 3])[-1] for new in (one, other)])
            torch.testing.assert_close(got, wanted, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")
        cache.drop(first)
        cache.drop(second)
        assert cache.bytes_held == 0


def test_room_that_was_used_before_is_as_good_as_new():
    for window in (None, 3):
        model, texts = build(window=window), draw(5, 11)
        for name, cache in caches(model, sequences=1).items():
            for text in texts:
                sequence = cache.start()
                got = extend(model, cache, {sequence: text}, every_token=True)
                torch.testing.assert_close(
                    got, uncached(model, text), **CLOSE, msg=lambda text, name=name: f"{name}: {text}"
                )
                cache.drop(sequence)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes(dtype):
    """fp32 and bf16 keep 24 and 8 bits; logits up to 7 come of some hundred roundings."""
    model, (tokens,) = build(dtype=dtype), draw(1, 17)
    for cache in caches(model).values():
        sequence = cache.start()
        got = torch.cat([extend(model, cache, {sequence: [token]}) for token in tokens])
        assert got.dtype == dtype
        torch.testing.assert_close(got, uncached(model, tokens), rtol=0, atol=7 * 32 * torch.finfo(dtype).eps)


def test_a_full_context_is_the_last_that_fits():
    model, (tokens,) = build(), draw(1, CONTEXT)
    for cache in (Contiguous(model, sequences=1, capacity=CONTEXT), Paged(model, num_blocks=3, block_size=8)):
        sequence = cache.start()
        got = extend(model, cache, {sequence: tokens})
        torch.testing.assert_close(got[0], uncached(model, tokens)[-1], **CLOSE)
        assert got.shape == (1, V) and cache.bytes_wasted == 0


def test_a_window_holds_no_more_than_it_needs():
    model = build(window=6)
    cache = SlidingWindow(model, sequences=2, chunk=3)
    sequence = cache.start()
    for token in draw(20):
        extend(model, cache, {sequence: [token]})
    token_bytes = 2 * 2 * 2 * 4 * 8  # keys and values, layers, heads, width, float64
    assert cache.bytes_held == (6 - 1 + 3) * token_bytes
    assert cache.bytes_wasted == 3 * token_bytes
