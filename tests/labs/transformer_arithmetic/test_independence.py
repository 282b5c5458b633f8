"""A slip in one function costs the checks of that function: later ones are asked with its right answers."""

from __future__ import annotations

from math import prod
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from mlsys_checks.live import LiveNamespace
from mlsys_checks.runner import run_check
from tests.labs.slips import double, failed, lab_of, leave_unwritten, load_reference

LAB = lab_of("transformer-arithmetic")
OWN = {
    "einsum_flops": {"einsum_cost"},
    "parameter_table": {"parameters_gpt2", "parameters_llama"},
    "forward_products": {"forward_products"},
    "parse_einsum": {"einsum_parse"},
    "state_bytes": {"state_bytes"},
    "activation_bytes": {"activation_bytes"},
    "step_products": {"step_products"},
    "elementwise_units": {"elementwise_units"},
    "decode_work": {"decode_work"},
    "largest_batch": {"serving_memory"},
}
"""The checks that ask about a function itself."""


@pytest.fixture
def module() -> ModuleType:
    return load_reference(LAB)


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_a_slip_costs_the_checks_of_its_own_function(name: str, module: ModuleType) -> None:
    double(module, name)
    assert failed(LAB, module) == OWN[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parse_einsum", "parameter_table", "forward_products"])
def test_an_unwritten_function_costs_its_own_checks(name: str, module: ModuleType) -> None:
    leave_unwritten(module, name)
    assert failed(LAB, module) == OWN[name]


@pytest.mark.slow
def test_a_list_that_grows_over_calls_costs_its_own_check(module: ModuleType) -> None:
    right = module.forward_products

    def growing(config: Any, batch: int, tokens: int, products: list[Any] = []) -> list[Any]:  # noqa: B006
        products += right(config, batch, tokens)
        return products

    vars(module)["forward_products"] = growing
    assert failed(LAB, module) == {"forward_products"}


class Reading(NamedTuple):
    """An einsum as a learner may read it: the tuple that is asked for, with names."""

    operands: list[str]
    output: str
    sizes: dict[str, int]


def test_functions_may_give_more_than_is_asked_for(module: ModuleType) -> None:
    right = module.parse_einsum

    def flops(spec: str, *shapes: Any) -> int:
        read = module.parse_einsum(spec, *shapes)
        return (len(read.operands) - 1 + any(x not in read.output for x in read.sizes)) * prod(read.sizes.values())

    vars(module).update(parse_einsum=lambda spec, *shapes: Reading(*right(spec, *shapes)), einsum_flops=flops)
    assert {name for name in failed(LAB, module) if name.startswith("einsum")} == set()


def test_a_notebook_has_its_own_functions_back(module: ModuleType) -> None:
    leave_unwritten(module, "parameter_table")
    own, live = dict(vars(module)), LiveNamespace(vars(module))
    assert run_check(LAB.checks["decode_work"], live).passed
    assert not run_check(LAB.checks["parameters_gpt2"], live).passed
    assert vars(module) == own
