from __future__ import annotations

import json
import math
import random
import re
from dataclasses import asdict

import pytest

from mlsys_lab.configs.presets import PRESETS, WINDOWS
from mlsys_lab.errors import InputError
from mlsys_lab.flops.compute import attention_crossover, attention_share, forward
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.widgets import element, esm
from mlsys_lab.widgets.attention_share import AttentionShare, attention_share_data, attention_share_table
from tests.pages import assert_readable
from tests.widgets.transformers import random_config, try_config

NAME = "mlsys-attention_share"
LONG = ((4096, False), (131_072, True))


def figure(model: str = "llama3-8b", **state) -> str:
    data = attention_share_data(model) | state
    return element("attention_share", fallback=attention_share_table(data), **data)._repr_html_()


def test_the_table_holds_every_preset() -> None:
    text = attention_share_table(attention_share_data())
    for name, config in PRESETS.items():
        assert f"<td>{name}</td><td>{100 * attention_share(config, 2048, window=WINDOWS.get(name)):.3g} %</td>" in text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: attention_share_data("lama2-7b"), "no such preset: got 'lama2-7b'"),
        (
            lambda: attention_share_data(tokens=100),
            "length out of range: got 100 tokens, expected 128 to 4194304",
        ),
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_line(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_the_notebook_s_widget_carries_the_site_s_module_and_data() -> None:
    widget = AttentionShare.of("gpt3-175b", tokens=2048)
    assert widget._esm == esm("attention_share")
    assert (widget.preset, widget.tokens) == ("gpt3-175b", 2048)
    assert widget.own == asdict(PRESETS["gpt3-175b"]) | {"window": None}
    own = AttentionShare.of(PRESETS["gpt2"])
    assert (own.preset, own.own["name"]) == ("", "gpt2")
    site = re.search(r'application/json">(.*?)</script>', figure())
    assert site and json.loads(site.group(1))["presets"] == widget.presets


def test_the_figure_and_python_count_alike_and_refuse_alike(open_module) -> None:
    rng = random.Random(21)
    cases = [(random_config(rng), int(2 ** rng.uniform(0, 22)), rng.random() < 0.5) for _ in range(600)]
    cases += [(dict(one), tokens, causal) for one in attention_share_data()["presets"] for tokens, causal in LONG]
    page = open_module("attention_share", "completed", "parameters", "forwardFlops", "attentionCrossover")
    got = page.evaluate(
        """(cases) => cases.map(([given, tokens, causal]) => {
          try {
            const config = completed(given);
            const { total, ...count } = parameters(config);
            const flops = forwardFlops(config, tokens, { causal });
            const half = attentionCrossover(config, causal);
            return [count, [total, flops.total, flops.head, flops.attentionShare, half === Infinity ? null : half]];
          } catch (refusal) { return refusal.message; }
        })""",
        cases,
    )
    refused = 0
    for (given, tokens, causal), result in zip(cases, got, strict=True):
        window = given.pop("window", None) and WINDOWS[given["name"]]
        config = try_config(given)
        if isinstance(config, str):
            assert result == config
            refused += 1
            continue
        count, flops = parameters(config), forward(config, tokens, causal=causal, window=window)
        assert result[0] == asdict(count) | {"active": count.active}
        share = attention_share(config, tokens, causal=causal, window=window)
        crossover = attention_crossover(config, causal=causal, window=window)
        *counted, half = result[1]
        assert counted == pytest.approx([count.total, flops.total, flops.head, share], rel=1e-12)
        assert (math.inf if half is None else half) == pytest.approx(crossover, rel=1e-12)
    assert 50 < refused < 300


def test_the_verdict_follows_the_keyboard(open_page) -> None:
    page = open_page(figure("llama3-8b", tokens=8192))
    config, verdict = PRESETS["llama3-8b"], page.locator(f"{NAME} .verdict")
    assert verdict.inner_text() == f"{100 * attention_share(config, 8192):.3g} % of the FLOPs at 8,192 tokens"
    page.get_by_label("Tokens of a sequence").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    assert verdict.inner_text() == f"{100 * attention_share(config, 16384):.3g} % of the FLOPs at 16,384 tokens"
    assert f"Half at {attention_crossover(config):,.0f} tokens" in page.locator(f"{NAME} .detail").inner_text()


def test_one_half_is_marked_where_the_curve_crosses_it_and_a_mask_moves_it(open_page) -> None:
    page = open_page(figure())
    curve_at_half = """(el) => { const svg = el.shadowRoot.querySelector("svg[role=img]");
      const [path, half] = [svg.querySelector("path.edge"), svg.querySelector("circle.half")];
      const [x, y] = ["cx", "cy"].map((name) => Number(half.getAttribute(name)));
      let best = Infinity;
      for (let i = 0; i <= 4000; i++) {
        const p = path.getPointAtLength(path.getTotalLength() * i / 4000);
        best = Math.min(best, Math.hypot(p.x - x, p.y - y));
      }
      return [best, x]; }"""
    distance, all_pairs = page.eval_on_selector(NAME, curve_at_half)
    assert distance < 1
    page.get_by_label("causal mask").check()
    distance, half_of_pairs = page.eval_on_selector(NAME, curve_at_half)
    assert distance < 1 and half_of_pairs > all_pairs + 10


def test_dragging_across_the_picture_sets_the_length(open_page) -> None:
    page = open_page(figure())
    box = page.locator(f"{NAME} svg[role=img]").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 100, steps=3)
    page.mouse.up()
    assert float(page.locator(f"{NAME} circle.dot").get_attribute("cx")) == pytest.approx(box["width"] * 0.7, abs=1)


def test_sizes_of_one_s_own_and_what_cannot_be(open_page) -> None:
    page = open_page(figure("llama2-7b"))
    page.get_by_text("Sizes", exact=True).click()
    heads = page.get_by_label("query heads N")
    heads.fill("64")
    heads.press("Tab")
    # One key for each query head stays so.
    assert page.get_by_label("key/value heads K").input_value() == "64"
    assert page.get_by_label("Model").input_value() == ""
    groups = page.get_by_label("key/value heads K")
    groups.fill("5")
    groups.press("Tab")
    error = page.locator(f"{NAME} .error")
    assert error.inner_text() == "query heads must divide among key/value heads: got 64 query and 5 key/value heads"
    assert not page.locator(f"{NAME} svg[role=img]").is_visible()
    page.get_by_label("Model").select_option("deepseek-v3")
    assert error.inner_text() == "" and page.get_by_label("experts used").is_visible()
    assert not page.get_by_label("key/value heads K").is_visible()


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen_with_letters_of_a_readable_size(open_page, width: int) -> None:
    page = open_page(figure("deepseek-v3"), width=width)
    page.get_by_text("Sizes", exact=True).click()
    assert_readable(page, NAME, width, texts=9)
