"""Calls of task 5: the products, the elementwise work and the seconds of a training step."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.inputs import unchanged
from mlsys_checks.sandboxed.repeated_calls import call_before, call_twice
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.transformer_arithmetic.given import call_with_given
from mlsys_checks.sandboxed.transformer_arithmetic.models import config_of, other_config, product_rows
from mlsys_checks.sandboxed.values import number, whole

PRODUCTS_S, STEP_S = "predict_training_step_s with unit_s = 0", "predict_training_step_s"


def merge_shapes(rows: list[list[int]]) -> np.ndarray:
    """Rows [times, m, k, n], those of one shape added up. A product and its transpose are one: m is at most n."""
    found: dict[tuple[int, int, int], int] = {}
    for times, m, k, n in rows:
        shape = (min(m, n), k, max(m, n))
        found[shape] = found.get(shape, 0) + times
    return np.array([[times, *shape] for shape, times in sorted(found.items())], dtype=np.int64).reshape(-1, 4)


def step_products(artifact: Any, arrays: Arrays) -> Arrays:
    """All products of a step, whatever they are called."""
    config, other = config_of(artifact, arrays["model"]), other_config(artifact, arrays["model"])
    batch, tokens = int(arrays["batch"]), int(arrays["tokens"])
    call_before(artifact.step_products, (config, batch, tokens), (other, batch + 1, tokens + 1))
    call = partial(call_twice, "step_products", partial(artifact.step_products, config, batch, tokens))
    listed = call_with_given(call, artifact, arrays, config)
    named = product_rows("step_products", listed)
    return {"products": merge_shapes([row for rows in named.values() for row in rows])}


def elementwise_units(artifact: Any, arrays: Arrays) -> Arrays:
    """Elements that the elementwise work writes."""
    config, other = config_of(artifact, arrays["model"]), other_config(artifact, arrays["model"])
    batch, tokens = int(arrays["batch"]), int(arrays["tokens"])
    call_before(artifact.elementwise_units, (config, batch, tokens), (other, batch + 1, tokens + 1))
    units = call_with_given(partial(artifact.elementwise_units, config, batch, tokens), artifact, arrays, config)
    return {"elementwise_units": whole("elementwise_units", units)}


def predict_step(artifact: Any, arrays: Arrays) -> Arrays:
    """Seconds of a step, and of its products alone, from rates that are given for a shape and for its transpose."""
    rates = {}
    for (m, k, n), rate in zip(arrays["shapes"].tolist(), arrays["rates"].tolist(), strict=True):
        rates[m, k, n] = rates[n, k, m] = rate
    config, other = config_of(artifact, arrays["model"]), other_config(artifact, arrays["model"])
    sizes = (int(arrays["batch"]), int(arrays["tokens"]))
    faster = {shape: 2 * rate for shape, rate in rates.items()}

    def seconds(rates: dict[tuple[int, int, int], float], unit_s: float, *model: Any) -> Any:
        return artifact.predict_training_step_s(*model, rates, unit_s)

    units = {PRODUCTS_S: 0.0, STEP_S: float(arrays["unit_s"])}
    found = {}
    for name, unit_s in units.items():
        with unchanged(rates=rates):
            call_before(seconds, (rates, unit_s, config, *sizes), (faster, 2 * unit_s, other, *(n + 1 for n in sizes)))
            call = partial(artifact.predict_training_step_s, config, *sizes, rates, unit_s)
            found[name] = number("predict_training_step_s", call_with_given(call, artifact, arrays, config))
    return found
