"""Several texts checked in the same steps: each as if it were alone, with as many drafts accepted as it has luck."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.engine import Request, SamplingParams
from mlsys_lab.inference.engine.sampler import draw as choose
from mlsys_lab.inference.engine.sampler import next_token_probabilities
from mlsys_lab.inference.generate import generate
from mlsys_lab.inference.speculative import (
    Draft,
    ModelDrafter,
    PromptLookup,
    acceptance_rate,
    expected_tokens,
    speculate,
    speculate_all,
)
from tests.inference.making import CONTEXT, V, build, caches, draw, uncached

GREEDY = SamplingParams(temperature=0)
SMALLER = build(kv_heads=1, seed=1)


@pytest.mark.parametrize("window", [None, 6])
def test_texts_that_advance_unequally(window):
    model = build(window=window)
    requests = [Request(draw(n, seed=n), 20 - n, GREEDY) for n in (1, 4, 9)] + [Request(draw(6), 2, GREEDY)]
    expected = [texts[0] for texts in generate(model, requests)]
    for name, cache in caches(model, chunk=4).items():
        drafters = [ModelDrafter(model), ModelDrafter(SMALLER), PromptLookup(V), PromptLookup(V)]
        got = speculate_all(model, requests, drafters, num_speculative_tokens=3, cache=cache)
        assert [one.completion.token_ids for one in got] == [one.token_ids for one in expected], name
        assert (
            got[0].num_accepted_tokens == got[0].num_draft_tokens > 0
            and got[1].num_accepted_tokens < got[1].num_draft_tokens
        )
        assert got[0].num_steps < got[1].num_steps and cache.sequences == []
        for one, completion in zip(got, expected, strict=True):
            assert one.completion.logprobs == pytest.approx(completion.logprobs, abs=1e-12)


def test_a_seeded_text_is_the_same_in_any_company():
    model, one = build(), Request(draw(5), 12, SamplingParams(temperature=1.5, seed=8))
    others = [Request(draw(n, seed=n), 3 * n, SamplingParams(seed=n)) for n in (2, 4)]
    alone = speculate(model, one, ModelDrafter(SMALLER))
    drafters = [ModelDrafter(SMALLER) for _ in range(3)]
    together = speculate_all(model, [others[0], one, others[1]], drafters)[1]
    assert (together.completion.token_ids, together.num_steps) == (alone.completion.token_ids, alone.num_steps)


def constant(seed):
    """A model that gives every token the same distribution whatever came before: all embeddings are equal."""
    model = build(seed=seed)
    with torch.no_grad():
        model.embedding.weight[:] = model.embedding.weight[0].clone()
    return model


class Same:
    """Drafts from one distribution (V,), whatever came before."""

    vocab_size = V

    def __init__(self, probabilities):
        self.probabilities = probabilities

    def propose(self, text, count, sampling, generator):
        rows = self.probabilities.expand(count, V)
        return Draft(choose(rows, torch.rand(count, generator=generator, dtype=torch.float64)).tolist(), rows)


def test_steps_are_as_many_as_the_formula_expects():
    """150 texts with one acceptance rate throughout: steps within 5 standard errors of what follows from it exactly.

    The formula's tokens a step are those of a long text: within 6 % here, where the last step of a text is cut short.
    """
    model, k, n = constant(0), 3, CONTEXT - 1
    params = SamplingParams(temperature=3.0)
    p, q = (next_token_probabilities(params, uncached(constant(seed), [0])[-1], []) for seed in (0, 1))
    rate = float(acceptance_rate(p, q))
    assert 0.3 < rate < 0.9
    steps = [0.0]  # expected, by tokens left
    for left in range(1, n + 1):
        most = min(k, left - 1)
        chances = [rate**j * (1 - rate) for j in range(most)] + [rate**most]
        steps.append(1 + sum(chance * steps[left - 1 - j] for j, chance in enumerate(chances)))
    requests = [Request([0], n, SamplingParams(temperature=3.0, seed=seed)) for seed in range(150)]
    got = speculate_all(model, requests, [Same(q)] * len(requests), num_speculative_tokens=k)
    counts = torch.tensor([one.num_steps for one in got]).double()
    assert abs(float(counts.mean()) - steps[n]) < 5 * float(counts.std()) / len(got) ** 0.5
    assert n * len(got) / float(counts.sum()) == pytest.approx(expected_tokens(rate, k), rel=0.06)
    tokens = torch.cat([torch.tensor(one.completion.token_ids) for one in got])
    share = torch.bincount(tokens, minlength=V) / len(tokens)
    torch.testing.assert_close(share.double(), p, rtol=0, atol=5 * 0.5 / len(tokens) ** 0.5)


def test_requests_and_drafters_that_do_not_fit():
    with pytest.raises(InputError, match="a drafter for each request: got 1 for 2"):
        speculate_all(build(), [Request([1], 2), Request([2], 2)], [PromptLookup(V)])
    with pytest.raises(InputError, match="unknown token in the prompt: got 13"):
        speculate_all(build(), [Request([1], 2), Request([13], 2)], [PromptLookup(V)] * 2)
    assert speculate_all(build(), [], []) == []
