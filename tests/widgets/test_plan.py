"""The planner's search, once in Python and once in JavaScript: the same plans, the same refusals."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import Any

import pytest

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops.bounds import Machine, machine
from mlsys_lab.flops.memory import RECIPES
from mlsys_lab.flops.planner import Plan, plan
from mlsys_lab.hardware import device
from mlsys_lab.widgets.estimator import recipe_bytes
from tests.widgets.test_estimate import flat
from tests.widgets.transformers import random_config, try_config

CASES = 40
GIVEN: dict[str, list[Any]] = {
    "data": [1, 2, 4],
    "tensor": [1, 2, 16, 0],
    "pipeline": [1, 2],
    "context": [2],
    "expert": [1, 2],
    "zero_stage": [0, 3],
    "recomputation": ["none", "selective", "full"],
    "sequence_parallel": [False, True],
    "micro_batch": [1, 2, 6],
    "interleave": [1, 2],
}


def random_specification(rng: random.Random) -> dict[str, Any]:
    """What the form could ask for, possible or not."""
    names = rng.sample(list(GIVEN), rng.choice([0, 0, 1, 2]))
    one = rng.choice(list(RECIPES.values()))
    on = machine(device("H100"), one.compute, node=rng.choice([4, 8]), network_bytes_per_s=rng.choice([5e9, 50e9]))
    on = asdict(on) | {"memory_bytes": rng.choice([1e8, 1e10, 1e12, 1e14])}
    config = random_config(rng)
    while isinstance(try_config(config), str):  # the estimator's test has those that are refused
        config = random_config(rng)
    return {
        "config": config,
        "machine": on,
        "recipe": recipe_bytes(one),
        "devices": rng.choice([1, 6, 8, 8, 8, 12, 12, 0]),
        "batch": rng.choice([16, 24, 24, 48, 48, 48, -1]),
        "tokens": rng.choice([2048, 2048, 8192]),
        "causal": rng.random() < 0.5,
        "given": {name: rng.choice(GIVEN[name]) for name in names},
    }


def python_plans(spec: dict[str, Any]) -> list[Plan] | str:
    """The package's plans, or the line that refuses the specification."""
    config = try_config(spec["config"])
    assert isinstance(config, TransformerConfig)
    given = {name: spec[name] for name in ("devices", "batch", "tokens", "causal", "given")}
    try:
        return plan(config, Machine(**spec["machine"]), RECIPES[spec["recipe"]["name"]], **given)
    except InputError as error:
        return str(error)


def grid(layout: dict[str, Any]) -> tuple[int, ...]:
    """Degrees by which plans are told apart."""
    return tuple(layout[name] for name in ("data", "tensor", "pipeline", "context", "expert"))


def test_the_figure_and_python_plan_alike_and_refuse_alike(open_module) -> None:
    rng = random.Random(37)
    specs = [random_specification(rng) for _ in range(CASES)]
    page = open_module("planner", "plan", "lossOf")
    got = page.evaluate(
        """(specs) => specs.map((spec) => {
          try {
            const plans = plan(spec);
            return plans.map((one) => ({ ...one, loss: lossOf(one, plans[0]) }));
          } catch (refusal) { return refusal.message; }
        })""",
        specs,
    )
    refusals, fitting, short = 0, 0, 0
    for spec, result in zip(specs, got, strict=True):
        expected = python_plans(spec)
        if isinstance(expected, str) or isinstance(result, str):
            assert result == expected
            refusals += 1
            continue
        keys = [(one["missing_bytes"], one["time_s"]) for one in result]
        assert keys == sorted(keys)
        # Two that take as long may stand in either order, since sums are rounded in another one.
        found = {grid(one["layout"]): one for one in result}
        assert len(found) == len(result) == len(expected)
        for one in expected:
            left = found[grid(asdict(one.layout))]
            assert left.pop("loss")[1] == pytest.approx(one.loss(expected[0])[1], rel=1e-9, abs=1e-9 * one.time_s)
            for path, value in flat(one.as_dict()).items():
                if isinstance(value, float):
                    assert flat(left)[path] == pytest.approx(value, rel=1e-9, abs=1e-9 * one.time_s), (path, spec)
                else:
                    assert flat(left)[path] == value, (path, spec)
            fitting += one.missing_bytes == 0
            short += one.missing_bytes > 0
    assert 5 < refusals < 25 and fitting > 50 and short > 50
