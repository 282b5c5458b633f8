"""The report's page: every row, and waterfalls that add up."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from mlsys_lab.capstone import Stack
from mlsys_lab.capstone.measurement import Comparison, compare
from mlsys_lab.capstone.report import render, waterfalls
from mlsys_lab.capstone.sheet import Serving, predict
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.parallel.train.trainer import TrainConfig
from tests.capstone.calibrations import PEAK, plain_calibration

TRAIN = TrainConfig(batch_size=6, seq_len=11, steps=3, lr=1e-2)


@pytest.fixture
def rows(stack: Stack, config: TransformerConfig) -> list[Comparison]:
    """A sheet, all of whose counts are right except one, and whose seconds are twice the predicted."""
    sheet = predict(stack, config, TRAIN, 4, plain_calibration(config, TRAIN, 4), serving=Serving(9, 6))
    measured = {row.name: (2 if row.kind == "seconds" else 1) * row.predicted for row in sheet.rows}
    return compare(sheet, measured | {"parameters": 7})


def test_bars_lead_from_the_bound_to_the_measurement(rows: list[Comparison], config: TransformerConfig) -> None:
    by_name = {row.name: row for row in rows}
    training, decoding = waterfalls(rows, plain_calibration(config, TRAIN, 4)).values()
    *bars, measured = training
    assert bars[0].end_s == pytest.approx(by_name["FLOPs of a training step"].predicted / PEAK)
    assert [bar.start_s for bar in bars[1:]] == [bar.end_s for bar in bars[:-1]]
    assert bars[-1].end_s == measured.end_s == by_name["training step"].measured
    assert bars[-2].end_s == by_name["training step"].predicted
    assert bars[1].end_s == by_name["products of a training step"].predicted
    assert decoding[1].end_s == decoding[2].end_s == by_name["decode steps, at least"].measured


def test_the_page_has_every_row_and_needs_no_other_file(
    rows: list[Comparison], stack: Stack, config: TransformerConfig
) -> None:
    page = render(f"{stack.report()}\n<yours>", rows, plain_calibration(config, TRAIN, 4))
    tree = ElementTree.fromstring(page.replace("<!DOCTYPE html>", "").replace('<meta charset="utf-8">', ""))
    cells = [[cell.text or "" for cell in row] for row in tree.iter("tr")][1:]
    assert [row[0] for row in cells] == [row.name for row in rows]
    assert [row[0] for row in cells if row[-1] == "differs"] == ["parameters"]
    assert "17 of 18 counts are equal" in page
    assert len(list(tree.iter("rect"))) == 9
    assert not re.search(r"https?:|src=|<yours>", page)
