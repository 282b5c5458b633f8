"""Figures that chapter 18 repeats of a record: each is that of the record, rounded."""

import ast
import re
from pathlib import Path

import pytest

from book.measure_stack import MODEL, RANKS, SERVING, TRAIN
from mlsys_lab.benchmark import load
from mlsys_lab.capstone.job import Serving
from mlsys_lab.configs import TrainConfig, TransformerConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "book" / "chapters" / "18-your-own-stack.md").read_text("utf-8")
RECORD = load(ROOT / "book" / "data" / "measurements" / "capstone-step.json")


def assigned(name):
    """Source of what the page's code assigns to a name."""
    (source,) = re.findall(rf"^{name} = (\w*[{{(].*?[}})])$", PAGE, re.DOTALL | re.MULTILINE)
    return source


def test_the_step_and_its_calibration_are_those_of_the_record():
    page, recorded = ast.literal_eval(assigned("RECORD")), RECORD.parameters
    assert page["step_s"] == pytest.approx(RECORD.p50, rel=1e-3)
    assert page["fastest_s"] == pytest.approx(min(RECORD.samples), rel=1e-3)
    assert page["slowest_s"] == pytest.approx(max(RECORD.samples), rel=1e-3)
    assert page["bound_s"] == pytest.approx(RECORD.bound.value, rel=1e-3)
    for part in ("predicted", "measured", "calibration"):
        assert page[part] == pytest.approx({name: recorded[part][name] for name in page[part]}, rel=1e-3), part
    assert page["calibration"].keys() == recorded["calibration"].keys()


def test_the_record_is_of_the_page_s_configuration():
    known = {"TransformerConfig": TransformerConfig, "TrainConfig": TrainConfig, "Serving": Serving}
    shown = [eval(assigned(name), known) for name in ("config", "training", "serving")]
    assert [*shown, int(re.findall(r"^ranks = (\d+)$", PAGE, re.MULTILINE)[0])] == [MODEL, TRAIN, SERVING, RANKS]
