"""The estimator's arithmetic, once in Python and once in JavaScript: the same figures, the same refusals."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import Any

import pytest

from mlsys_lab.configs.presets import PRESETS
from mlsys_lab.errors import InputError
from mlsys_lab.flops.bounds import Machine, machine
from mlsys_lab.flops.estimate import (
    estimate_serving,
    estimate_training,
    training_memory,
    training_run,
)
from mlsys_lab.flops.fitting import nearest_layout, smaller_layouts
from mlsys_lab.flops.layout import Layout
from mlsys_lab.flops.memory import BYTES, RECIPES
from mlsys_lab.hardware import DEVICES, device
from mlsys_lab.widgets.estimator import recipe_bytes
from tests.widgets.transformers import random_config, try_config

CASES = 1_000


def random_specification(rng: random.Random) -> dict[str, Any]:
    """What the form could ask for, possible or not; degrees are mostly ones that divide."""
    config = random_config(rng)
    heads, layers = max(1, config["n_heads"]), max(1, config["n_layers"])
    experts = config["experts"]["count"] if config["experts"] else 1
    expert = rng.choice([k for k in (1, 2, 4, 8) if experts % k == 0])
    layout = {
        "data": expert * rng.choice([1, 1, 2, 3, 16]),
        "tensor": rng.choice([k for k in (1, 1, 2, 4, 8) if heads % k == 0 and config["d_ff"] % k == 0]),
        "pipeline": rng.choice([k for k in (1, 1, 2, 3, 4, 5, 8, 16) if layers % k == 0 or rng.random() < 0.5]),
        "expert": expert,
        "context": rng.choice([1, 1, 1, 2, 4]),
        "zero_stage": rng.choice([0, 1, 2, 3]),
        "sequence_parallel": rng.random() < 0.5,
        "recomputation": rng.choice(["none", "selective", "full"]),
        "micro_batch": rng.choice([1, 1, 2, 4]),
    }
    layout["interleave"] = rng.choice([1, 2, 3]) if layout["pipeline"] > 1 else 1
    batch, tokens = (
        layout["data"] * layout["micro_batch"] * rng.choice([1, 2, 8, 240]),
        rng.choice([1, 128, 2048, 32_768]),
    )
    price = rng.choice([None, 0, 2, 0.37])
    mode = rng.choice(["training", "training", "serving"])
    if mode == "serving" and rng.random() < 0.9:
        layout["context"] = 1
    weight_format, cache_format = rng.choice(list(BYTES)), rng.choice(list(BYTES))
    sizes = {"weight_bytes": BYTES[weight_format], "cache_bytes": BYTES[cache_format]}
    if rng.random() < 0.15:
        slip = rng.choice(["batch", "tokens", "price", *sizes, *layout])
        if slip == "batch":
            batch = rng.choice([0, -1, 7])
        elif slip == "tokens":
            tokens = rng.choice([0, -5])
        elif slip == "price":
            price = -1
        elif slip in sizes:
            sizes[slip] = rng.choice([0, -1])
        elif isinstance(layout[slip], int) and slip not in ("zero_stage", "sequence_parallel"):
            layout[slip] = rng.choice([0, -2, 3, 7, 11])
    name, one = rng.choice(DEVICES).name, rng.choice(list(RECIPES.values()))
    return {
        "mode": mode,
        "config": config,
        "device": name,
        "precision": one.compute if mode == "training" else weight_format,
        "layout": layout,
        "recipe": recipe_bytes(one),
        "batch": batch,
        "tokens": tokens,
        "causal": rng.random() < 0.8,
        "price_per_hour": price,
        **sizes,
    }


def python_estimate(spec: dict[str, Any], on: Machine) -> dict[str, Any] | str:
    """The package's figures, or the line that refuses the specification."""
    config = try_config(spec["config"])
    if isinstance(config, str):
        return config
    shared = {name: spec[name] for name in ("batch", "tokens", "price_per_hour")}
    try:
        layout = Layout(**spec["layout"])
        if spec["mode"] == "training":
            one = RECIPES[spec["recipe"]["name"]]
            return estimate_training(config, on, layout, one, causal=spec["causal"], **shared).as_dict()
        sizes = {name: spec[name] for name in ("weight_bytes", "cache_bytes")}
        return estimate_serving(config, on, layout, **sizes, **shared).as_dict()
    except InputError as error:
        return str(error)


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Every leaf of nested dictionaries under its path."""
    if not isinstance(value, dict):
        return {path: value}
    return {key: leaf for name, inner in value.items() for key, leaf in flat(inner, f"{path}/{name}").items()}


def test_the_figure_and_python_estimate_alike_and_refuse_alike(open_module) -> None:
    rng = random.Random(31)
    specs, machines = [], []
    while len(specs) < CASES:
        spec = random_specification(rng)
        try:
            on = machine(device(spec["device"]), spec["precision"])
        except InputError:  # a device without the precision: the form's data holds this very line
            continue
        specs.append(spec | {"machine": asdict(on)})
        machines.append(on)
    page = open_module("estimator", "estimate")
    got = page.evaluate(
        """(specs) => specs.map((spec) => {
          try { return estimate(spec); } catch (refusal) { return refusal.message; }
        })""",
        specs,
    )
    refusals: list[str] = []
    training = 0
    for spec, on, result in zip(specs, machines, got, strict=True):
        expected = python_estimate(spec, on)
        if isinstance(expected, str) or isinstance(result, str):
            assert result == expected
            refusals.append(result)
            continue
        training += spec["mode"] == "training"
        left, right = flat(result), flat(expected)
        assert left.keys() == right.keys()
        for path, value in right.items():
            if isinstance(value, float | int) and not isinstance(value, bool):
                assert left[path] == pytest.approx(value, rel=1e-12, abs=0), (path, spec)
            else:
                assert left[path] == value, (path, spec)
    assert 150 < len(refusals) < 500 and 250 < training < CASES - len(refusals) - 100
    for said in (
        "sequence parallelism does not",
        "weight_bytes must",
        "cache_bytes must",
        "context parallelism",
        "heads",
    ):
        assert any(said in refusal for refusal in refusals)


def test_the_figure_and_python_know_the_same_smaller_layouts(open_module) -> None:
    rng = random.Random(32)
    page = open_module("estimator", "smallerLayouts")
    cases = []
    while len(cases) < 200:
        spec = random_specification(rng)
        config = try_config(spec["config"])
        try:
            layout = Layout(**spec["layout"])
        except InputError:
            continue
        if not isinstance(config, str):
            cases.append((config, layout, spec["mode"] == "training"))
    got = page.evaluate(
        "(cases) => cases.map(([config, layout, training]) => smallerLayouts(config, layout, training))",
        [(asdict(config), asdict(layout), training) for config, layout, training in cases],
    )
    assert sum(map(len, got)) > 500
    for (config, layout, training), offered in zip(cases, got, strict=True):
        expected = smaller_layouts(config, layout, training=training)
        assert offered == [[words, asdict(smaller)] for words, smaller in expected]


def test_the_figure_and_python_find_the_same_nearest_layout(open_module) -> None:
    rng = random.Random(33)
    page = open_module("estimator", "nearestLayout", "memoryOf", "completed")
    cases: list[tuple[dict[str, Any], Any]] = []
    recipe = RECIPES["mixed18"]
    while len(cases) < 150:
        spec = random_specification(rng)
        config = try_config(spec["config"])
        try:
            layout = Layout(**spec["layout"])
            used = training_memory(config, layout, recipe, batch=spec["batch"], tokens=spec["tokens"]).total
        except (InputError, AttributeError):
            continue
        room = used / rng.choice([1.2, 3, 9, 40])

        def fits(one: Layout, config=config, spec=spec, room=room) -> bool:
            return training_memory(config, one, recipe, batch=spec["batch"], tokens=spec["tokens"]).total <= room

        asked = {"layout": spec["layout"], "batch": spec["batch"], "tokens": spec["tokens"], "room": room}
        asked |= {"config": asdict(config), "mode": "training", "recipe": recipe_bytes(recipe)}
        cases.append((asked, nearest_layout(config, layout, fits, training=True)))
    got = page.evaluate(
        """(cases) => cases.map((one) => {
          const spec = { ...one, config: completed(one.config) };
          const fits = (layout) => memoryOf(spec, layout).total <= one.room;
          return nearestLayout(spec.config, one.layout, fits, true) ?? null;
        })""",
        [asked for asked, _ in cases],
    )
    words = []
    for result, (_, expected) in zip(got, cases, strict=True):
        assert result == (expected and [expected[0], asdict(expected[1])])
        words.append(expected[0] if expected else "")
    assert {text.count(",") for text in words if text} == {0, 1, 2} and "" in words


def test_the_figure_and_python_tell_the_same_of_a_whole_run(open_module) -> None:
    page = open_module("estimator", "trainingRun")
    config, on, recipe = PRESETS["llama3-8b"], machine(device("H100"), "bf16"), RECIPES["mixed18"]
    found = estimate_training(config, on, Layout(data=8, zero_stage=2), recipe, batch=64, tokens=8_192)
    assert found.mfu and found.mfu > 0.4
    for asked in ((1e12, None, 2.5), (15e12, 0.4, None), (3e9, 0.25, 2.5), (1e12, 1.0, 1), (1e12, 0, 1), (0, 0.4, 1)):
        tokens, mfu, price = asked
        try:
            time_s, cost = training_run(found, tokens, mfu=mfu, price_per_hour=price)
            expected = {"time_s": pytest.approx(time_s), "cost": None if cost is None else pytest.approx(cost)}
        except InputError as error:
            expected = str(error)
        got = page.evaluate(
            """([found, tokens, mfu, price]) => {
              try { return trainingRun(found, tokens, mfu, price); } catch (refusal) { return refusal.message; }
            }""",
            [found.as_dict(), *asked],
        )
        assert got == expected, asked
    # By hand: 6 FLOPs a parameter and token and those of attention, at 40 % of eight peaks.
    flops_a_token = found.flops["model"] / (64 * 8_192)
    by_hand_s = 1e12 * flops_a_token / (0.4 * 8 * on.peak_flops_per_s)
    assert training_run(found, 1e12, mfu=0.4, price_per_hour=2) == (
        pytest.approx(by_hand_s),
        pytest.approx(by_hand_s / 3600 * 8 * 2),
    )
