"""Trees of drafts leave texts distributed as the model's, and are accepted as often as the formulas say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from mlsys_lab.errors import InputError
from mlsys_lab.inference.cache import Paged
from mlsys_lab.inference.engine import Request, SamplingParams
from mlsys_lab.inference.engine.sampler import draw
from mlsys_lab.inference.generate import generate
from mlsys_lab.inference.speculative import (
    ModelDrafter,
    PromptLookup,
    accept_among,
    acceptance_among,
    acceptance_rate,
    speculate,
    speculate_tree,
)
from tests.inference.making import CONTEXT, V, build, caches
from tests.inference.making import draw as tokens_of

GREEDY = SamplingParams(temperature=0)
SMALLER = build(kv_heads=1, seed=1)
WORDS, DRAWS, SIGNIFICANCE = 5, 120_000, 1e-6


def distributions(*shape, seed, spread=1.0):
    random = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(*shape, WORDS, generator=random).double()).softmax(-1)


def uniforms(*shape, seed):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drafted(q, count, *, replaced, seed):
    """Candidates (n, count) of distributions (n, V), and those (n, count, V) that each was drawn from."""
    candidates, proposed = [], []
    for i in range(count):
        token = draw(q, uniforms(len(q), seed=seed + i))
        candidates.append(token)
        proposed.append(q)
        if not replaced:
            q = q.scatter(1, token[:, None], 0)
            q = q / q.sum(-1, keepdim=True)
    return torch.stack(candidates, 1), torch.stack(proposed, 1)


def write(p, q, counts, *, replaced, rule=accept_among):
    """DRAWS texts of two tokens whose next token depends on the last: first p[V], then p[token]; drafts of q alike."""
    last, tokens = torch.full((DRAWS,), WORDS), []
    drafted_here = torch.ones(DRAWS, dtype=torch.bool)
    for depth, count in enumerate(counts):
        candidates, proposed = drafted(q[last], count, replaced=replaced, seed=10 * depth)
        which, token = rule(candidates, proposed, p[last], uniforms(DRAWS, count + 1, seed=10 * depth + 8))
        alone = draw(p[last], uniforms(DRAWS, seed=10 * depth + 9))  # a path that has ended is not looked at
        last = torch.where(drafted_here, token, alone)
        drafted_here &= which < count
        tokens.append(last)
    return tokens[0] * WORDS + tokens[1]


def p_value(texts, p):
    expected = DRAWS * (p[WORDS][:, None] * p[:WORDS]).flatten().numpy()
    return stats.chisquare(np.bincount(texts, minlength=WORDS**2), expected).pvalue


@pytest.mark.parametrize("replaced", [True, False], ids=["drawn again", "without replacement"])
@pytest.mark.parametrize("counts", [(2, 3), (4, 1)])
def test_texts_are_distributed_as_the_model_s(counts, replaced):
    """Chi-square over 120,000 texts of two tokens, 25 kinds of them, at a significance of one in a million.

    A rule that moved a hundredth of all texts from the likelier to the less likely half would be found with a power
    above 0.99, as the noncentral chi-square distribution has it.
    """
    p, q = distributions(WORDS + 1, seed=1), distributions(WORDS + 1, seed=2)
    assert p_value(write(p, q, counts, replaced=replaced), p) > SIGNIFICANCE
    texts = (p[WORDS][:, None] * p[:WORDS]).flatten().numpy()
    likely = texts > np.median(texts)
    moved = np.where(likely, -0.01 * texts / texts[likely].sum(), 0.01 * texts / texts[~likely].sum())
    effect = DRAWS * (moved**2 / texts).sum()
    assert stats.ncx2.sf(stats.chi2.isf(SIGNIFICANCE, 24), 24, effect) > 0.99


def always_held_against_the_whole(candidates, proposed, wanted, numbers):
    """A known fault: later candidates are held against all that the model wants, as if none had been rejected."""
    which = torch.full((DRAWS,), candidates.shape[1])
    for i in range(candidates.shape[1]):
        token = candidates[:, i, None]
        stays = numbers[:, i] * proposed[:, i].gather(1, token)[:, 0] < wanted.gather(1, token)[:, 0]
        which = torch.where(stays & (which == candidates.shape[1]), i, which)
    _, left = accept_among(candidates, proposed, wanted, numbers)
    picked = candidates.gather(1, which.clamp(max=candidates.shape[1] - 1)[:, None])[:, 0]
    return which, torch.where(which < candidates.shape[1], picked, left)


def drawn_again_from_all(candidates, proposed, wanted, numbers):
    """A known fault: after the last candidate the token is drawn from all that the model wants."""
    which, token = accept_among(candidates, proposed, wanted, numbers)
    return which, torch.where(which == candidates.shape[1], draw(wanted, numbers[:, -1]), token)


@pytest.mark.parametrize("rule", [always_held_against_the_whole, drawn_again_from_all])
def test_wrong_rules_are_found(rule):
    p, q = distributions(WORDS + 1, seed=1), distributions(WORDS + 1, seed=2)
    assert p_value(write(p, q, (2, 3), replaced=True, rule=rule), p) < 1e-30


@pytest.mark.parametrize("candidates", [1, 2, 4])
def test_one_of_several_is_accepted_as_often_as_expected(candidates):
    """Within 5 standard errors of 120,000 draws, and the more the oftener."""
    p, q = distributions(seed=3, spread=2.0), distributions(seed=4, spread=2.0)
    tokens, proposed = drafted(q.expand(DRAWS, WORDS), candidates, replaced=True, seed=0)
    which, _ = accept_among(tokens, proposed, p.expand(DRAWS, WORDS), uniforms(DRAWS, candidates + 1, seed=9))
    rate = float(acceptance_among(p, q, candidates))
    assert abs(float((which < candidates).double().mean()) - rate) < 5 * (rate * (1 - rate) / DRAWS) ** 0.5
    assert acceptance_among(p, q, 1) == pytest.approx(float(acceptance_rate(p, q)))
    assert acceptance_among(p, q, candidates + 1) > rate
    assert acceptance_among(p, p, candidates) == pytest.approx(1)


def test_by_hand():
    """Of what is wanted beyond the first candidate's distribution, 0.3 of token 1 are left: all of it."""
    wanted = torch.tensor([0.2, 0.8]).double()
    proposed = torch.tensor([[0.5, 0.5], [0.0, 1.0]]).double()

    def rule(candidates, *numbers):
        return [
            int(x) for x in accept_among(torch.tensor(candidates), proposed, wanted, torch.tensor(numbers).double())
        ]

    assert rule([0, 1], 0.39, 0.0, 0.0) == [0, 0]
    assert rule([0, 1], 0.41, 0.99, 0.0) == [1, 1]
    assert rule([1, 1], 0.99, 0.0, 0.0) == [0, 1]
    none = torch.empty(0, dtype=torch.int64), torch.empty(0, 2).double()
    assert [int(x) for x in accept_among(*none, wanted, torch.tensor([0.1]).double())] == [0, 0]


