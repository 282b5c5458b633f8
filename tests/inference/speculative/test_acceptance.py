"""Accepted drafts and what follows them are distributed as the model wants, and as many as the formulas say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from mlsys_lab.errors import InputError
from mlsys_lab.inference.engine.sampler import draw
from mlsys_lab.inference.speculative import (
    accept,
    acceptance_rate,
    best_num_speculative_tokens,
    expected_tokens,
    flops_ratio,
    speedup,
)

V, DRAWS = 4, 200_000
SIGNIFICANCE = 1e-6


class Chain:
    """Texts whose next token depends on the last one alone, so that the probability of each text is known."""

    def __init__(self, seed, spread=1.0):
        random = torch.Generator().manual_seed(seed)
        self.first = (spread * torch.randn(V, generator=random).double()).softmax(-1)
        self.next = (spread * torch.randn(V, V, generator=random).double()).softmax(-1)

    def probabilities(self):
        """Probability of each text of three tokens, (V³,)."""
        return (self.first[:, None, None] * self.next[:, :, None] * self.next[None]).flatten()


def uniforms(*shape, seed):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def write(model, drafter, rule=accept):
    """DRAWS texts of three tokens, of which the first step drafts two; (DRAWS,) numbers of texts."""
    one = draw(drafter.first.expand(DRAWS, V), uniforms(DRAWS, seed=1))
    two = draw(drafter.next[one], uniforms(DRAWS, seed=2))
    proposed = torch.stack([drafter.first.expand(DRAWS, V), drafter.next[one]], 1)
    wanted = torch.stack([model.first.expand(DRAWS, V), model.next[one], model.next[two]], 1)
    accepted, following = rule(torch.stack([one, two], 1), proposed, wanted, uniforms(DRAWS, 3, seed=3))
    tokens = torch.stack([one, two, two], 1).scatter(1, accepted[:, None], following[:, None])
    for place in (1, 2):  # what the step did not write, the model writes alone
        alone = draw(model.next[tokens[:, place - 1]], uniforms(DRAWS, seed=3 + place))
        tokens[:, place] = torch.where(accepted < place, alone, tokens[:, place])
    return tokens @ torch.tensor([V * V, V, 1])


def p_value(texts, model):
    counts = np.bincount(texts, minlength=V**3)
    return stats.chisquare(counts, DRAWS * model.probabilities().numpy()).pvalue


@pytest.mark.parametrize("seed", range(3))
def test_texts_are_distributed_as_the_model_s(seed):
    """Chi-square over 200,000 texts of three tokens, 64 kinds of them, at a significance of one in a million.

    A rule that moved a hundredth of all texts from the likelier to the less likely half would be found with a power
    above 0.99, as the noncentral chi-square distribution has it.
    """
    model, drafter = Chain(seed), Chain(seed + 10)
    assert p_value(write(model, drafter), model) > SIGNIFICANCE
    p = model.probabilities().numpy()
    likely = p > np.median(p)
    shifted = p + np.where(likely, -0.01 * p / p[likely].sum(), 0.01 * p / p[~likely].sum())
    effect = DRAWS * ((shifted - p) ** 2 / p).sum()
    assert stats.ncx2.sf(stats.chi2.isf(SIGNIFICANCE, V**3 - 1), V**3 - 1, effect) > 0.99


def replaced_by_the_model_s_own(drafts, proposed, wanted, numbers):
    """A known fault: what takes a rejected draft's place is drawn from all that the model wants."""
    accepted, _ = accept(drafts, proposed, wanted, numbers)
    return accepted, draw(wanted[torch.arange(DRAWS), accepted], numbers[:, -1])


def one_place_on(drafts, proposed, wanted, numbers):
    """A known fault: the token after the drafts comes of the distribution one place before."""
    accepted, following = accept(drafts, proposed, wanted, numbers)
    bonus = draw(wanted[:, 1], numbers[:, -1])
    return accepted, torch.where(accepted == 2, bonus, following)


def always_accepted(drafts, proposed, wanted, numbers):
    """A known fault: drafts are never rejected."""
    return torch.full((DRAWS,), 2), draw(wanted[:, -1], numbers[:, -1])


@pytest.mark.parametrize("rule", [replaced_by_the_model_s_own, one_place_on, always_accepted])
def test_wrong_rules_are_found(rule):
    model, drafter = Chain(0), Chain(10)
    assert p_value(write(model, drafter, rule), model) < 1e-30


