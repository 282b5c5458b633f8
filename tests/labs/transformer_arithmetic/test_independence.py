"""A slip in one function costs the checks of that function: later ones are asked with its right answers."""

from __future__ import annotations

from functools import partial, wraps
from math import prod
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from mlsys_lab.checks.live import LiveNamespace
from mlsys_lab.checks.runner import run_check
from mlsys_lab.stack.artifact import Artifact
from mlsys_lab.stack.loading import load
from tests.labs.harness import labs

LAB = next(lab for lab in labs() if lab.info.topic == "transformer-arithmetic")
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


def unwritten(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError


def doubled(answer: Any) -> Any:
    """A wrong answer of the right form."""
    if isinstance(answer, str):
        return answer
    if isinstance(answer, dict):
        return {name: 2 * value for name, value in answer.items()}
    return 2 * answer if isinstance(answer, int | list) else tuple(map(doubled, answer))


@pytest.fixture
def module() -> ModuleType:
    return load(Artifact.parse("reference.ipynb", LAB.reference), module_name="independence")


def failed(artifact: Any) -> set[str]:
    return {check.name for check in LAB.checks.checks if not run_check(check, artifact).passed}


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_a_slip_costs_the_checks_of_its_own_function(name: str, module: ModuleType) -> None:
    right = getattr(module, name)

    @wraps(right)
    def slip(*args: Any, **kwargs: Any) -> Any:
        return doubled(right(*args, **kwargs))

    setattr(module, name, slip)
    assert failed(module) == OWN[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parse_einsum", "parameter_table", "forward_products"])
def test_an_unwritten_function_costs_its_own_checks(name: str, module: ModuleType) -> None:
    setattr(module, name, wraps(getattr(module, name))(partial(unwritten)))
    assert failed(module) == OWN[name]


@pytest.mark.slow
def test_a_list_that_grows_over_calls_costs_its_own_check(module: ModuleType) -> None:
    right = module.forward_products

    def growing(config: Any, batch: int, tokens: int, products: list[Any] = []) -> list[Any]:  # noqa: B006
        products += right(config, batch, tokens)
        return products

    vars(module)["forward_products"] = growing
    assert failed(module) == {"forward_products"}


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
    assert {name for name in failed(module) if name.startswith("einsum")} == set()


def test_a_notebook_has_its_own_functions_back(module: ModuleType) -> None:
    slip = wraps(module.parameter_table)(partial(unwritten))
    module.__dict__["parameter_table"] = slip
    own, live = dict(vars(module)), LiveNamespace(vars(module))
    assert run_check(LAB.checks["decode_work"], live).passed
    assert not run_check(LAB.checks["parameters_gpt2"], live).passed
    assert vars(module) == own
