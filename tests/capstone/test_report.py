"""The report's page: every row, and waterfalls that add up."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from mlsys_lab.capstone import Stack
from mlsys_lab.capstone.gains import Gain
from mlsys_lab.capstone.job import Serving
from mlsys_lab.capstone.measurement import Comparison, compare
from mlsys_lab.capstone.report import Trained, render, waterfalls
from mlsys_lab.capstone.sheet import COSTS, predict
from mlsys_lab.configs import TrainConfig, TransformerConfig
from tests.capstone.calibrations import PEAK, plain_calibration

TRAIN = TrainConfig(batch_size=6, seq_len=11, steps=3, lr=1e-2)


@pytest.fixture
def rows(stack: Stack, config: TransformerConfig) -> list[Comparison]:
    """A sheet, all of whose counts are right except one, and whose seconds are twice the predicted."""
    sheet = predict(stack, config, TRAIN, 4, plain_calibration(config, TRAIN, 4), serving=Serving(9, 6))
    measured = {key: (2 if cost.kind == "seconds" else 1) * sheet[key] for key, cost in COSTS.items()}
    return compare(sheet, measured | {"parameters": 7})


def test_bars_lead_from_the_bound_to_the_measurement(
    stack: Stack, rows: list[Comparison], config: TransformerConfig
) -> None:
    by_key = {row.key: row for row in rows}
    training, decoding = waterfalls(stack, rows, plain_calibration(config, TRAIN, 4)).values()
    *bars, measured = training
    assert bars[0].end_s == pytest.approx(by_key["training_flops"].predicted / PEAK)
    assert [bar.start_s for bar in bars[1:]] == [bar.end_s for bar in bars[:-1]]
    assert bars[-1].end_s == measured.end_s == by_key["training_step_s"].measured
    assert bars[-2].end_s == by_key["training_step_s"].predicted
    assert bars[1].end_s == by_key["products_s"].predicted
    assert decoding[1].end_s == decoding[2].end_s == by_key["decode_s"].measured


def test_the_page_has_every_row_and_needs_no_other_file(
    rows: list[Comparison], stack: Stack, config: TransformerConfig
) -> None:
    gains = [Gain("communication_s", 2.0, 1.0, 2.5, 1.5)]
    page = render(stack, rows, plain_calibration(config, TRAIN, 4), Trained([3.0, 2.0, 1.0], 2.25), gains)
    tree = ElementTree.fromstring(page.replace("<!DOCTYPE html>", ""))
    layers, costs, swapped = (
        [[cell.text or "" for cell in row] for row in one.iter("tr")][1:] for one in tree.iter("table")
    )
    assert [row[0] for row in layers] == list(stack.sources)
    assert [row[0] for row in costs] == [row.cost.name for row in rows]
    assert [row[0] for row in costs if row[-1] == "differs"] == ["parameters"]
    assert swapped == [["communication of a training step", "2", "1", "2.5", "1.5", "s"]]
    figures = [one.text for one in tree.iter("dd")]
    assert figures[:2] == ["2.250", "17 of 18"]
    assert len(list(tree.iter("i"))) == 9
    points = [one.attrib["points"].split() for one in tree.iter("polyline")]
    assert [len(one) for one in points] == [3, 3] and points[0][0].endswith(",0.00")
    assert not re.search(r"https?:|src=", page)


def test_a_page_of_a_run_that_has_not_been_trained(
    rows: list[Comparison], stack: Stack, config: TransformerConfig
) -> None:
    page = render(stack, rows, plain_calibration(config, TRAIN, 4), Trained([], None))
    assert "<polyline" not in page and "bits per byte" not in page