@pytest.mark.parametrize("window", [None, 6])
def test_greedy_texts_are_those_without_drafts(window):
    model = build(window=window)
    request = Request(tokens_of(7), 15, SamplingParams(temperature=0, repetition_penalty=1.2))
    (expected,) = generate(model, [request])[0]
    for name, cache in caches(model, sequences=4, chunk=4).items():
        got = speculate_tree(model, request, ModelDrafter(SMALLER), branches=(2, 2), cache=cache)
        assert got.completion.token_ids == expected.token_ids, name
        assert got.completion.logprobs == pytest.approx(expected.logprobs, abs=1e-12)
        assert len(got.completion.token_ids) == got.num_steps + got.num_accepted_tokens and cache.sequences == []


def test_a_drafter_that_is_right_has_a_path_accepted_whole():
    model, sampling = build(), SamplingParams(temperature=1.3, top_k=6, seed=4)
    for branches in ((1, 1), (3, 1)):
        got = speculate_tree(model, Request(tokens_of(5), 9, sampling), ModelDrafter(model), branches=branches)
        assert got.num_steps == 3 and got.num_accepted_tokens == 6
    request = Request(tokens_of(5), 8, GREEDY)
    tree = speculate_tree(model, request, ModelDrafter(SMALLER), branches=(V, 1))
    assert tree.num_steps <= 4, "all tokens are among the candidates"
    assert tree.num_steps < speculate(model, request, ModelDrafter(SMALLER), num_speculative_tokens=2).num_steps


def test_look_ups_have_one_candidate_or_none():
    request = Request(tokens_of(5), 12, GREEDY)
    got = speculate_tree(build(), request, PromptLookup(V), branches=(3, 2))
    assert got.completion.token_ids == generate(build(), [request])[0][0].token_ids
    assert 0 < got.num_draft_tokens <= 2 * got.num_steps


def test_paths_share_their_blocks():
    model, used = build(), []
    cache = Paged(model, num_blocks=20, block_size=4)
    model.register_forward_pre_hook(lambda *_: used.append(cache.pool.num_used_blocks))
    speculate_tree(model, Request(tokens_of(17), 1 + 3, GREEDY), ModelDrafter(SMALLER), branches=(2, 2), cache=cache)
    assert used[1] == 4 + 4, "four of the text, and one for each of four ends"


def test_a_seed_writes_one_text_and_contexts_may_be_full():
    model, request = build(), Request(tokens_of(5), CONTEXT - 5, SamplingParams(temperature=1.5, seed=8))
    texts = [speculate_tree(model, request, ModelDrafter(SMALLER)).completion.token_ids for _ in range(2)]
    assert texts[0] == texts[1] and len(texts[0]) == CONTEXT - 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"branches": ()}, "depth must be at least 1: got 0"),
        ({"branches": (2, 0)}, "branches must be at least 1: got 0"),
        ({"branches": (3, 3), "cache": Paged(build(), num_blocks=9)}, "the cache belongs to another model"),
    ],
)
def test_trees_that_cannot_be(options, words):
    with pytest.raises(InputError, match=words) as refused:
        speculate_tree(build(), Request([1, 2], 4), ModelDrafter(SMALLER), **options)
    assert "\n" not in str(refused.value)
