from __future__ import annotations

import json

import micrograd.engine as micrograd
import pytest

from mlsys_lab.widgets import BackwardGraph, Roofline, esm
from mlsys_lab.widgets.all_reduce import AllReduce
from mlsys_lab.widgets.attention_share import AttentionShare
from mlsys_lab.widgets.estimator import Estimator
from mlsys_lab.widgets.isoflop import IsoFlop
from mlsys_lab.widgets.planner import Planner

DEVICES = [{"name": "Big", "bandwidth": 2e12, "peaks": {"bf16": 800e12}}]

# What anywidget hands to a module: a Backbone model, of which figures use get, set, save_changes, on and off.
HOST = """
import figure from "/_static/widgets/%s.js";
const state = %s;
const heard = {};
globalThis.saved = [];
const model = {
  get: (name) => state[name],
  set: (name, value) => { state[name] = value; for (const then of heard[`change:${name}`] ?? []) then(); },
  save_changes: () => saved.push(structuredClone(state)),
  on: (event, then) => (heard[event] ??= new Set()).add(then),
  off: (event, then) => heard[event].delete(then),
};
globalThis.model = model;
globalThis.listening = () => Object.values(heard).reduce((sum, set) => sum + set.size, 0);
globalThis.cleanup = figure.render({ model, el: document.querySelector("#cell") });
"""


def state(widget) -> dict:
    return {name: value for name, value in widget.get_state().items() if not name.startswith("_")}


def open_cell(open_page, name: str, widget):
    script = HOST % (name, json.dumps(state(widget), default=str))
    return open_page('<div id="cell"></div>', script=f'<script type="module">{script}</script>')


def test_widgets_carry_the_site_s_modules() -> None:
    assert Roofline(devices=DEVICES)._esm == esm("roofline")
    assert BackwardGraph.from_value(micrograd.Value(1.0) + 2.0)._esm == esm("backward")


def test_a_graph_is_taken_from_a_value_with_its_names() -> None:
    x = micrograd.Value(2.0)
    widget = BackwardGraph.from_value(x * x, x=x)
    assert [node["label"] for node in widget.graph] == ["x", ""]


def test_a_step_in_the_figure_reaches_the_kernel_and_back(open_page) -> None:
    x = micrograd.Value(2.0)
    page = open_cell(open_page, "backward", BackwardGraph.from_value(x * x, x=x))
    page.get_by_role("button", name="Next step").click()
    assert page.evaluate("saved.at(-1).step") == 1
    page.evaluate("model.set('step', 3)")
    assert page.locator("#cell .figure").get_attribute("data-phase") == "backward"
    page.evaluate("cleanup()")
    assert page.evaluate("listening()") == 0


def test_a_slider_reaches_the_kernel_and_back(open_page) -> None:
    page = open_cell(open_page, "roofline", Roofline(devices=DEVICES, m=512))
    page.get_by_label("rows m").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("saved.at(-1).m") == 768
    page.evaluate("model.set('m', 16384)")
    assert page.locator("#cell .verdict").inner_text() == "compute-bound: 100 % of peak"
    page.evaluate("cleanup()")
    assert page.evaluate("listening()") == 0


@pytest.mark.parametrize(
    ("name", "widget", "label", "key", "state", "saved", "back"),
    [
        ("attention_share", AttentionShare.of("gpt2"), "Tokens of a sequence", "Home", "tokens", 128, 4096),
        ("all_reduce", AllReduce.of("PCIe tree"), "Array size in bytes", "End", "size_bytes", 2**33, 2**10),
        ("isoflop", IsoFlop.of("Kaplan"), "Budget", "End", "budget", 1e26, 1e18),
        ("estimator", Estimator.of("gpt2", tokens=1024), "tokens of each", "ArrowDown", "tokens", 1023, 512),
        ("planner", Planner.of("gpt2", devices=4, batch=8, tokens=1024), "sequences", "ArrowUp", "batch", 9, 16),
    ],
)
def test_a_field_reaches_the_kernel_and_back(open_page, name, widget, label, key, state, saved, back) -> None:
    page = open_cell(open_page, name, widget)
    page.get_by_label(label).focus()
    page.keyboard.press(key)
    page.keyboard.press("Tab")
    assert page.evaluate(f"saved.at(-1).{state}") == saved
    setattr(widget, state, saved)  # the trait takes what the figure saves
    before = page.locator("#cell .figure").inner_text()
    page.evaluate(f"model.set('{state}', {back})")
    assert page.locator("#cell .figure").inner_text() != before
    page.evaluate("cleanup()")
    assert page.evaluate("listening()") == 0
