"""The simulated cluster: what it charges, loses and repeats."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.errors import InputError
from mlsys_lab.scaling import ExperimentService, Frontier, World, compute_optimal
from mlsys_lab.scaling.service import POINTS

seeds = st.integers(0, 2**32 - 1)
QUIET = {"noise": 0.0, "failure_rate": 0.0}


def requests(count, seed=0):
    rng = np.random.default_rng(seed)
    return [
        (int(10 ** rng.uniform(6, 9)), int(10 ** rng.uniform(8, 10)), 10 ** rng.uniform(-4.5, -1.5))
        for _ in range(count)
    ]


@given(seeds)
def test_a_quiet_run_gives_the_expected_loss_and_costs_6nd(seed):
    service, world = ExperimentService(1e22, seed, **QUIET), World.draw(seed)
    rate = float(world.best_learning_rate(3e8))
    outcome = service.run(3e8, 6e9, rate)
    assert outcome.finished and outcome.flops == service.spent_flops == 6 * 300_000_000 * 6_000_000_000
    assert outcome.loss == pytest.approx(float(world.law.loss(3e8, 6e9)), rel=1e-12)


@given(seeds)
def test_the_same_requests_give_the_same_outcomes_in_any_order(seed):
    wanted = requests(6, seed % 1000)
    first, second = (ExperimentService(1e24, seed, failure_rate=0.3) for _ in range(2))
    forward = [first.run(*request) for request in wanted]
    backward = [second.run(*request) for request in reversed(wanted)][::-1]
    for one, other in zip(forward, backward, strict=True):
        assert (one.status, one.tokens_done) == (other.status, other.tokens_done)
        assert (one.curve is None) == (other.curve is None)
        if one.curve is not None and other.curve is not None:
            np.testing.assert_array_equal(one.curve.loss, other.curve.loss)
    assert first.spent_flops == second.spent_flops


def test_the_same_request_again_is_another_draw():
    service = ExperimentService(1e24, 5, failure_rate=0.0)
    losses = {service.run(1e8, 1e9, 1e-3).loss for _ in range(10)}
    assert len(losses) == 10


@pytest.mark.parametrize("noise", [0.003, 0.03])
def test_noise_has_the_stated_deviation(noise):
    service, world = ExperimentService(1e26, 1, noise=noise, failure_rate=0.0), World.draw(1)
    rate = float(world.best_learning_rate(1e8))
    above = np.array([service.run(1e8, 1e9, rate).loss for _ in range(400)]) - world.law.E
    logs = np.log(above / (world.law.loss(1e8, 1e9) - world.law.E))
    # The deviation of 400 draws is within 4 of its standard errors, 1/√800, of the truth.
    assert logs.std() == pytest.approx(noise, rel=4 / np.sqrt(800))
    assert abs(logs.mean()) < 4 * noise / 20


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.4])
def test_failures_have_the_stated_rate_and_cost_what_was_done(rate):
    service = ExperimentService(1e26, 2, failure_rate=rate)
    outcomes = [service.run(1e7, 1e8 + i, 1e-3) for i in range(1000)]
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    assert len(failed) == pytest.approx(1000 * rate, abs=4 * np.sqrt(1000 * rate * (1 - rate)))
    for outcome in failed:
        assert not outcome.finished and np.isnan(outcome.loss)
        assert outcome.tokens_done < outcome.tokens and outcome.flops == 6 * 10**7 * outcome.tokens_done
        assert outcome.curve is None or outcome.curve.tokens[-1] <= outcome.tokens_done
    if failed:
        assert np.mean([outcome.tokens_done / outcome.tokens for outcome in failed]) == pytest.approx(0.5, abs=0.2)


def test_runs_in_one_call_are_those_of_many_with_sizes_and_tokens_rounded_down():
    one, many = (ExperimentService(1e26, 3, failure_rate=0.3) for _ in range(2))
    asked = requests(30)
    n_params, tokens, rates = np.array(asked).T
    outcomes = [many.run(*request) for request in asked]
    got = one.run_all(n_params + 0.5, tokens + 0.5, rates)
    assert np.isnan(got[3]).any() and one.spent_flops == many.spent_flops
    expected = [(outcome.n_params, outcome.tokens, outcome.learning_rate, outcome.loss) for outcome in outcomes]
    np.testing.assert_array_equal(got, np.transpose(expected))
    assert one.run_all([], [], []).shape == (4, 0)


def test_the_budget_holds_to_the_flop():
    cost = 6 * 1_000_003 * 20_000_017
    service = ExperimentService(2 * cost, 0, **QUIET)
    service.run(1_000_003, 20_000_017, 1e-3)
    assert service.remaining_flops == cost
    with pytest.raises(InputError, match="the budget does not allow this run") as caught:
        service.run(1_000_003, 20_000_018, 1e-3)
    assert "\n" not in str(caught.value) and service.spent_flops == cost and len(service.history) == 1
    service.run(1_000_003, 20_000_017, 1e-3)
    assert service.remaining_flops == 0
    assert service.spent_flops == service.budget_flops == sum(outcome.flops for outcome in service.history)


@given(seeds, st.floats(8, 13))
def test_the_best_learning_rate_is_best_and_falls_with_size(seed, scale):
    world = World.draw(seed)
    size, tokens = 10**scale, 2 * 10 ** (scale + 1)
    best = float(world.best_learning_rate(size))
    tried = best * np.geomspace(0.2, 5, 41)
    losses = world.loss(size, tokens, tried)
    assert losses.argmin() == 20 and losses[20] == pytest.approx(world.law.loss(size, tokens))
    assert world.best_learning_rate(10 * size) < best
    # Off by a factor of 5, a run misses between 7 and 16 % of what it could gain above the floor.
    above = (losses[[0, 40]] - world.law.E) / (losses[20] - world.law.E)
    assert np.all((above > 1.07) & (above < 1.16))


@given(seeds)
def test_far_too_high_a_learning_rate_diverges_early_and_is_charged(seed):
    service, world = ExperimentService(1e24, seed, **QUIET), World.draw(seed)
    best = float(world.best_learning_rate(1e8))
    outcome = service.run(1e8, 1e9, 11 * best)
    assert outcome.status == "diverged" and np.isnan(outcome.loss)
    assert 0.05 <= outcome.tokens_done / outcome.tokens <= 0.3
    assert service.run(1e8, 1e9, 4.9 * best).finished


@given(seeds)
def test_a_curve_falls_and_lies_above_runs_that_end_on_its_way(seed):
    service, world = ExperimentService(1e26, seed, **QUIET), World.draw(seed)
    rate = float(world.best_learning_rate(1e8))
    curve = service.run(1e8, 5e9, rate).curve
    assert len(curve.tokens) == POINTS and curve.tokens[-1] == 5e9
    assert np.all(np.diff(curve.loss) < 0)
    assert np.all(curve.loss[:-1] > world.law.loss(1e8, curve.tokens[:-1]))


@given(seeds)
def test_worlds_differ_and_are_plausible(seed):
    world = World.draw(seed)
    frontier = world.law.frontier()
    assert 5 <= frontier.tokens_per_param(1e20) <= 80 and 0.4 <= frontier.a <= 0.6
    assert 1.5 <= world.law.E <= 2 and 1.9 < compute_optimal(world.law, 1e20).loss < 4
    assert world == World.draw(seed) and world != World.draw(seed + 1)


RANGES = {
    "alpha": (0.28, 0.42),
    "beta": (0.28, 0.42),
    "floor": (1.5, 2.0),
    "log tokens a parameter": (np.log(5), np.log(80)),
    "share of parameters": (0.35, 0.6),
    "rate at 1e8": (6e-4, 1.6e-3),
    "fall of the rate": (0.15, 0.35),
    "sensitivity": (0.03, 0.06),
    "divergence": (5.0, 10.0),
    "schedule gap": (0.03, 0.08),
}


def drawn(seed):
    """What is drawn at random of a world, by name, worked out from the world alone."""
    world = World.draw(seed)
    law, rate = world.law, world.best_learning_rate
    best = compute_optimal(law, 1e20)
    return {
        "alpha": law.alpha,
        "beta": law.beta,
        "floor": law.E,
        "log tokens a parameter": np.log(best.tokens / best.n_params),
        "share of parameters": law.A / best.n_params**law.alpha,
        "rate at 1e8": float(rate(1e8)),
        "fall of the rate": -rate.exponent,
        "sensitivity": world.sensitivity,
        "divergence": world.divergence,
        "schedule gap": world.schedule_gap,
    }


def test_worlds_are_drawn_evenly_from_end_to_end_of_the_stated_ranges():
    """Of 2,000 draws the outermost are within 0.6 % of the range from its ends but once in 10⁵: exp(-2000·0.006)."""
    worlds = [drawn(seed) for seed in range(2000)]
    for name, (low, high) in RANGES.items():
        values = np.array([world[name] for world in worlds])
        assert low * (1 - 1e-9) <= values.min() < low + 0.006 * (high - low), name
        assert high - 0.006 * (high - low) < values.max() <= high * (1 + 1e-9), name
        assert values.mean() == pytest.approx((low + high) / 2, abs=4 * (high - low) / np.sqrt(12 * 2000)), name


def test_finished_runs_can_be_fitted():
    service = ExperimentService(1e24, 3, failure_rate=0.5)
    for request in requests(30):
        service.run(*request)
    assert len(service.runs) == sum(outcome.finished for outcome in service.history) > 5
    assert isinstance(World.draw(3).law.frontier(), Frontier)


service = ExperimentService(1e20, 0)
BAD = {
    "half a parameter": (lambda: service.run(1e6 + 0.5, 1e9, 1e-3), "n_params must be a whole number: got 1000000.5"),
    "nan tokens": (lambda: service.run(1e6, float("nan"), 1e-3), "tokens must be a whole number: got nan"),
    "endless tokens": (lambda: service.run(1e6, float("inf"), 1e-3), "tokens must be a whole number: got inf"),
    "text": (lambda: service.run("7B", 1e9, 1e-3), "n_params must be a whole number: got '7B'"),
    "no size": (lambda: service.run(None, 1e9, 1e-3), "n_params must be a whole number: got None"),
    "negative": (lambda: service.run(-5, 1e9, 1e-3), "n_params out of range: got -5, expected at least 10000"),
    "too large": (lambda: service.run(10**14, 1e9, 1e-3), "n_params out of range"),
    "few tokens": (lambda: service.run(1e6, 10, 1e-3), "tokens out of range: got 10, expected at least 1000"),
    "a rate of zero": (lambda: service.run(1e6, 1e9, 0), "learning rate must be positive and finite: got 0"),
    "a rate of text": (lambda: service.run(1e6, 1e9, "1e-3x"), "learning rate must be numbers"),
    "several rates": (lambda: service.run(1e6, 1e9, [1e-3, 1e-2]), "learning rate must be one number"),
    "beyond the budget": (lambda: service.run(1e9, 1e12, 1e-3), "the budget does not allow this run"),
    "no budget": (lambda: ExperimentService(0, 0), "the budget must be positive: got 0, expected FLOPs"),
    "certain failure": (lambda: ExperimentService(1, 0, failure_rate=1), "chances out of range"),
    "a seed": (lambda: ExperimentService(1, -1), "a seed must be a whole number: got -1"),
    "nothing finished": (lambda: ExperimentService(1, 0).runs, "no curves"),
}


@pytest.mark.parametrize(("call", "line"), BAD.values(), ids=BAD)
def test_a_bad_request_is_one_line_and_free(call, line):
    with pytest.raises(InputError, match=line) as caught:
        call()
    assert "\n" not in str(caught.value) and service.spent_flops == 0
