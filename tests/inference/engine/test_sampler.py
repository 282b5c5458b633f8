"""Distributions that options make of logits are those of `transformers`, and draws follow them."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from scipy import stats

from mlsys_lab.errors import InputError
from mlsys_lab.inference.engine import Request, SamplingParams
from mlsys_lab.inference.engine.sampler import (
    draw,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    make_generators,
    next_token_probabilities,
    sample,
)
from mlsys_lab.inference.engine.sequence import GenerationState

V = 97
OPTIONS = [
    {},
    {"temperature": 0.3},
    {"temperature": 2.5},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": V},
    {"top_p": 0.01},
    {"top_p": 0.5},
    {"top_p": 0.9},
    {"top_p": 1.0},
    {"min_p": 0.02},
    {"min_p": 0.3},
    {"min_p": 1.0},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.2},
    {"temperature": 1.9, "top_k": 5, "top_p": 0.95, "min_p": 0.2, "repetition_penalty": 0.9},
]


@pytest.fixture(scope="module")
def processors():
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers.generation import logits_process

    return logits_process


def theirs(library, logits, seen, options):
    """Softmax of what the processors of `transformers` make of logits, in the order that its `generate` has them in."""
    made = {
        "repetition_penalty": library.RepetitionPenaltyLogitsProcessor,
        "temperature": library.TemperatureLogitsWarper,
        "top_k": library.TopKLogitsWarper,
        "top_p": library.TopPLogitsWarper,
        "min_p": library.MinPLogitsWarper,
    }
    scores = logits[None]
    for name, processor in made.items():
        if name in options:
            scores = processor(options[name])(torch.tensor([seen]), scores)
    return scores[0].softmax(-1)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_distributions_are_those_of_transformers(options, processors):
    random = torch.Generator().manual_seed(0)
    for spread in (0.5, 3.0):
        for _ in range(10):
            logits = spread * torch.randn(V, generator=random, dtype=torch.float64)
            seen = torch.randint(V, (30,), generator=random).tolist()
            got = next_token_probabilities(SamplingParams(**options), logits, seen)
            torch.testing.assert_close(got, theirs(processors, logits, seen, options), rtol=1e-12, atol=1e-15)


def test_what_is_kept_by_hand():
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.4, 0.1]]).double().log()

    def kept(filtered):
        return [row.isfinite().nonzero().flatten().tolist() for row in filtered]

    assert kept(keep_top_k(logits, 1)) == [[1], [2]]
    assert kept(keep_top_k(logits, 2)) == [[1, 3], [0, 1, 2]]  # two are as likely as the second
    assert kept(keep_top_p(logits, 0.69)) == [[1, 3], [0, 1, 2]]
    assert kept(keep_top_p(logits, 0.71)) == [[1, 2, 3], [0, 1, 2]]
    assert kept(keep_top_p(logits, 1e-9)) == [[1], [2]]
    assert kept(keep_min_p(logits, 0.7)) == [[1, 3], [2]]


def test_greedy_is_the_likeliest_after_the_penalty():
    logits, penalised = torch.tensor([1.0, 3.0, 2.9, -1.0]), SamplingParams(temperature=0, repetition_penalty=1.1)
    assert next_token_probabilities(SamplingParams(temperature=0), logits, []).tolist() == [0, 1, 0, 0]
    assert next_token_probabilities(penalised, logits, [1, 3]).tolist() == [0, 0, 1, 0]


def test_presence_and_frequency_count_the_output_and_biases_are_added():
    logits = torch.tensor([1.0, 3.0, 2.0, -1.0]).double()
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25, logit_bias=((3, 4.0),))
    got = next_token_probabilities(params, logits, [0, 0, 1, 1, 2], num_prompt_tokens=2)
    expected = torch.tensor([1.0, 3.0 - 0.5 - 2 * 0.25, 2.0 - 0.5 - 0.25, 3.0]).double().softmax(-1)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)


def test_the_likeliest_tokens_come_with_a_sampled_one():
    logits = torch.tensor([[1.0, 3.0, 2.0, -1.0], [0.0, 0.0, 1.0, 0.0]])
    requests = [Request([0], 1, SamplingParams(temperature=0), num_top_logprobs=number) for number in (2, 0)]
    first, second = sample([GenerationState(one, torch.Generator()) for one in requests], logits)
    logprobs = logits[0].double().log_softmax(-1)
    assert first[:2] == (1, pytest.approx(float(logprobs[1])))
    assert first.top_logprobs == ((1, first.logprob), (2, pytest.approx(float(logprobs[2]))))
    assert second.token_id == 2 and second.top_logprobs == ()


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e30])
def test_extreme_temperatures(temperature):
    logits = torch.tensor([1e30, -1e30, 7.0])
    got = next_token_probabilities(SamplingParams(temperature=temperature), logits, [])
    assert got.isfinite().all() and got.sum() == pytest.approx(1) and got[0] >= got[2] >= got[1]


def test_logits_that_are_no_numbers():
    with pytest.raises(InputError, match="the model's logits are not numbers"):
        next_token_probabilities(SamplingParams(), torch.tensor([0.0, torch.nan]), [])


def test_many_texts_get_the_tokens_that_each_would_get_alone():
    random = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(3 * len(OPTIONS), V, generator=random)
    samplings = [SamplingParams(**options, seed=seed) for seed in (0, 1) for options in OPTIONS]
    samplings += [SamplingParams(temperature=0)] * len(OPTIONS)

    def states():
        return [
            GenerationState(Request([number, 3], 1, params), torch.Generator().manual_seed(number))
            for number, params in enumerate(samplings)
        ]

    together = sample(states(), logits)
    alone = [sample([one], row[None])[0] for one, row in zip(states(), logits, strict=True)]
    assert together == alone and len({one.token_id for one in together}) > 20
    assert [one.token_id for one in together[-len(OPTIONS) :]] == logits[-len(OPTIONS) :].argmax(-1).tolist()
    assert sample([], logits[:0]) == []


def test_the_tokens_so_far_are_listed_only_for_a_penalty(monkeypatch):
    listed = []
    monkeypatch.setattr(GenerationState, "token_ids", property(lambda state: listed.append(state.index) or [0, 1]))
    params = [SamplingParams(), SamplingParams(repetition_penalty=1.1)]
    states = [GenerationState(Request([0], 1, one), torch.Generator(), index=index) for index, one in enumerate(params)]
    sample(states, torch.zeros(2, V))
    assert listed == [1]


def test_draws_follow_the_distribution():
    """Chi-square over 100,000 draws; 2 % more of one token of a tenth would make p below 1e-6 in 99.9 of 100 runs."""
    p = torch.tensor([0.1, 0.0, 0.45, 0.05, 0.4, 0.0]).double()
    uniforms = torch.rand(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    counts = np.bincount(draw(p.expand(100_000, 6), uniforms), minlength=6)
    possible = p.numpy() > 0
    assert counts[~possible].sum() == 0
    assert stats.chisquare(counts[possible], 100_000 * p.numpy()[possible]).pvalue > 1e-6
    shifted = p.numpy()[possible] + np.array([0.02, -0.02, 0, 0])
    effect = 100_000 * ((shifted - p.numpy()[possible]) ** 2 / p.numpy()[possible]).sum()
    assert stats.ncx2.sf(stats.chi2.isf(1e-6, 3), 3, effect) > 0.999


def test_draws_at_the_edges():
    p = torch.tensor([0.0, 0.25, 0.5, 0.25, 0.0]).double()
    uniforms = torch.tensor([0.0, 0.25 - 1e-9, 0.25, 0.75 - 1e-9, 0.75, 1 - 2**-53], dtype=torch.float64)
    assert draw(p.expand(6, 5), uniforms).tolist() == [1, 1, 2, 2, 3, 3]
    assert draw(p, uniforms[0]).tolist() == 1


def test_texts_of_one_prompt_have_sources_of_their_own():
    first, again, other = (make_generators(seed, 3) for seed in (5, 5, 6))
    drawn = [[torch.rand((), generator=one).item() for one in group] for group in (first, again, other)]
    assert drawn[0] == drawn[1] and len({*drawn[0], *drawn[2]}) == 6
    unseeded = [torch.rand((), generator=make_generators(None, 1)[0]).item() for _ in range(2)]
    assert unseeded[0] != unseeded[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -1}, r"temperature out of range: got -1, expected 0 \(greedy\) or a positive number"),
        ({"temperature": float("nan")}, "temperature out of range: got nan"),
        ({"temperature": float("inf")}, "temperature out of range: got inf"),
        ({"temperature": "hot"}, "temperature out of range: got 'hot'"),
        ({"top_k": 0}, "top_k out of range: got 0, expected a whole number from 1, or None"),
        ({"top_k": 2.5}, "top_k out of range: got 2.5"),
        ({"top_p": 0}, "top_p out of range: got 0, expected above 0, at most 1, or None"),
        ({"top_p": 1.5}, "top_p out of range: got 1.5"),
        ({"min_p": True}, "min_p out of range: got True"),
        ({"repetition_penalty": 0}, "repetition_penalty out of range: got 0, expected a positive number"),
        ({"seed": -1}, "seed out of range: got -1, expected a whole number from 0, or None"),
        (
            {"temperature": 0, "top_p": 0.9, "seed": 1},
            "temperature 0 always takes the likeliest token, .*: got top_p=0.9; help: leave",
        ),
    ],
)
def test_options_that_cannot_be(options, words):
    with pytest.raises(InputError, match=words) as refused:
        SamplingParams(**options)
    assert "\n" not in str(refused.value)
