from __future__ import annotations

import json
import re
from typing import Any

import pytest

from mlsys_lab.capstone import Stack, load_stack
from mlsys_lab.capstone.job import Calibration, Rates, Serving
from mlsys_lab.capstone.sheet import Sheet, predict
from mlsys_lab.configs import TrainConfig, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.stack.workspace import Workspace
from mlsys_lab.widgets import element, esm
from mlsys_lab.widgets.prediction_sheet import PredictionSheet, prediction_sheet_data, prediction_sheet_table
from tests.pages import assert_readable

NAME = "mlsys-prediction_sheet"
PEAK, RATES = 6e10, {"peak_fraction": 0.4, "unit_ns": 2.5, "latency_s": 1e-4, "bytes_per_s": 1e9}
TRAIN = TrainConfig(batch_size=16, seq_len=128, steps=1, lr=1e-3)


class AnyShape(Rates):
    """One rate for products of all shapes."""

    def __missing__(self, shape: object) -> float:
        return RATES["peak_fraction"] * PEAK


def model(n_layers: int = 4, d_model: int = 128) -> TransformerConfig:
    return TransformerConfig(
        "m", n_layers, d_model, d_model // 32, d_ff=11 * d_model // 4, vocab_size=1024, context=512, tied=True
    )


def data(config: TransformerConfig, seq_len: int = 128, ranks: int = 4) -> dict[str, Any]:
    train = TrainConfig(TRAIN.batch_size, seq_len, 1, 1e-3)
    return prediction_sheet_data(config, train, ranks, peak_flops_per_s=PEAK, **RATES)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    return load_stack(Workspace.create(tmp_path_factory.mktemp("empty")))


def predicted(stack: Stack, config: TransformerConfig, seq_len: int = 128, ranks: int = 4) -> Sheet:
    calibration = Calibration(AnyShape(), 1e-9 * RATES["unit_ns"], RATES["latency_s"], RATES["bytes_per_s"], PEAK, 5e9)
    train = TrainConfig(TRAIN.batch_size, seq_len, 1, 1e-3)
    return predict(stack, config, train, ranks, calibration, serving=Serving(8, 2))


def figure(stack: Stack) -> str:
    fallback = prediction_sheet_table(predicted(stack, model()).numbers)
    return element("prediction_sheet", fallback=fallback, **data(model()))._repr_html_()


def test_the_figure_predicts_what_lab_16_predicts(stack: Stack, open_module) -> None:
    cases = [((4, 128), 128, 4), ((1, 64), 32, 1), ((3, 96), 96, 5), ((12, 512), 512, 16)]
    page = open_module("prediction_sheet", "sheet")
    got = page.evaluate("(cases) => cases.map(sheet)", [data(model(*one), seq_len, p) for one, seq_len, p in cases])
    for shown, (one, seq_len, p) in zip(got, cases, strict=True):
        expected = predicted(stack, model(*one), seq_len, p)
        keys = shown.keys() - {"bound_s", "elementwise_s", "cache_token_bytes"}
        assert len(keys) == 12
        for key in keys - {"master_bytes", "optimizer_bytes"}:
            assert shown[key] == pytest.approx(expected[key], rel=1e-12), key
        for key in ("master_bytes", "optimizer_bytes"):  # rank 0's shard has at most one element more than the mean
            assert 0 <= expected[key] - shown[key] <= 8, key
        written = expected["decode_cache_written_bytes"]  # one decode step
        assert shown["cache_token_bytes"] == written
        assert shown["bound_s"] == pytest.approx(expected["training_flops"] / PEAK, rel=1e-12)


def test_the_table_has_the_sheet_s_numbers(stack: Stack) -> None:
    numbers = predicted(stack, model()).numbers
    flops = f"{numbers['training_flops'] / 1e9:,.3g} GFLOP"
    assert f"<tr><td>FLOPs of a training step</td><td>{flops}</td></tr>" in prediction_sheet_table(numbers)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"config": model(13)}, "not in the figure: n_layers: got 13, expected 1 to 12 in steps of 1"),
        ({"config": model(), "ranks": 17}, "not in the figure: ranks: got 17"),
        ({"config": TransformerConfig("m", 1, 64, 4, d_ff=176, vocab_size=8, context=64)}, "the capstone's shape"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_line(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        data(**options)


def test_the_notebook_s_widget_carries_the_site_s_module_and_data(stack: Stack) -> None:
    widget = PredictionSheet.of(model(), TRAIN, 4, peak_flops_per_s=PEAK, **RATES)
    assert widget._esm == esm("prediction_sheet")
    site = re.search(r'application/json">(.*?)</script>', figure(stack))
    shown = json.loads(site.group(1)) if site else {}
    assert shown and shown == {name: getattr(widget, name) for name in shown}


def test_the_verdict_follows_the_keyboard(stack: Stack, open_page) -> None:
    page = open_page(figure(stack))
    verdict = page.locator(f"{NAME} .verdict")
    before = verdict.inner_text()
    page.get_by_role("slider", name="Elementwise work").focus()
    page.keyboard.press("Home")
    assert verdict.inner_text() != before
    page.get_by_role("slider", name="Ranks").focus()
    page.keyboard.press("Home")
    page.get_by_role("slider", name="Products, fraction of peak").focus()
    page.keyboard.press("End")
    assert verdict.inner_text().endswith("a step, 1 times the bound")


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen_with_letters_of_a_readable_size(stack: Stack, open_page, width: int) -> None:
    page = open_page(figure(stack), width=width)
    assert_readable(page, NAME, width, texts=9)
