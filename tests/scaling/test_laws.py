"""Forms, inverses and closed-form optima, each against a search or a finite difference."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.errors import InputError
from mlsys_lab.scaling import (
    BESIROGLU_2024,
    HOFFMANN_2022,
    KAPLAN_2020,
    ChinchillaLaw,
    Frontier,
    KaplanLaw,
    PowerLaw,
    training_flops,
)

LAWS = {"Hoffmann": HOFFMANN_2022, "Besiroglu": BESIROGLU_2024, "Kaplan": KAPLAN_2020}
exponents = st.floats(0.1, 0.9)
drawn = st.builds(
    ChinchillaLaw, E=st.floats(0, 3), A=st.floats(1, 1e4), B=st.floats(1, 1e4), alpha=exponents, beta=exponents
)


def searched(law, flops, around):
    """The best of 4,001 sizes within a factor of 3 of a size, by trying them all."""
    sizes = around * np.geomspace(1 / 3, 3, 4001)
    losses = law.loss(sizes, flops / (6 * sizes))
    return sizes[losses.argmin()], losses.min()


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("flops", [1e15, 1e21, 5.76e23, 1e27])
def test_the_closed_form_optimum_is_what_a_search_finds(law, flops):
    frontier = law.frontier()
    best, loss = searched(law, flops, frontier.params(flops))
    assert best == pytest.approx(frontier.params(flops), rel=2e-3)
    assert law.loss(frontier.params(flops), frontier.tokens(flops)) <= loss * (1 + 1e-14)


@given(drawn, st.floats(1e12, 1e28))
def test_the_optimum_spends_the_budget_and_least_flops_gives_it_back(law, flops):
    frontier = law.frontier()
    n_params, tokens = frontier.params(flops), frontier.tokens(flops)
    assert training_flops(n_params, tokens) == pytest.approx(flops, rel=1e-9)
    assert frontier.a + frontier.b == pytest.approx(1, abs=1e-12)
    # Just above the floor a loss keeps few digits of what the terms add up to.
    if law.loss(n_params, tokens) - law.floor > 1e-3:
        assert law.least_flops(law.loss(n_params, tokens)) == pytest.approx(flops, rel=1e-6)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_inverses_undo_the_loss(law):
    n_params, tokens = np.geomspace(1e6, 1e12, 7)[:, None], np.geomspace(1e9, 1e13, 5)
    loss = law.loss(n_params, tokens)
    assert loss.shape == (7, 5)
    np.testing.assert_allclose(law.params_for_loss(loss, tokens), n_params * np.ones(5), rtol=1e-6)
    np.testing.assert_allclose(law.tokens_for_loss(loss, n_params), tokens * np.ones((7, 1)), rtol=1e-6)


def test_a_loss_that_no_amount_of_the_other_reaches_is_nan_or_refused():
    never = HOFFMANN_2022.tokens_for_loss(2.0, [1e6, 1e12])
    assert np.isnan(never[0]) and never[1] > 0
    with pytest.raises(InputError, match=r"no model reaches this loss: got 1\.6, expected above 1\.69"):
        HOFFMANN_2022.params_for_loss([2.0, 1.6])


def test_kaplan_s_form_has_the_published_limits():
    """With endless tokens it is (N_c/N)^alpha_N, with endless parameters (D_c/D)^alpha_D."""
    law = KAPLAN_2020
    assert law.loss(1e9, 1e30) == pytest.approx((law.N_c / 1e9) ** law.alpha_N, rel=1e-6)
    assert law.loss(1e40, 1e10) == pytest.approx((law.D_c / 1e10) ** law.alpha_D, rel=1e-6)


def test_a_frontier_keeps_tokens_and_parameters_apart():
    frontier = Frontier.from_params(PowerLaw(2.0, 0.25))
    assert frontier.tokens(1e12) == pytest.approx(1e12 / (6 * 2 * 1e3))
    assert frontier.tokens_per_param(1e12) == pytest.approx(frontier.tokens(1e12) / 2000)


@given(st.floats(1e-6, 1e6), st.floats(-2, 2).filter(lambda p: abs(p) > 1e-3))
def test_a_power_law_is_fitted_exactly_and_inverted(coefficient, exponent):
    x = np.geomspace(1e-2, 1e4, 5)
    law = PowerLaw.fit(x, coefficient * x**exponent)
    assert (law.coefficient, law.exponent) == (pytest.approx(coefficient, rel=1e-9), pytest.approx(exponent, abs=1e-9))
    np.testing.assert_allclose(law.inverse(law(x)), x, rtol=1e-6)


BAD = {
    "a size of zero": (lambda: HOFFMANN_2022.loss(0, 1e9), "parameters must be positive and finite: got 0"),
    "negative tokens": (lambda: HOFFMANN_2022.loss(1e9, [1e9, -2]), "tokens must be positive and finite: got -2"),
    "nan": (lambda: HOFFMANN_2022.loss(np.nan, 1e9), "parameters must be positive and finite: got nan"),
    "text": (lambda: HOFFMANN_2022.loss("7B", 1e9), "parameters must be numbers: got '7B'"),
    "nothing": (lambda: HOFFMANN_2022.loss([], 1e9), "parameters are empty"),
    "a negative floor": (lambda: ChinchillaLaw(-1, 1, 1, 1, 1), "ChinchillaLaw.E must be positive: got -1"),
    "a zero exponent": (lambda: KaplanLaw(1, 1, 0, 1), "KaplanLaw.alpha_N must be positive: got 0"),
    "one point": (lambda: PowerLaw.fit([2, 2], [1, 2]), "a power law needs two different x"),
    "shapes": (lambda: PowerLaw.fit([1, 2], [1, 2, 3]), "differ in shape"),
}


@pytest.mark.parametrize(("call", "line"), BAD.values(), ids=BAD)
def test_what_cannot_be_is_one_line(call, line):
    with pytest.raises(InputError, match=line) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_laws_and_fits_run_without_torch():
    code = (
        "import sys, mlsys_lab.scaling as s; s.fit_isoflop; s.ExperimentService(1e20, 0).run(1e6, 1e7, 1e-3); "
        "s.read_corpus(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