def test_by_hand():
    proposed = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]).double()
    wanted = torch.tensor([[0.2, 0.7, 0.1], [0.25, 0.5, 0.25], [0.0, 0.0, 1.0]]).double()
    drafts = torch.tensor([0, 0])

    def rule(*numbers):
        return [int(x) for x in accept(drafts, proposed, wanted, torch.tensor(numbers, dtype=torch.float64))]

    assert rule(0.39, 0.24, 0.0) == [2, 2]  # the bonus token
    assert rule(0.41, 0.0, 0.0) == [0, 1]  # a later draft does not come back; beyond are 0.2 of 1 and 0.1 of 2
    assert rule(0.41, 0.0, 0.66) == [0, 1] and rule(0.41, 0.0, 0.67) == [0, 2]
    assert rule(0.39, 0.26, 0.66) == [1, 1] and rule(0.39, 0.26, 0.67) == [1, 2]


def test_without_drafts_the_model_writes_alone():
    wanted = torch.tensor([[0.2, 0.7, 0.1]]).double()
    none = torch.empty(0, dtype=torch.int64), torch.empty(0, 3).double()
    assert [int(x) for x in accept(*none, wanted, torch.tensor([0.5]).double())] == [0, 1]


def test_equal_distributions_are_never_rejected():
    p = torch.rand(1000, 3, V, dtype=torch.float64).softmax(-1)
    drafts = draw(p[:, :2], torch.rand(1000, 2, dtype=torch.float64))
    accepted, _ = accept(drafts, p[:, :2], p, torch.rand(1000, 3, dtype=torch.float64))
    assert (accepted == 2).all()


def test_distributions_that_differ_by_rounding_give_a_token():
    wanted = torch.tensor([[0.0, 1.0 - 2**-53], [0.0, 1.0]], dtype=torch.float64)
    proposed = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    numbers = torch.tensor([1 - 2**-53, 0.5], dtype=torch.float64)
    assert [int(x) for x in accept(torch.tensor([1]), proposed, wanted, numbers)] == [0, 1]


@pytest.mark.parametrize("drafts", [1, 3, 6])
@pytest.mark.parametrize("seed", [0, 1])
def test_tokens_of_a_step_are_as_many_as_expected(drafts, seed):
    """Within 5 standard errors of 100,000 steps, about 0.03 tokens; a bonus token lost would be α^drafts less."""
    wanted, proposed = Chain(seed).first, Chain(seed + 10).first
    n = 100_000
    tokens = draw(proposed.expand(n, drafts, V), uniforms(n, drafts, seed=5))
    sides = proposed.expand(n, drafts, V), wanted.expand(n, drafts + 1, V)
    written = accept(tokens, *sides, uniforms(n, drafts + 1, seed=6))[0].double() + 1
    expected = expected_tokens(acceptance_rate(wanted, proposed).item(), drafts)
    assert abs(written.mean() - expected) < 5 * written.std() / n**0.5
    cost = 0.1
    assert speedup(acceptance_rate(wanted, proposed).item(), drafts, cost) == pytest.approx(
        written.sum().item() / (n * (drafts * cost + 1)), rel=0.01
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1.1, 2, 0), "acceptance of a draft: got 1.1, expected a probability, 0 to 1"),
        ((0.5, -1, 0), "num_speculative_tokens must not be negative: got -1"),
        ((0.5, 2, -0.1), "cost must not be negative: got -0.1"),
    ],
)
def test_gains_that_cannot_be(arguments, words):
    with pytest.raises(InputError, match=words):
        speedup(*arguments)


def test_formulas_at_the_ends():
    assert expected_tokens(0, 5) == expected_tokens(0.7, 0) == 1
    assert expected_tokens(1, 5) == 6
    assert expected_tokens(0.8, 4) == pytest.approx((1 - 0.8**5) / 0.2)
    assert speedup(0.8, 4, 0) == expected_tokens(0.8, 4)
    assert flops_ratio(0, 5) == 6 and flops_ratio(1, 5) == flops_ratio(0.3, 0) == 1
    assert flops_ratio(0.5, 1, cost=0.25) == (0.25 + 2) / 1.5
    assert best_num_speculative_tokens(0.1, 0.2) == 0 and best_num_speculative_tokens(0.9, 0, limit=7) == 7
    assert best_num_speculative_tokens(0.8, 0.05) == max(
        range(65), key=lambda k: (1 - 0.8 ** (k + 1)) / 0.2 / (0.05 * k + 1)
    )
    p = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    assert acceptance_rate(p, torch.tensor([[0.5, 0.5], [0.0, 1.0]])).tolist() == [1, 0]
