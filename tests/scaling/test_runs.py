"""Real training runs: what they promise, and a law fitted to them."""

import time
from functools import cached_property

import numpy as np
import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer, training
from mlsys_lab.scaling import (
    PLAN,
    Runs,
    Size,
    epochs,
    fit_parametric,
    read_corpus,
    tokens_for,
    train,
    train_all,
)
from mlsys_lab.scaling.runs import SEQUENCE

VOCABULARY = 512
MARGIN = 0.08
"""How far the law may be off for a run of three times the compute. Measured for five seeds: 4.0, 3.8, 3.4, -0.2 and
3.4 % of the loss (a positive figure: the run did better than the law said)."""
TINY, NARROW, MIDDLE, WIDE, WIDER = (Size(2, width, max(1, width // 16)) for width in (8, 12, 16, 24, 32))


@pytest.fixture(scope="module")
def corpus():
    return read_corpus(vocabulary_size=VOCABULARY)


@pytest.mark.parametrize("size", [TINY, MIDDLE, Size(3, 48, 4)])
def test_n_is_what_the_model_holds(size):
    model = Transformer(size.config(VOCABULARY))
    assert size.n_params(VOCABULARY) == sum(parameter.numel() for parameter in model.parameters())


def test_a_run_is_repeated_by_its_seed_and_leaves_the_caller_s_state(corpus):
    torch.manual_seed(0)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    curves = [train(TINY, 4000, corpus=corpus, seed=seed) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(curves[0].loss, curves[1].loss)
    assert not np.array_equal(curves[0].loss, curves[2].loss)
    assert torch.equal(torch.get_rng_state(), before) and torch.get_num_threads() == threads


def test_a_curve_ends_after_about_the_tokens_asked_for(corpus):
    curve = train(TINY, 10_000, corpus=corpus)
    assert curve.tokens[-1] == pytest.approx(10_000, rel=0.02) and curve.tokens[-1] % SEQUENCE == 0
    assert curve.n_params == TINY.n_params(VOCABULARY)
    assert np.log(VOCABULARY) + 0.5 > curve.loss[0] > curve.final_loss
    assert epochs(10_000, corpus) == pytest.approx(10_000 / len(corpus.train))


def test_batches_grow_with_the_run_and_losses_are_taken_at_a_quarter_half_and_end(corpus):
    """√(D / 4000) sequences of 64 tokens, as is said of 40,000: 3, in 208 steps."""
    curve = train(TINY, 40_000, corpus=corpus)
    assert curve.tokens.tolist() == [52 * 3 * 64, 104 * 3 * 64, 208 * 3 * 64]


def test_the_learning_rate_falls_with_the_width_where_none_is_given(corpus):
    for size, rate in ((TINY, 0.08), (NARROW, 0.64 / 12)):
        given, chosen = (train(size, 1000, corpus=corpus, learning_rate=one) for one in (None, rate))
        np.testing.assert_array_equal(given.loss, chosen.loss)


def test_a_learning_rate_can_be_chosen_and_matters(corpus):
    losses = [train(NARROW, 20_000, corpus=corpus, learning_rate=rate).final_loss for rate in (5e-4, 0.05, 20.0)]
    assert losses[1] < losses[0] - 0.2 and losses[1] < losses[2] - 0.2


def test_progress_counts_flops_up_to_the_plan(corpus):
    told = []
    train_all({4e8: (TINY, NARROW)}, corpus=corpus, progress=lambda *at: told.append(at))
    done, total = zip(*told, strict=True)
    assert len(set(total)) == 1 and list(done) == sorted(done) and done[-1] == total[0]
    assert total[0] == pytest.approx(8e8, rel=0.02)


def test_the_plan_spends_its_budgets(corpus):
    for flops, sizes in PLAN.items():
        for size in sizes:
            tokens = tokens_for(size, flops, corpus)
            assert 6 * size.n_params(VOCABULARY) * tokens == pytest.approx(flops, rel=1e-3)


def test_the_shortest_run_is_ten_sequences(corpus):
    assert train(TINY, 640, corpus=corpus).tokens[-1] == 640
    with pytest.raises(InputError, match="too few tokens for a run: got 639, expected at least 640"):
        train(TINY, 639, corpus=corpus)


def test_too_short_a_run_is_one_line(corpus):
    with pytest.raises(InputError, match="too few tokens for a run: got 100, expected at least 640"):
        train(TINY, 100, corpus=corpus)
    with pytest.raises(InputError, match="tokens must be positive and finite: got nan"):
        train(TINY, float("nan"), corpus=corpus)
    with pytest.raises(InputError, match="d_model must divide among heads"):
        Size(2, 10, 3).n_params(VOCABULARY)


BUDGETS = {4e9: (TINY, NARROW, MIDDLE), 1.2e10: (NARROW, MIDDLE, WIDE), 3.6e10: (MIDDLE, WIDE, WIDER)}


class Fitted:
    """Nine runs, three a budget, with a share of its FLOPs; `unseen`, of three times the largest, is made on demand."""

    def __init__(self, corpus, seed=0, share=1.0):
        self._corpus, self._seed, self._share = corpus, seed, share
        plan = {share * flops: sizes for flops, sizes in BUDGETS.items()}
        self.curves = train_all(plan, corpus=corpus, seed=seed)
        self.fit = fit_parametric(Runs.from_curves(self.curves))

    @cached_property
    def unseen(self):
        """A run that the fit has not seen."""
        tokens = tokens_for(WIDER, self._share * 1.08e11, self._corpus)
        return train(WIDER, tokens, corpus=self._corpus, seed=self._seed)

    @property
    def miss(self):
        """By how much the law's loss for the unseen run is off, as a share of the loss."""
        predicted = self.fit.law.loss(self.unseen.n_params, self.unseen.tokens[-1])
        return float(predicted) / self.unseen.final_loss - 1

    def loss(self, size, flops):
        """Final loss of a size at its share of a budget."""
        wanted = [c for c in self.curves if c.n_params == size.n_params(VOCABULARY)]
        return min(wanted, key=lambda curve: abs(np.log(curve.flops[-1] / (self._share * flops)))).final_loss


@pytest.fixture(scope="module")
def fitted(corpus):
    return Fitted(corpus, share=0.4)


def test_real_losses_fall_with_tokens_and_with_parameters(fitted):
    by_tokens = [fitted.loss(MIDDLE, flops) for flops in (4e9, 1.2e10, 3.6e10)]
    assert np.all(np.diff(by_tokens) < -0.1)
    # The three sizes nearest the diagonal see 47,000 to 58,000 tokens each.
    by_params = [fitted.loss(TINY, 4e9), fitted.loss(MIDDLE, 1.2e10), fitted.loss(WIDER, 3.6e10)]
    assert np.all(np.diff(by_params) < -0.1)


def test_a_law_is_fitted_to_real_runs(fitted):
    """Nine runs tell losses well and the five constants badly: over seeds and texts E came out anywhere from 0 to 2.8,
    and alpha from 0.05 to 0.45 with it. So the law is held against what the runs say of parameters and of tokens."""
    law = fitted.fit.law
    assert fitted.fit.converged and np.sqrt(np.mean(fitted.fit.residuals**2)) < 0.03
    few_params, many_params = (size.n_params(VOCABULARY) for size in (TINY, WIDER))
    few_tokens, many_tokens = 10_000, 100_000
    assert law.loss(many_params, many_tokens) < law.loss(few_params, many_tokens) - 0.1
    assert law.loss(many_params, many_tokens) < law.loss(many_params, few_tokens) - 0.1
    assert 0 <= law.E < 4


@pytest.mark.weekly
def test_it_foretells_a_run_of_three_times_the_compute(corpus):
    assert abs(Fitted(corpus).miss) < MARGIN


def test_a_run_takes_little_more_than_its_passes(corpus):
    """Processor time of 40 steps of the middle size, without its validation, over that of their forward and backward
    passes, in turns: 1.2."""
    model = training.new_model(MIDDLE.config(VOCABULARY), seed=0)
    batch = training.windows(corpus.train, np.arange(4) * SEQUENCE, SEQUENCE)

    def passes():
        for _ in range(40):
            model.zero_grad()
            training.loss(model, batch).backward()

    def steps():
        for _ in training.train(model, corpus.train, batch_size=4, seq_len=SEQUENCE, steps=40, lr=0.01, seed=0):
            pass

    with training.one_thread():
        times_s = [[processor_s(call) for call in (passes, steps)] for _ in range(5)]
    passes_s, steps_s = map(min, zip(*times_s, strict=True))
    assert steps_s < 2 * passes_s


def processor_s(call):
    start_s = time.process_time()
    call()
    return time.process_time() - start_s
