"""Figures that chapter 15 repeats of records: each is that of its record, rounded."""

import ast
import json
import re
from pathlib import Path
from statistics import mean

import pytest

from mlsys_lab.benchmark import load

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "book" / "chapters" / "15-efficient-models.md").read_text("utf-8")
RECORDS = ROOT / "book" / "data" / "measurements"


def quoted(name):
    """A dictionary of the page's code."""
    (assigned,) = re.findall(rf"^{name} = (\{{[^\n]*\}}|\{{\n.*?\n\}})$", PAGE, re.DOTALL | re.MULTILINE)
    return ast.literal_eval(assigned)


def rise(losses):
    """Mean, smallest and largest of losses in nats, in thousandths."""
    return tuple(1000 * value for value in (mean(losses), min(losses), max(losses)))


def test_rises_by_rounding_activations_and_weights():
    recorded = load(RECORDS / "quantization-losses.json").parameters
    for name, values in quoted("OUTLIER_RISES").items():
        assert values == pytest.approx(rise(recorded[name]["loss"]), abs=0.006), name
    for name, (bits, *values) in quoted("WEIGHT_RISES").items():
        assert bits == pytest.approx(recorded[name]["bits_per_weight"], abs=1e-3), name
        assert values == pytest.approx(rise(recorded[name]["loss"]), abs=0.006), name


def test_rises_by_pruning():
    recorded = load(RECORDS / "pruning-losses.json").parameters["losses"]
    for name, values in quoted("PRUNING_RISES").items():
        assert values == pytest.approx(rise(recorded[name]), abs=0.06), name


def test_losses_of_training_in_fp8():
    for name, (ratios, lost) in quoted("FP8_LOSSES").items():
        recorded = load(RECORDS / f"training-{name}.json").parameters
        assert ratios == pytest.approx(recorded["loss_over_bf16"], abs=1e-5)
        assert lost == pytest.approx(mean(recorded["gradient_underflow"]), abs=1e-5)


def test_what_training_with_rounded_weights_leaves():
    path = ROOT / "tests" / "bench" / "speed" / "speed-quantized-training.json"
    recorded = json.loads(path.read_text("utf-8"))["parameters"]
    assert quoted("QAT_LEFT") == {name: recorded[name]["measured"] for name in ("int3", "int2")}


def test_how_much_faster_a_cpu_decodes_from_four_bits():
    path = ROOT / "tests" / "bench" / "speed" / "speed-quantized-matmul.json"
    recorded = json.loads(path.read_text("utf-8"))["parameters"]["decoding 100 M parameters: fp32 over int4 blocks"]
    assert f"CPU_INT4 = {recorded['measured']:.2f}" in PAGE


def test_figures_of_the_microcontroller():
    recorded = load(RECORDS / "embedded-digits.json").parameters
    for name, value in quoted("BOARD").items():
        assert value == pytest.approx(recorded[name][0], rel=1e-3), name


def test_what_distillation_closes_and_a_draft_gains():
    for name, closed in quoted("GAP_CLOSED").items():
        assert closed == pytest.approx(load(RECORDS / f"distillation-{name}.json").samples, abs=1e-4), name
    path = ROOT / "tests" / "bench" / "speed" / "speed-distilled-draft.json"
    recorded = [one["measured"] for one in json.loads(path.read_text("utf-8"))["parameters"].values()]
    assert [*quoted("DRAFT").values()] == pytest.approx([recorded[0], recorded[-1]], abs=0.01)
