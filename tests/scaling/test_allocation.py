"""Allocations against brute force over sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.errors import InputError
from mlsys_lab.scaling import (
    BESIROGLU_2024,
    HOFFMANN_2022,
    KAPLAN_2020,
    World,
    compute_optimal,
    inference_optimal,
    reach_loss,
)

LAWS = {"Hoffmann": HOFFMANN_2022, "Besiroglu": BESIROGLU_2024, "Kaplan": KAPLAN_2020}


def cheapest(law, loss, served, price=1.0):
    """The least cost over 20,001 sizes, a factor of 10,000 about the compute-optimal one."""
    sizes = law.frontier().params(law.least_flops(loss)) * np.geomspace(1e-3, 10, 20_001)
    tokens = law.tokens_for_loss(loss, sizes)
    cost = 6 * sizes * tokens + price * 2 * sizes * served
    return sizes[np.nanargmin(cost)], np.nanmin(cost)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("served", [0, 1e10, 2e12, 1e15])
def test_the_inference_aware_optimum_is_what_brute_force_finds(law, served):
    loss = compute_optimal(law, 1e22).loss
    found = inference_optimal(law, loss, served)
    size, cost = cheapest(law, loss, served)
    assert found.total_flops <= cost * (1 + 1e-12)
    assert found.total_flops == pytest.approx(cost, rel=1e-5)
    assert found.n_params == pytest.approx(size, rel=0.02)
    assert law.loss(found.n_params, found.tokens) == pytest.approx(loss, rel=1e-9)


@given(st.integers(0, 2**32 - 1), st.floats(1e18, 1e26), st.floats(0, 1e16), st.floats(0, 100))
def test_any_law_demand_and_price(seed, flops, served, price):
    law = World.draw(seed).law
    best = compute_optimal(law, flops)
    found = inference_optimal(law, best.loss, served, inference_price=price)
    paid = found.training_flops + price * found.inference_flops
    assert paid <= best.training_flops + price * 2 * best.n_params * served + 1e-6 * paid
    assert paid <= cheapest(law, best.loss, served, price)[1] * (1 + 1e-6)
    assert found.n_params <= best.n_params * (1 + 1e-6)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_with_nothing_to_serve_it_is_the_compute_optimal_model(law):
    best = compute_optimal(law, 5.76e23)
    found = inference_optimal(law, best.loss, 0)
    assert (found.n_params, found.tokens) == pytest.approx((best.n_params, best.tokens), rel=1e-6)


def test_more_to_serve_means_smaller_and_longer():
    loss = compute_optimal(HOFFMANN_2022, 1e23).loss
    models = [inference_optimal(HOFFMANN_2022, loss, served) for served in (0, 1e11, 1e12, 1e13, 1e14)]
    assert np.all(np.diff([model.n_params for model in models]) < 0)
    assert np.all(np.diff([model.tokens_per_param for model in models]) > 0)


def test_costs_are_6nd_and_2nd():
    model = reach_loss(HOFFMANN_2022, 2.2, 7e9, 1e12)
    assert model.training_flops == 6 * 7e9 * model.tokens
    assert model.inference_flops == 2 * 7e9 * 1e12
    assert model.total_flops == model.training_flops + model.inference_flops


BAD = {
    "too small": (lambda: reach_loss(HOFFMANN_2022, 2.0, 1e6), "1e\\+06 parameters never reach a loss of 2"),
    "below the floor": (lambda: inference_optimal(HOFFMANN_2022, 1.6, 0), "no model reaches this loss: got 1.6"),
    "negative demand": (lambda: inference_optimal(HOFFMANN_2022, 2, -1), "tokens served must not be negative: got -1"),
    "a price": (lambda: inference_optimal(HOFFMANN_2022, 2, 1, inference_price=-1), "inference_price must not be"),
    "no compute": (lambda: compute_optimal(HOFFMANN_2022, 0), "must be positive"),
}


@pytest.mark.parametrize(("call", "line"), BAD.values(), ids=BAD)
def test_what_cannot_be_is_one_line(call, line):
    with pytest.raises(InputError, match=line) as caught:
        call()
    assert "\n" not in str(caught.value)
