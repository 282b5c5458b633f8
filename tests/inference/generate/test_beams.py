"""Beam search finds the texts that `transformers` finds, with a wide beam the likeliest of all, in any cache."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.cache import Contiguous, Paged
from mlsys_lab.inference.engine import Request, SamplingParams
from mlsys_lab.inference.generate import beam_search, generate
from mlsys_lab.models import load
from tests.inference.making import CONTEXT, V, build, caches, draw, uncached
from tests.models.families import build as build_theirs


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A model of `transformers`, and ours with its weights."""
    folder, theirs = tmp_path_factory.mktemp("llama"), build_theirs("llama")
    theirs.save_pretrained(folder)
    return theirs, load(folder)


def up_to_stop(row, stop):
    """A text of a batch with the token that ended it, without the padding behind it."""
    return row[: next((at for at, token in enumerate(row, 1) if token in stop), len(row))]


@pytest.mark.parametrize("stop", [(), (3, 5, 8), tuple(range(2, 30))])
@pytest.mark.parametrize(("beams", "penalty"), [(2, 0.0), (3, 1.0), (5, -0.5)])
def test_texts_are_those_of_transformers(beams, penalty, stop, pair):
    theirs, ours = pair
    for seed in range(2):
        prompt = torch.randint(2, 61, (7,), generator=torch.Generator().manual_seed(seed))
        expected = theirs.generate(
            prompt[None],
            attention_mask=torch.ones(1, 7, dtype=torch.int64),
            max_new_tokens=9,
            do_sample=False,
            num_beams=beams,
            num_return_sequences=beams,
            length_penalty=penalty,
            eos_token_id=list(stop) or None,
            return_dict_in_generate=True,
            output_scores=True,
        )
        got = beam_search(ours, prompt.tolist(), 9, num_beams=beams, stop=stop, length_penalty=penalty)
        texts = [up_to_stop(row, stop) for row in expected.sequences[:, 7:].tolist()]
        for beam, text, score in zip(got, texts, expected.sequences_scores.tolist(), strict=True):
            ended = text[-1] in stop
            assert beam.completion.token_ids == tuple(text[:-1] if ended else text)
            assert beam.completion.finish_reason == ("stop" if ended else "length")
            assert beam.score == pytest.approx(score, rel=1e-4)


def test_a_beam_as_wide_as_all_texts_finds_the_likeliest():
    model, prompt = build(), draw(3)
    scores = {}
    for text in product(range(V), repeat=2):
        logprobs = uncached(model, prompt + list(text)).log_softmax(-1)[2:]
        scores[text] = sum(float(logprobs[i, token]) for i, token in enumerate(text))
    best = sorted(scores, key=lambda text: -scores[text])[:V]
    got = beam_search(model, prompt, 2, num_beams=V)
    assert [beam.completion.token_ids for beam in got] == best
    assert [beam.score for beam in got] == pytest.approx([scores[text] / 2 for text in best])
    assert all(sum(beam.completion.logprobs) == pytest.approx(2 * beam.score) for beam in got)


@pytest.mark.parametrize("window", [None, 6])
def test_texts_are_the_same_in_every_cache(window):
    model = build(window=window)
    expected = beam_search(model, draw(9), 10, num_beams=3, stop=[4])
    for name, cache in caches(model, sequences=3, chunk=4).items():
        got = beam_search(model, draw(9), 10, num_beams=3, stop=[4], cache=cache)
        assert [beam.completion.token_ids for beam in got] == [beam.completion.token_ids for beam in expected], name
        assert [beam.score for beam in got] == pytest.approx([beam.score for beam in expected])
        assert cache.sequences == [] and cache.bytes_held == 0


def test_one_beam_is_greedy():
    request = Request(draw(5), 12, SamplingParams(temperature=0))
    beam, greedy = beam_search(build(), draw(5), 12, num_beams=1)[0].completion, generate(build(), [request])[0][0]
    assert beam.token_ids == greedy.token_ids and beam.logprobs == pytest.approx(greedy.logprobs)


def test_beams_share_their_prompt():
    """16 tokens of prompt in 4 pages; each beam has at most one page of its own for its four tokens."""
    model, held = build(), []
    cache = Paged(model, num_blocks=8, block_size=4)
    model.register_forward_pre_hook(lambda *_: held.append(cache.pool.num_used_blocks))
    beam_search(model, draw(16), 4, num_beams=3, cache=cache)
    assert held[1:] == [4 + 3] * 3


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: beam_search(m, [], 3), "the prompt is empty"),
        (lambda m: beam_search(m, [1], 3, num_beams=0), "num_beams must be at least 1: got 0"),
        (lambda m: beam_search(m, [1], 3, stop=[V]), "unknown token in the stop sequence: got 13"),
        (lambda m: beam_search(m, draw(CONTEXT), 3), "the prompt leaves no room in the context"),
        (lambda m: beam_search(m, [1], 3, length_penalty=float("nan")), "length_penalty out of range: got nan"),
        (
            lambda m: beam_search(m, [1], 3, cache=Contiguous(m, sequences=2, capacity=9)),
            "every row of the cache is taken",
        ),
        (
            lambda m: beam_search(m, [1], 3, cache=Contiguous(build(), sequences=4, capacity=9)),
            "the cache belongs to another model",
        ),
    ],
)
def test_searches_that_cannot_be(call, words):
    with pytest.raises(InputError, match=words) as refused:
        call(build())
    assert "\n" not in str(refused.value)
