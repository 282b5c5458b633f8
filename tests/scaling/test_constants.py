"""Every constant of the published laws, against what the papers print: typed here from their tables and equations."""

from __future__ import annotations

import pytest

from mlsys_lab.scaling import allocation, laws, parametric
from tests.leaves import numbers

# Kaplan et al. 2020 (arXiv:2001.08361): equations 1.1 to 1.3, table 2 with equation 1.5, appendix A.
PARAMS = {"N_c": 8.8e13, "alpha": 0.076}
TOKENS = {"D_c": 5.4e13, "alpha": 0.095}
COMPUTE = {"C_c": 3.1e8, "alpha": 0.050}

PRINTED = {
    "HOFFMANN_2022": {".E": 1.69, ".A": 406.4, ".B": 410.7, ".alpha": 0.34, ".beta": 0.28},
    "BESIROGLU_2024": {".E": 1.8172, ".A": 482.01, ".B": 2085.43, ".alpha": 0.3478, ".beta": 0.3658},
    "KAPLAN_2020": {".N_c": 6.4e13, ".D_c": 1.8e13, ".alpha_N": 0.076, ".alpha_D": 0.103},
    "KAPLAN_PARAMS": {".coefficient": PARAMS["N_c"] ** PARAMS["alpha"], ".exponent": -PARAMS["alpha"]},
    "KAPLAN_TOKENS": {".coefficient": TOKENS["D_c"] ** TOKENS["alpha"], ".exponent": -TOKENS["alpha"]},
    "KAPLAN_COMPUTE": {".coefficient": COMPUTE["C_c"] ** COMPUTE["alpha"], ".exponent": -COMPUTE["alpha"]},
    "KAPLAN_FRONTIER": {
        ".params.coefficient": 1.3e9,
        ".params.exponent": 0.73,
        ".tokens.coefficient": 2e10,
        ".tokens.exponent": 0.27,
    },
    "GOPHER_FLOPS": {"": 5.76e23},
    "PF_DAY": {"": 10**15 * 24 * 60 * 60},
    "FLOPS_PER_PARAMETER_TOKEN": {"": 2 + 4},
}


def test_every_constant_is_here() -> None:
    constants = {name for name, value in vars(laws).items() if name.isupper() and dict(numbers(value))}
    assert constants == PRINTED.keys()


@pytest.mark.parametrize("name", PRINTED)
def test_every_number_is_the_printed_one(name: str) -> None:
    assert dict(numbers(getattr(laws, name))) == pytest.approx(PRINTED[name], rel=1e-12)


def test_starting_points_are_hoffmann_s():
    """Section D.2: log A and log B from 0 to 25 by fives, log E from -1 to 1, both exponents from 0 to 2 by halves."""
    fives, halves = {0, 5, 10, 15, 20, 25}, {0, 0.5, 1, 1.5, 2}
    axes = [{float(value) for value in axis} for axis in zip(*parametric.GRID, strict=True)]
    assert axes == [fives, fives, {-1, -0.5, 0, 0.5, 1}, halves, halves]
    assert len(set(parametric.GRID)) == len(parametric.GRID) == 6 * 6 * 5 * 5 * 5


def test_answering_costs_two_flops_a_parameter_and_token():
    assert allocation.INFERENCE_FLOPS_PER_PARAMETER_TOKEN == 2


def test_chinchilla_spent_what_gopher_did() -> None:
    assert pytest.approx(6 * 70e9 * 1.4e12, rel=0.03) == laws.GOPHER_FLOPS


def test_the_law_of_both_needs_the_data_that_kaplan_says() -> None:
    """Equation 4.4: overfitting by less than 2 % takes D of at least 5·10³ N^0.74 tokens, printed to one figure."""
    law = laws.KAPLAN_2020
    n_params = 1e9
    tokens = law.D_c / (1.02 ** (1 / law.alpha_D) - 1) * (n_params / law.N_c) ** (law.alpha_N / law.alpha_D)
    assert law.loss(n_params, tokens) / law.loss(n_params, 1e30) == pytest.approx(1.02, rel=1e-3)
    assert tokens / n_params**0.74 == pytest.approx(5e3, rel=0.1)
