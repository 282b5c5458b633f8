"""A slip in one function costs the checks of its own task: later functions are tried on stand-ins for it, too."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from mlsys_checks.live import LiveNamespace
from mlsys_checks.runner import run_check
from mlsys_checks.sandboxed import scaling_laws as calls
from tests.labs.slips import double, failed, lab_of, leave_unwritten, load_reference

LAB = lab_of("scaling-laws")
SEED = 5
OWN = {
    "isoflop_minimum": {"isoflop_minimum", "isoflop_refuses"},
    "fit_power_law": {"power_law"},
    "isoflop_minima": {"isoflop_minima"},
    "objective": {"huber_objective", "parametric_fit"},  # both of Task 3: nothing can be fitted without an objective
    "fit_law": {"parametric_fit"},
    "compute_optimal": {"compute_optimal"},
    "best_learning_rate": {"best_learning_rate"},
}
"""The checks that ask about a function itself."""
STAND_INS = {
    "isoflop_minimum": calls.mirrored_middle,
    "fit_power_law": calls.secant,
    "isoflop_minima": calls.sorted_apart,
    "compute_optimal": calls.made_up_model,
}


@pytest.fixture
def module() -> ModuleType:
    return load_reference(LAB)


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_an_unwritten_function_costs_its_own_checks(name: str, module: ModuleType) -> None:
    leave_unwritten(module, name)
    assert failed(LAB, module) == OWN[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_a_slip_costs_at_most_the_checks_of_its_own_function(name: str, module: ModuleType) -> None:
    double(module, name)
    lost = failed(LAB, module)
    assert lost
    assert lost <= OWN[name]


@pytest.mark.parametrize("name", STAND_INS)
def test_a_stand_in_earns_none_of_its_functions_points(name: str, module: ModuleType) -> None:
    setattr(module, name, STAND_INS[name])
    assert not any(run_check(LAB.checks[check], module, seed=SEED, hidden=True).passed for check in OWN[name])


def test_the_stand_in_for_a_fit_earns_no_points(module: ModuleType) -> None:
    vars(module)["fit_law"] = lambda *runs: module.Law(**calls.made_up_law(*runs[:3]))
    assert not run_check(LAB.checks["parametric_fit"], module).passed


def test_a_notebook_has_its_own_functions_back(module: ModuleType) -> None:
    leave_unwritten(module, "fit_law")
    own, live = dict(vars(module)), LiveNamespace(vars(module))
    assert run_check(LAB.checks["backtest"], live).passed
    assert not run_check(LAB.checks["parametric_fit"], live).passed
    assert vars(module) == own


def test_wrongly_chosen_runs_are_told_on_stand_ins(module: ModuleType) -> None:
    """A `decide` that fits all trials loses its points also where no fit of the learner's says so."""
    leave_unwritten(module, "fit_law")

    def decide(trials: Any, target_flops: float) -> tuple[float, float, float]:
        law = module.fit_law(trials.n_params, trials.tokens, trials.loss)
        n_params, tokens = module.compute_optimal(law, target_flops)
        return n_params, tokens, law.loss(n_params, tokens)

    assert run_check(LAB.checks["decide"], module).passed
    vars(module)["decide"] = decide
    assert not run_check(LAB.checks["decide"], module).passed
