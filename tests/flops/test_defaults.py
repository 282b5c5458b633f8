"""Chapter, command line and site start from one set of values."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import mlsys_lab
from mlsys_lab.cli import estimate, plan, plan_serving, simulate_serving
from mlsys_lab.flops import defaults
from mlsys_lab.inference.simulator.planner import Service
from mlsys_lab.widgets.estimator import estimator_data
from mlsys_lab.widgets.planner import planner_data

CHAPTERS = Path(__file__).parents[2] / "book" / "chapters"


def defaults_of(command) -> dict[str, object]:
    return {field.name: field.default for field in fields(command.Arguments)}


def test_training() -> None:
    asked = defaults_of(plan)
    for data in (planner_data(), estimator_data()):
        assert (data["device"], data["recipe"], data["tokens"]) == ("H100", defaults.RECIPE, defaults.SEQUENCE_TOKENS)
        assert data["network"] == asked["network"]
    assert asked["recipe"] == defaults_of(estimate)["recipe"] == defaults.RECIPE
    assert planner_data()["reserve"] == asked["reserve"] == 0
    assert "RECIPES[RECIPE]" in (CHAPTERS / "11-model-parallel.md").read_text("utf-8")


def test_serving() -> None:
    for command in (plan_serving, simulate_serving):
        asked = defaults_of(command)
        assert (asked["prompt"], asked["answer"]) == (defaults.PROMPT, defaults.ANSWER)
        assert (asked["slo_ttft"], asked["slo_tpot"]) == (defaults.TTFT_S, defaults.TPOT_S)
        assert (asked["sequences"], asked["step_tokens"]) == (defaults.SEQUENCES, defaults.STEP_TOKENS)
        assert asked["efficiency"] == Service.efficiency == defaults.SERVING_EFFICIENCY
    chapter = (CHAPTERS / "13-serving.md").read_text("utf-8")
    names = set(re.findall(r"^from mlsys_lab\.flops\.defaults import (.*)$", chapter, re.MULTILINE))
    taken = {name.split(" as ")[0].strip() for line in names for name in line.split(",")}
    assert taken == {
        "ANSWER", "PROMPT", "SERVING_MEMORY", "SEQUENCES", "SERVING_EFFICIENCY", "STEP_TOKENS", "TPOT_S", "TTFT_S",
    }  # fmt: skip


def test_the_figures_expect_as_much() -> None:
    source = (Path(mlsys_lab.__file__).parent / "widgets" / "estimate.js").read_text("utf-8")
    for name in ("TRAINING_EFFICIENCY", "SERVING_EFFICIENCY"):
        assert f"const {name} = {getattr(defaults, name)};" in source
