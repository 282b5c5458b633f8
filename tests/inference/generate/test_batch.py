"""Texts are those written one token at a time without a cache, in any company, and end where they should."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.cache import Contiguous, Paged, SlidingWindow
from mlsys_lab.inference.generate import Request, Sampling, generate
from mlsys_lab.inference.generate.request import Text
from mlsys_lab.models import load
from tests.inference.making import CONTEXT, V, build, caches, draw, uncached
from tests.models.families import build as build_theirs

GREEDY = Sampling(temperature=0)
WARM = Sampling(temperature=1.5, top_k=9, top_p=0.95, repetition_penalty=1.1, seed=3)


def written_plainly(model, request, index=0):
    """Tokens and log-probabilities of a text, the whole of it fed again for each token."""
    generator = request.sampling.generators(request.count)[index]
    text, logprobs = list(request.prompt), []
    for _ in range(request.max_tokens):
        logits = uncached(model, text)[-1]
        cumulative = request.sampling.probabilities(logits, text).cumsum(0)
        token = int((cumulative > torch.rand((), generator=generator, dtype=torch.float64)).nonzero()[0])
        logprobs.append(logits.log_softmax(0)[token].item())
        text.append(token)
    return text[len(request.prompt) :], logprobs


@pytest.mark.parametrize("window", [None, 6])
def test_texts_are_those_without_a_cache(window):
    model = build(window=window)
    requests = [
        Request(draw(9), 11, GREEDY),
        Request(draw(1), CONTEXT - 1, WARM),
        Request(draw(14, seed=2), 3, Sampling(seed=1), count=3),
    ]
    expected = [[written_plainly(model, request, i) for i in range(request.count)] for request in requests]
    for name, cache in caches(model, sequences=5, chunk=4).items():
        answers = generate(model, requests, cache=cache)
        assert cache.sequences == [] and cache.bytes_held == 0
        for answer, texts in zip(answers, expected, strict=True):
            for completion, (tokens, logprobs) in zip(answer, texts, strict=True):
                assert completion.tokens == tuple(tokens), name
                assert completion.logprobs == pytest.approx(logprobs, abs=1e-12)
                assert completion.reason == "length"


def test_a_text_hangs_on_its_request_alone():
    """Log-probabilities within rounding, which other company changes; tokens not at all."""
    model, one = build(), Request(draw(5), 12, WARM, count=2)
    others = [Request(draw(n, seed=n), 3 * n, Sampling(seed=n)) for n in (1, 2, 4)]
    (alone,) = generate(model, [one])
    for requests in ([*others[:2], one, others[2]], [one, one], [others[0], one]):
        for request, answer in zip(requests, generate(model, requests), strict=True):
            if request is one:
                for got, expected in zip(answer, alone, strict=True):
                    assert got.tokens == expected.tokens
                    assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-12)
    assert alone[0].tokens != alone[1].tokens


def test_greedy_texts_of_one_prompt_are_equal_with_a_seed_or_without():
    model = build()
    ((alone,),) = generate(model, [Request(draw(15), 5, GREEDY)])
    for sampling in (GREEDY, dataclasses.replace(GREEDY, seed=3)):
        (texts,) = generate(model, [Request(draw(15), 5, sampling, count=3)])
        assert [text.tokens for text in texts] == [alone.tokens] * 3


def test_a_prompt_is_read_once_for_all_its_texts():
    """15 tokens for three texts, and 3 · 3 of theirs; the last of each is not fed again."""
    model, fed = build(), []
    model.register_forward_pre_hook(lambda _, args: fed.append(args[0].numel()))
    generate(model, [Request(draw(15), 4, Sampling(seed=0), count=3)])
    assert fed == [15, 3, 3, 3]


def test_prompts_that_begin_alike_share_their_pages():
    model, beginning = build(), draw(12)
    cache, fed = Paged(model, pages=10, page=4), []
    model.register_forward_pre_hook(lambda _, args: fed.append(args[0].numel()))
    requests = [Request(beginning + end, 2, GREEDY) for end in ([1, 2], [3, 4])]
    answers = [generate(model, [request], cache=cache)[0][0].tokens for request in requests]
    assert fed == [14, 1, 2, 1]
    assert answers == [tuple(written_plainly(model, request)[0]) for request in requests]


def test_unlike_draws_follow_the_model():
    """First tokens of 400 texts of one prompt: as often as the model says, within 5 standard deviations."""
    model, prompt = build(), draw(3)
    (answer,) = generate(model, [Request(prompt, 1, Sampling(temperature=2, seed=0), count=400)])
    p = (uncached(model, prompt)[-1] / 2).softmax(0)
    counts = Counter(completion.tokens[0] for completion in answer)
    for token in range(V):
        assert abs(counts[token] - 400 * p[token]) <= 5 * (400 * p[token] * (1 - p[token])) ** 0.5 + 1e-9


def test_stop_sequences():
    model = build()
    free = generate(model, [Request(draw(4), 15, GREEDY)])[0][0].tokens
    for length in (1, 2, 3):
        for end in range(length, 16, 3):
            stop = free[end - length : end]
            first = next(i for i in range(length, 16) if free[i - length : i] == stop)
            (got,) = generate(model, [Request(draw(4), 15, GREEDY, stop=[[*free, 0], stop])])[0]
            assert got.tokens == free[: first - length] and got.reason == "stop"
            assert len(got.logprobs) == len(got.tokens)


def test_a_stop_sequence_is_looked_for_in_the_text_alone():
    model = build()
    free = generate(model, [Request(draw(4), 6, GREEDY)])[0][0].tokens
    across = [draw(4)[-1], free[0]]
    (got,) = generate(model, [Request(draw(4), 1, GREEDY, stop=[across])])[0]
    assert got.tokens == free[:1] and got.reason == "length"


def test_the_longer_of_two_stop_sequences_is_cut():
    text = Text(Request([0], 9, stop=[[2], [1, 2]]))
    for token in (5, 1, 2):
        assert text.completion is None
        text.add(token, -0.5)
    assert text.completion.tokens == (5,) and text.completion.logprobs == (-0.5,)


@pytest.mark.parametrize("penalty", [1.0, 1.4])
def test_greedy_texts_are_those_of_transformers(penalty, tmp_path):
    theirs = build_theirs("llama")
    theirs.save_pretrained(tmp_path)
    ours, prompt = load(tmp_path), torch.randint(2, 61, (9,), generator=torch.Generator().manual_seed(0))
    expected = theirs.generate(
        prompt[None],
        attention_mask=torch.ones(1, 9, dtype=torch.int64),
        max_new_tokens=23,
        do_sample=False,
        repetition_penalty=penalty,
        eos_token_id=None,
        pad_token_id=0,
    )[0, 9:].tolist()
    request = Request(prompt.tolist(), 23, Sampling(temperature=0, repetition_penalty=penalty))
    assert len(expected) == 23 and generate(ours, [request])[0][0].tokens == tuple(expected)


def test_a_prompt_may_be_an_array():
    prompts = draw(6), torch.tensor(draw(6)), torch.tensor(draw(6)).numpy()
    assert len({Request(prompt, 2, GREEDY) for prompt in prompts}) == 1


def test_no_requests():
    assert generate(build(), []) == []


MODEL = build()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Request([], 1), "the prompt is empty: expected one token or more"),
        (lambda: Request([1], 0), "max_tokens out of range: got 0, expected a whole number, at least 1"),
        (lambda: Request([1], 1, count=0), "count out of range: got 0"),
        (lambda: Request([1], 1, stop=[[]]), "the stop sequence is empty"),
        (lambda: Request("words", 1), "tokens of the prompt: got 'words', expected a list of whole numbers"),
        (lambda: generate(MODEL, [Request([1, 13], 1)]), "unknown token in the prompt: got 13, expected 0 to 12"),
        (lambda: Request([1.0], 1), r"tokens of the prompt: got \[1.0\], expected a list of whole numbers"),
        (lambda: generate(MODEL, [Request([1], 1, stop=[[-1]])]), "unknown token in the stop sequence: got -1"),
        (
            lambda: generate(MODEL, [Request(draw(24), 1)]),
            "the prompt leaves no room in the context: got 24 tokens, exp",
        ),
        (
            lambda: generate(MODEL, [Request(draw(20), 5)]),
            r"prompt and max_tokens outgrow the context: got 20 \+ 5 tok",
        ),
        (lambda: generate(MODEL, [Request([1], 1, Sampling(top_k=14))]), "top_k is above the vocabulary: got 14"),
        (
            lambda: generate(MODEL, [Request([1], 1)], cache=Contiguous(build(), sequences=1, capacity=9)),
            "the cache belongs to another model",
        ),
    ],
)
def test_requests_that_cannot_be_answered(make, words):
    with pytest.raises(InputError, match=words) as refused:
        make()
    assert "\n" not in str(refused.value)


def test_a_cache_without_room_gives_back_what_was_taken():
    cache = Paged(MODEL, pages=3, page=4)
    kept = cache.start()
    with pytest.raises(InputError, match="the cache is full: got 2 more pages needed, expected up to 1"):
        generate(MODEL, [Request(draw(4), 9, GREEDY), Request(draw(4, seed=2), 3, GREEDY)], cache=cache)
    assert cache.sequences == [kept] and cache.bytes_held == 0
    with pytest.raises(InputError, match="every row of the cache is taken"):
        generate(MODEL, [Request([1], 2, count=2)], cache=Contiguous(MODEL, sequences=1, capacity=9))


def test_one_slot_more_than_the_window_is_enough():
    model = build(window=3)
    request = Request(draw(10), 8, WARM)
    (got,) = generate(model, [request], cache=SlidingWindow(model, sequences=1, chunk=1))[0]
    assert got.tokens == tuple(written_plainly(model, request)[0])


@pytest.mark.gpu
def test_texts_on_the_gpu_are_those_of_the_cpu():
    requests = [Request(draw(9), 11, GREEDY), Request(draw(2), 20, WARM, count=3)]
    for window in (None, 6):
        expected = generate(build(window=window), requests)
        model = build(window=window).cuda()
        for name, cache in caches(model, sequences=4, chunk=4).items():
            for answer, wanted in zip(generate(model, requests, cache=cache), expected, strict=True):
                assert [one.tokens for one in answer] == [one.tokens for one in wanted], name


def test_each_token_is_told_as_it_is_written():
    model, told = build(), []
    request = Request([1, 2], 6, Sampling(seed=0), on_token=told.append)
    ((text,),) = generate(model, [request])
    assert tuple(told) == text.tokens
    told.clear()
    ((stopped,),) = generate(model, [dataclasses.replace(request, stop=[text.tokens[2:4]])])
    assert stopped.tokens == text.tokens[:2] and tuple(told) == text.tokens[:4]
    assert request == dataclasses.replace(request, on_token=None)
