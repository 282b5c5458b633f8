"""Texts written with drafts are those written without, and the cache holds nothing of a rejected draft."""

from __future__ import annotations

import math

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.engine import Request, SamplingParams
from mlsys_lab.inference.engine.sampler import next_token_probabilities
from mlsys_lab.inference.generate import generate
from mlsys_lab.inference.speculative import Draft, ModelDrafter, PromptLookup, speculate
from tests.inference.making import CONTEXT, V, build, caches, draw, uncached

GREEDY = SamplingParams(temperature=0)
PENALISED = SamplingParams(temperature=0, repetition_penalty=1.3)
SMALLER = build(kv_heads=1, seed=1)


class Guesses:
    """Drafts that know nothing: mostly rejected, at any place."""

    vocab_size = V

    def __init__(self):
        self.random = torch.Generator().manual_seed(0)

    def propose(self, text, count, sampling, generator):
        tokens = torch.randint(V, (count,), generator=self.random)
        return Draft(tokens.tolist(), torch.nn.functional.one_hot(tokens, V).double())


class Half(Guesses):
    """Drafts of the model itself, each a guess in one of three cases: accepted up to any place."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def propose(self, text, count, sampling, generator):
        tokens = list(text)
        for _ in range(count):
            best = int(uncached(self.model, tokens)[-1].argmax())
            guess, luck = torch.randint(V, (2,), generator=self.random).tolist()
            tokens.append(guess if luck < V // 3 else best)
        drafted = tokens[len(text) :]
        return Draft(drafted, torch.nn.functional.one_hot(torch.tensor(drafted, dtype=torch.int64), V).double())


@pytest.mark.parametrize(("window", "sampling"), [(None, PENALISED), (6, GREEDY)], ids=["penalised", "window"])
def test_greedy_texts_are_those_without_drafts(window, sampling):
    model = build(window=window)
    request = Request(draw(7), 15, sampling)
    (expected,) = generate(model, [request])[0]
    for make in (Guesses, lambda: Half(model), lambda: PromptLookup(V), lambda: ModelDrafter(SMALLER)):
        for name, cache in caches(model, sequences=1, chunk=5).items():
            got = speculate(model, request, make(), num_speculative_tokens=4, cache=cache)
            assert got.completion.token_ids == expected.token_ids, name
            assert got.completion.logprobs == pytest.approx(expected.logprobs, abs=1e-12)
            assert got.completion.finish_reason == "length" and cache.sequences == []


@pytest.mark.parametrize("drafts", [1, 2, 4, 9])
def test_a_drafter_that_is_right_adds_a_token_of_its_own(drafts):
    """All drafts and the bonus token in every step: as few steps as there can be."""
    model = build()
    for sampling in (GREEDY, SamplingParams(temperature=1.3, top_k=6, seed=4)):
        got = speculate(model, Request(draw(5), 19, sampling), ModelDrafter(model), num_speculative_tokens=drafts)
        assert got.num_accepted_tokens == got.num_draft_tokens and got.num_steps == math.ceil(19 / (drafts + 1))
        assert len(got.completion.token_ids) == 19 == got.num_accepted_tokens + got.num_steps


def test_nothing_is_drafted_beyond_the_end():
    for left in (1, 2, 3):
        got = speculate(build(), Request(draw(5), left, GREEDY), Guesses(), num_speculative_tokens=6)
        assert len(got.completion.token_ids) == left and got.num_draft_tokens <= left * (left - 1) // 2


def test_a_seed_writes_one_text():
    model, request = build(), Request(draw(5), 12, SamplingParams(temperature=1.5, seed=8))
    texts = [speculate(model, request, ModelDrafter(SMALLER)).completion.token_ids for _ in range(2)]
    other = Request(draw(5), 12, SamplingParams(temperature=1.5, seed=9))
    assert texts[0] == texts[1] != speculate(model, other, ModelDrafter(SMALLER)).completion.token_ids


def test_a_stop_sequence_among_the_drafts():
    model = build()
    free = generate(model, [Request(draw(4), 15, GREEDY)])[0][0].token_ids
    for end in range(2, 16):
        request = Request(draw(4), 15, GREEDY, stop_token_sequences=[free[end - 2 : end]])
        (expected,) = generate(model, [request])[0]
        assert (
            speculate(model, request, ModelDrafter(model), num_speculative_tokens=6).completion.token_ids
            == expected.token_ids
        )


def test_prompts_of_one_token_and_a_full_context():
    model = build()
    for request in (Request([3], CONTEXT - 1, GREEDY), Request(draw(CONTEXT - 1), 1, GREEDY)):
        (expected,) = generate(model, [request])[0]
        assert speculate(model, request, ModelDrafter(SMALLER)).completion.token_ids == expected.token_ids


def test_what_a_model_drafts_is_what_it_says():
    """Distributions are those after each drafted token, for texts that go on, go back and are new."""
    drafter, params = ModelDrafter(SMALLER), SamplingParams(temperature=0.7, top_p=0.9, repetition_penalty=1.2)
    text, other = draw(2, 9)
    for part in (text[:4], text[:7], text[:5] + other[:3], text[:5], other, text):
        tokens, rows = drafter.propose(part, 3, params, torch.Generator().manual_seed(0))
        assert len(tokens) == 3 and rows.shape == (3, V)
        for i in range(3):
            so_far = part + tokens[:i]
            expected = next_token_probabilities(params, uncached(SMALLER, so_far)[-1], so_far)
            torch.testing.assert_close(rows[i], expected, rtol=0, atol=1e-13)
            assert rows[i, tokens[i]] > 0


def test_a_model_drafts_no_further_than_its_context():
    drafter, source = ModelDrafter(SMALLER), torch.Generator()
    assert [len(drafter.propose(draw(n), 4, GREEDY, source).token_ids) for n in (20, 22, 24, 30)] == [4, 2, 0, 0]


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        ([1, 2, 3, 4, 1, 2], 4, [3, 4, 1, 2]),
        ([1, 2, 3, 4, 1, 2], 2, [3, 4]),
        ([1, 2, 9, 1, 2, 8, 1, 2], 1, [8]),  # the last place
        ([5, 1, 2, 9, 7, 1, 2, 8, 5, 1, 2], 1, [9]),  # but the longest end before it
        ([4, 4, 4], 3, [4]),  # what follows ends with the text
        ([1, 2, 3], 3, []),
        ([1], 3, []),
        ([1, 2, 1], 0, []),
    ],
)
def test_look_up(text, count, expected):
    tokens, rows = PromptLookup(V).propose(text, count, GREEDY, torch.Generator())
    assert tokens == expected and rows.shape == (len(expected), V)
    assert rows.argmax(-1).tolist() == expected and rows.sum() == len(expected)


def test_a_longer_end_may_be_asked_for():
    assert PromptLookup(V, shortest=2).propose([1, 7, 1], 2, GREEDY, torch.Generator()).token_ids == []


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda m: speculate(m, Request([1], 2, n=2), Guesses()),
            "speculation generates one sequence of a request: got n=2",
        ),
        (
            lambda m: speculate(m, Request([1], 2), Guesses(), num_speculative_tokens=0),
            "num_speculative_tokens must be at least 1",
        ),
        (
            lambda m: speculate(m, Request([1], 2), PromptLookup(9)),
            "drafts in another vocabulary: got 9 tokens, expected",
        ),
        (lambda m: speculate(m, Request([13], 2), Guesses()), "unknown token in the prompt: got 13"),
        (
            lambda m: PromptLookup(V, longest=1, shortest=2),
            "tokens to look up: got shortest 2, longest 1, expected 1 <=",
        ),
    ],
)
def test_what_cannot_be(make, words):
    with pytest.raises(InputError, match=words) as refused:
        make(build())
    assert "\n" not in str(refused.value)


@pytest.mark.gpu
def test_drafts_on_the_gpu():
    request = Request(draw(7), 15, PENALISED)
    (expected,) = generate(build(), [request])[0]
    model = build().cuda()
    for drafter in (PromptLookup(V), ModelDrafter(build(kv_heads=1, seed=1).cuda())):
        assert speculate(model, request, drafter).completion.token_ids == expected.token_ids
