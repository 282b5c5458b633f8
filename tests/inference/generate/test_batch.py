"""Texts are those written one token at a time without a cache, in any company, and end where they should."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.cache import Contiguous, Paged, SlidingWindow
from mlsys_lab.inference.engine import Request, SamplingParams
from mlsys_lab.inference.engine.sampler import make_generators, next_token_probabilities
from mlsys_lab.inference.engine.sequence import GenerationState, SampledToken
from mlsys_lab.inference.generate import generate
from mlsys_lab.models import load
from tests.inference.making import CONTEXT, V, build, caches, draw, uncached
from tests.models.families import build as build_theirs

GREEDY = SamplingParams(temperature=0)
WARM = SamplingParams(temperature=1.5, top_k=9, top_p=0.95, repetition_penalty=1.1, seed=3)


def written_plainly(model, request, index=0):
    """Tokens and log-probabilities of a text, the whole of it fed again for each token."""
    generator = make_generators(request.sampling_params.seed, request.n)[index]
    text, logprobs = list(request.prompt_token_ids), []
    for _ in range(request.max_tokens):
        logits = uncached(model, text)[-1]
        cumulative = next_token_probabilities(request.sampling_params, logits, text).cumsum(0)
        token = int((cumulative > torch.rand((), generator=generator, dtype=torch.float64)).nonzero()[0])
        logprobs.append(logits.log_softmax(0)[token].item())
        text.append(token)
    return text[len(request.prompt_token_ids) :], logprobs


@pytest.mark.parametrize("window", [None, 6])
def test_texts_are_those_without_a_cache(window):
    model = build(window=window)
    requests = [
        Request(draw(9), 11, GREEDY),
        Request(draw(1), CONTEXT - 1, WARM),
        Request(draw(14, seed=2), 3, SamplingParams(seed=1), n=3),
    ]
    expected = [[written_plainly(model, request, i) for i in range(request.n)] for request in requests]
    for name, cache in caches(model, sequences=5, chunk=4).items():
        answers = generate(model, requests, cache=cache)
        assert cache.sequences == [] and cache.bytes_held == 0
        for answer, texts in zip(answers, expected, strict=True):
            for completion, (tokens, logprobs) in zip(answer, texts, strict=True):
                assert completion.token_ids == tuple(tokens), name
                assert completion.logprobs == pytest.approx(logprobs, abs=1e-12)
                assert completion.finish_reason == "length"


def test_an_output_depends_only_on_its_request():
    """Log-probabilities within rounding, which other company changes; tokens not at all."""
    model, one = build(), Request(draw(5), 12, WARM, n=2)
    others = [Request(draw(n, seed=n), 3 * n, SamplingParams(seed=n)) for n in (1, 2, 4)]
    (alone,) = generate(model, [one])
    for requests in ([*others[:2], one, others[2]], [one, one], [others[0], one]):
        for request, answer in zip(requests, generate(model, requests), strict=True):
            if request is one:
                for got, expected in zip(answer, alone, strict=True):
                    assert got.token_ids == expected.token_ids
                    assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-12)
    assert alone[0].token_ids != alone[1].token_ids


def test_greedy_texts_of_one_prompt_are_equal_with_a_seed_or_without():
    model = build()
    ((alone,),) = generate(model, [Request(draw(15), 5, GREEDY)])
    for sampling in (GREEDY, dataclasses.replace(GREEDY, seed=3)):
        (texts,) = generate(model, [Request(draw(15), 5, sampling, n=3)])
        assert [text.token_ids for text in texts] == [alone.token_ids] * 3


def test_a_prompt_is_read_once_for_all_its_texts():
    """15 tokens for three texts, and 3 · 3 of theirs; the last of each is not fed again."""
    model, fed = build(), []
    model.register_forward_pre_hook(lambda _, args: fed.append(args[0].numel()))
    generate(model, [Request(draw(15), 4, SamplingParams(seed=0), n=3)])
    assert fed == [15, 3, 3, 3]


def test_prompts_with_a_common_prefix_share_blocks():
    model, beginning = build(), draw(12)
    cache, fed = Paged(model, num_blocks=10, block_size=4), []
    model.register_forward_pre_hook(lambda _, args: fed.append(args[0].numel()))
    requests = [Request(beginning + end, 2, GREEDY) for end in ([1, 2], [3, 4])]
    answers = [generate(model, [request], cache=cache)[0][0].token_ids for request in requests]
    assert fed == [14, 1, 2, 1]
    assert answers == [tuple(written_plainly(model, request)[0]) for request in requests]


def test_unlike_draws_follow_the_model():
    """First tokens of 400 texts of one prompt: as often as the model says, within 5 standard deviations."""
    model, prompt = build(), draw(3)
    (answer,) = generate(model, [Request(prompt, 1, SamplingParams(temperature=2, seed=0), n=400)])
    p = (uncached(model, prompt)[-1] / 2).softmax(0)
    counts = Counter(completion.token_ids[0] for completion in answer)
    for token in range(V):
        assert abs(counts[token] - 400 * p[token]) <= 5 * (400 * p[token] * (1 - p[token])) ** 0.5 + 1e-9


def test_stop_sequences():
    model = build()
    free = generate(model, [Request(draw(4), 15, GREEDY)])[0][0].token_ids
    for length in (1, 2, 3):
        for end in range(length, 16, 3):
            stop = free[end - length : end]
            first = next(i for i in range(length, 16) if free[i - length : i] == stop)
            (got,) = generate(model, [Request(draw(4), 15, GREEDY, stop_token_sequences=[[*free, 0], stop])])[0]
            assert got.token_ids == free[: first - length] and got.finish_reason == "stop"
            assert len(got.logprobs) == len(got.token_ids)


def test_a_stop_sequence_is_looked_for_in_the_text_alone():
    model = build()
    free = generate(model, [Request(draw(4), 6, GREEDY)])[0][0].token_ids
    across = [draw(4)[-1], free[0]]
    (got,) = generate(model, [Request(draw(4), 1, GREEDY, stop_token_sequences=[across])])[0]
    assert got.token_ids == free[:1] and got.finish_reason == "length"


def test_the_longer_of_two_stop_sequences_is_cut():
    state = GenerationState(Request([0], 9, stop_token_sequences=[[2], [1, 2]]), torch.Generator())
    for token in (5, 1, 2):
        assert state.completion is None
        state.append(SampledToken(token, -0.5))
    assert state.completion.token_ids == (5,) and state.completion.logprobs == (-0.5,)


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
    request = Request(prompt.tolist(), 23, SamplingParams(temperature=0, repetition_penalty=penalty))
    assert len(expected) == 23 and generate(ours, [request])[0][0].token_ids == tuple(expected)


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
        (lambda: Request([1], 1, n=0), "n out of range: got 0"),
        (lambda: Request([1], 1, stop_token_sequences=[[]]), "the stop sequence is empty"),
        (lambda: Request("words", 1), "tokens of the prompt: got 'words', expected a list of whole numbers"),
        (lambda: generate(MODEL, [Request([1, 13], 1)]), "unknown token in the prompt: got 13, expected 0 to 12"),
        (lambda: Request([1.0], 1), r"tokens of the prompt: got \[1.0\], expected a list of whole numbers"),
        (
            lambda: generate(MODEL, [Request([1], 1, stop_token_sequences=[[-1]])]),
            "unknown token in the stop sequence: got -1",
        ),
        (
            lambda: generate(MODEL, [Request(draw(24), 1)]),
            "the prompt leaves no room in the context: got 24 tokens, exp",
        ),
        (
            lambda: generate(MODEL, [Request(draw(20), 5)]),
            r"prompt and max_tokens outgrow the context: got 20 \+ 5 tok",
        ),
        (lambda: generate(MODEL, [Request([1], 1, SamplingParams(top_k=14))]), "top_k is above the vocabulary: got 14"),
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
    cache = Paged(MODEL, num_blocks=3, block_size=4)
    kept = cache.start()
    with pytest.raises(InputError, match="the cache is full: got 2 more blocks needed, expected up to 1"):
        generate(MODEL, [Request(draw(4), 9, GREEDY), Request(draw(4, seed=2), 3, GREEDY)], cache=cache)
    assert cache.sequences == [kept] and cache.bytes_held == 0
    with pytest.raises(InputError, match="every row of the cache is taken"):
        generate(MODEL, [Request([1], 2, n=2)], cache=Contiguous(MODEL, sequences=1, capacity=9))


def test_one_slot_more_than_the_window_is_enough():
    model = build(window=3)
    request = Request(draw(10), 8, WARM)
    (got,) = generate(model, [request], cache=SlidingWindow(model, sequences=1, chunk=1))[0]
    assert got.token_ids == tuple(written_plainly(model, request)[0])


@pytest.mark.gpu
def test_texts_on_the_gpu_are_those_of_the_cpu():
    requests = [Request(draw(9), 11, GREEDY), Request(draw(2), 20, WARM, n=3)]
    for window in (None, 6):
        expected = generate(build(window=window), requests)
        model = build(window=window).cuda()
        for name, cache in caches(model, sequences=4, chunk=4).items():
            for answer, wanted in zip(generate(model, requests, cache=cache), expected, strict=True):
                assert [one.token_ids for one in answer] == [one.token_ids for one in wanted], name


def test_each_token_is_told_as_it_is_written():
    model, told = build(), []
    request = Request([1, 2], 6, SamplingParams(seed=0), on_token=told.append)
    ((text,),) = generate(model, [request])
    assert tuple(told) == text.token_ids
    told.clear()
    ((stopped,),) = generate(model, [dataclasses.replace(request, stop_token_sequences=[text.token_ids[2:4]])])
    assert stopped.token_ids == text.token_ids[:2] and tuple(told) == text.token_ids[:4]
    assert request == dataclasses.replace(request, on_token=None)
