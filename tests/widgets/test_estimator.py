from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict

import pytest

from mlsys_lab.cli import main
from mlsys_lab.configs.presets import PRESETS
from mlsys_lab.errors import InputError
from mlsys_lab.flops.bounds import machine
from mlsys_lab.flops.estimate import estimate_training, training_run
from mlsys_lab.flops.layout import Layout
from mlsys_lab.flops.memory import BYTES, RECIPES
from mlsys_lab.hardware import device
from mlsys_lab.widgets import element, esm
from mlsys_lab.widgets.estimator import Estimator, device_machines, estimator_data, estimator_table, recipe_bytes
from tests.pages import read_letter_sizes

NAME = "mlsys-estimator"


def figure(model: str = "llama3-8b", **options) -> str:
    data = estimator_data(model, **options)
    return element("estimator", fallback=estimator_table(data), **data)._repr_html_()


def test_every_device_comes_with_its_limits_and_with_what_it_refuses() -> None:
    tpu = device_machines(device("TPU v4"))
    assert tpu["peaks"]["fp32"] == "TPU v4 has no fp32 peak: expected one of bf16, int8"
    h100 = device_machines(device("H100"))
    assert set(h100["peaks"]) == set(BYTES)
    on = machine(device("H100"), "bf16")
    chosen = {"peak_flops_per_s": h100["peaks"]["bf16"], "network_bytes_per_s": on.network_bytes_per_s}
    assert h100["machine"] | chosen == asdict(on)


def test_recipes_say_what_they_keep() -> None:
    assert recipe_bytes(RECIPES["mixed18"])["words"] == "2 + 4 + 4 + 8"
    assert recipe_bytes(RECIPES["fp32"])["words"] == "4 + 4 + 8"


def test_the_table_holds_every_preset() -> None:
    text = estimator_table(estimator_data(recipe_name="mixed16"))
    assert "<td>gpt2</td><td>124,439,808</td><td>124,439,808</td><td>1.99</td>" in text
    assert text.count("<tr>") == len(PRESETS) + 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: estimator_data("llama9"), "no such preset"),
        (lambda: estimator_data(mode="dreaming"), "unknown mode: got 'dreaming', expected training or serving"),
        (lambda: estimator_data(device_name="H1000"), "no such device"),
        (lambda: estimator_data(recipe_name="mixed"), "unknown precision recipe"),
        (lambda: estimator_data(cache_format="bf61"), "unknown format: got 'bf61'"),
    ],
)
def test_a_name_that_there_is_not_is_said_in_a_line(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_the_notebook_s_widget_carries_the_site_s_module_and_data() -> None:
    widget = Estimator.of("llama3-70b", device_name="H200", layout=Layout(data=2, tensor=8))
    assert widget._esm == esm("estimator")
    assert (widget.preset, widget.device, widget.degrees["tensor"], widget.batch) == ("llama3-70b", "H200", 8, 64)
    site = re.search(r'application/json">(.*?)</script>', figure())
    assert site and json.loads(site.group(1))["devices"] == widget.devices


def test_the_form_says_whether_it_fits_and_what_would(open_page) -> None:
    page = open_page(figure("llama3-8b", layout=Layout(data=8), recipe_name="mixed16", batch=8, tokens=2048))
    verdict, why = page.locator(f"{NAME} .verdict"), page.locator(f"{NAME} .detail").first
    found = estimate_training(
        PRESETS["llama3-8b"], machine(device("H100"), "bf16"), Layout(data=8), RECIPES["mixed16"], batch=8, tokens=2048
    )
    assert not found.fits
    assert verdict.inner_text() == (
        f"Does not fit: {found.memory.total / 1e9:.3g} GB of 85.9 GB on the fullest of 8 devices"
    )
    assert "It would fit with ZeRO stage 1, on 8 devices." in why.inner_text()
    page.get_by_label("ZeRO stage").select_option("1")
    assert verdict.inner_text().startswith("Fits: ") and "would" not in why.inner_text()


def test_the_keyboard_alone_changes_the_plan(open_page) -> None:
    page = open_page(figure())
    rank = page.get_by_label("data ranks")
    rank.focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Tab")
    assert page.locator(f"{NAME} .error").inner_text().startswith("the batch does not divide evenly: got 64 sequences")
    rank.focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("16")
    page.keyboard.press("Enter")
    assert "of 16 devices" in page.locator(f"{NAME} .verdict").inner_text()
    page.get_by_label("Task").focus()
    page.keyboard.press("ArrowDown")
    assert "Prefill" in page.locator(f"{NAME} h2").first.inner_text()


@pytest.mark.parametrize(
    ("mode", "name", "layout", "marks"),
    [
        ("training", "A100 80GB", Layout(data=4, tensor=2, pipeline=2, zero_stage=1, sequence_parallel=True), {}),
        ("training", "T4", Layout(data=2, recomputation="full", micro_batch=2), {"all_pairs": True, "node": 1}),
        ("serving", "H200", Layout(), {}),
        ("serving", "TPU v5e", Layout(tensor=8), {"network": 12.5, "price": None}),
    ],
)
def test_the_command_under_the_figures_prints_the_same(open_page, capsys, mode, name, layout, marks) -> None:
    data = estimator_data("llama2-7b", mode=mode, device_name=name, layout=layout, tokens=2048) | marks
    page = open_page(element("estimator", **data)._repr_html_())
    command = shlex.split(page.locator(f"{NAME} .command").inner_text())
    assert command[0] == "mlsys-lab" and main([*command[1:], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    memory, capacity = (f"{size / 1e9:.3g} GB" for size in (found["memory"]["total"], found["capacity_bytes"]))
    verdict = page.locator(f"{NAME} .verdict").inner_text()
    devices = f"{found['devices']} device" + "s" * (found["devices"] > 1)
    assert verdict.split(": ")[1] == f"{memory} of {capacity} on the fullest of {devices}"
    assert verdict.startswith("Fits") == found["fits"]
    why = page.locator(f"{NAME} .detail").first.inner_text()
    assert (f"with {found['fix']}." in why) == bool(found["fix"])
    for bound, shown in zip(found["bounds"].values(), page.locator(f"{NAME} h2").all_inner_texts(), strict=True):
        assert f"{bound['time_s'] * 1e3:.3g} ms" in shown or f"{bound['time_s']:.3g} s" in shown
    assert ("$" in page.locator(f"{NAME} .numbers").inner_text()) == (found["cost_per_million_tokens"] is not None)


def test_what_cannot_be_is_one_line_in_the_figure(open_page) -> None:
    page = open_page(figure())
    error, results = page.locator(f"{NAME} .error"), page.locator(f"{NAME} .results")
    for label, typed, message in (
        ("tensor ranks", "3", "query heads do not divide evenly: got 32 among 3 tensor-parallel ranks"),
        ("tensor ranks", "", "Layout.tensor out of range: got nothing, expected a whole number, at least 1"),
        ("tensor ranks", "1", ""),
        ("tokens of each", "0", "tokens of a sequence out of range: got 0, expected a whole number, at least 1"),
        ("tokens of each", "2048", ""),
        ("tokens of each", "1e300", "sizes too large to compute with: expected fewer than 10³⁰⁰ FLOPs and bytes"),
        ("tokens of each", "2048", ""),
        ("$ an hour", "-2", "a price cannot be so: got -2, expected 0 or more an hour and device"),
        ("$ an hour", "", ""),
        ("network", "0", "the network out of range: got 0 GB/s, expected more than 0"),
        ("network", "50", ""),
        ("devices a node", "0", "devices a node out of range: got 0, expected a whole number, at least 1"),
        ("devices a node", "8", ""),
    ):
        page.get_by_label(label).fill(typed)
        page.get_by_label(label).press("Tab")
        assert error.inner_text() == message
        assert results.is_visible() == (message == "")
    assert "$" not in page.locator(f"{NAME} .numbers").inner_text()
    page.get_by_label("precision recipe").select_option("fp32")
    page.get_by_role("combobox", name="Device").select_option("TPU v4")
    assert error.inner_text() == "TPU v4 has no fp32 peak: expected one of bf16, int8"


def test_a_run_over_all_its_tokens_has_its_days_and_its_cost(open_page) -> None:
    page = open_page(figure(layout=Layout(data=8, zero_stage=2), total_tokens=2e12))
    numbers = page.locator(f"{NAME} .numbers")
    found = estimate_training(
        PRESETS["llama3-8b"], machine(device("H100"), "bf16"), Layout(data=8, zero_stage=2), RECIPES["mixed18"],
        batch=64, tokens=8_192, price_per_hour=2.5,
    )  # fmt: skip
    days = 2e12 / found.tokens_per_s["step"] / 86_400
    assert f"2 T tokens, at least\n{days:.3g} days, ${days * 24 * 8 * 2.5 / 1e3:.3g} k" in numbers.inner_text()
    page.get_by_label("$ an hour").fill("")
    page.get_by_label("$ an hour").press("Tab")
    assert f"at least\n{days:.3g} days" in numbers.inner_text() and "$" not in numbers.inner_text()
    page.get_by_label("tokens in all").fill("")
    page.get_by_label("tokens in all").press("Tab")
    assert "days" not in numbers.inner_text()


def test_every_preset_opens_without_an_error(open_page) -> None:
    page = open_page(figure(mode="serving", layout=Layout(), tokens=8_192))
    for name, config in PRESETS.items():
        page.get_by_label("Model").select_option(name)
        assert page.locator(f"{NAME} .error").inner_text() == "", name
        longest = config.context if config.position == "learned" else 8_192
        tokens = page.get_by_label("tokens of each")
        assert int(tokens.input_value()) <= longest, name
        tokens.fill("8192")
        tokens.press("Tab")


def test_sizes_of_one_s_own_are_estimated(open_page) -> None:
    page = open_page(figure("gpt2", layout=Layout(), batch=1, tokens=1024))
    assert "124 M" in page.locator(f"{NAME} .numbers").inner_text()
    page.get_by_text("Sizes", exact=True).click()
    page.get_by_label("layers L").fill("24")
    page.get_by_label("layers L").press("Tab")
    assert page.get_by_label("Model").input_value() == ""
    assert "209 M" in page.locator(f"{NAME} .numbers").inner_text()


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("mode", ["training", "serving"])
def test_it_fits_the_screen_with_letters_of_a_readable_size(open_page, width: int, mode: str) -> None:
    page = open_page(figure("deepseek-v3", mode=mode, layout=Layout(data=64, expert=64)), width=width)
    page.get_by_text("Sizes", exact=True).click()
    sizes = read_letter_sizes(page, NAME)
    assert len(sizes) >= 5 and min(sizes) >= 11
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    outside = """(el) => [...el.shadowRoot.querySelectorAll("svg[role=img]")].flatMap((svg) => {
      const frame = svg.getBoundingClientRect();
      return [...svg.querySelectorAll("text, rect")].filter((node) => {
        const box = node.getBoundingClientRect();
        return box.left < frame.left - 1 || box.right > frame.right + 1;
      }).map((node) => node.textContent); })"""
    assert page.eval_on_selector(NAME, outside) == []


def test_the_address_holds_what_a_reader_sets_and_brings_it_back(open_page) -> None:
    page = open_page(figure(address=True, mfu=0.4))
    assert "#" not in page.url
    page.get_by_role("combobox", name="Device").select_option("H200")
    page.get_by_label("tensor ranks").fill("4")
    page.get_by_label("tensor ranks").press("Tab")
    page.get_by_label("MFU reached").fill("35")
    page.get_by_label("MFU reached").press("Tab")
    page.get_by_label("$ an hour").fill("")
    page.get_by_label("$ an hour").press("Tab")
    assert page.url.partition("#")[2] == "device=H200&mfu=0.35&price=&tensor=4"
    shown = page.locator(f"{NAME} .results").inner_text()
    page.reload()
    page.locator(f"{NAME} .verdict").wait_for()
    assert page.locator(f"{NAME} .results").inner_text() == shown
    assert page.get_by_label("tensor ranks").input_value() == "4"
    page.evaluate("location.hash = 'mode=serving&preset=llama3-70b&tensor=8&zero_stage=0&device=Abacus&data=1&odd=1'")
    page.get_by_text("Prefill of a prompt").wait_for()
    assert page.get_by_role("combobox", name="Device").input_value() == "H100"
    assert page.get_by_label("Model").input_value() == "llama3-70b"
    # Sizes of one's own travel too.
    page.get_by_text("Sizes", exact=True).click()
    page.get_by_label("layers L").fill("16")
    page.get_by_label("layers L").press("Tab")
    page.reload()
    page.locator(f"{NAME} .verdict").wait_for()
    assert page.get_by_label("layers L").input_value() == "16" and page.get_by_label("Model").input_value() == ""
    page.evaluate("location.hash = 'own=%7B%7D&batch=many'")
    page.wait_for_function("location.hash === ''")
    assert (
        page.get_by_label("Model").input_value() == "llama3-8b" and page.get_by_label("sequences").input_value() == "64"
    )


def test_a_figure_among_others_leaves_the_address_alone(open_page) -> None:
    page = open_page(figure())
    page.get_by_label("Task").select_option("serving")
    assert "#" not in page.url


def test_a_run_at_the_reader_s_own_mfu(open_page) -> None:
    layout = Layout(data=8, zero_stage=2)
    page = open_page(figure(layout=layout, total_tokens=1e12, mfu=0.4))
    found = estimate_training(
        PRESETS["llama3-8b"], machine(device("H100"), "bf16"), layout, RECIPES["mixed18"], batch=64, tokens=8_192
    )
    time_s, cost = training_run(found, 1e12, mfu=0.4, price_per_hour=2.5)
    numbers = page.locator(f"{NAME} .numbers")
    assert f"at an MFU of 40 %\n{time_s / 86_400:.3g} days, ${cost / 1e3:.3g} k" in numbers.inner_text()
    for label in ("devices a node", "network, GB/s"):
        page.get_by_label(label).fill("1")
        page.get_by_label(label).press("Tab")
    assert re.search(r"MFU of 40 %\nout of reach: at most [1-9][\d.]* %", numbers.inner_text())
    page.get_by_label("MFU reached").fill("0")
    page.get_by_label("MFU reached").press("Tab")
    assert page.locator(f"{NAME} .error").inner_text().startswith("the MFU cannot be so: got 0 %, expected more than 0")
    page.get_by_label("MFU reached").fill("")
    page.get_by_label("MFU reached").press("Tab")
    assert "at least" in numbers.inner_text() and "MFU of" not in numbers.inner_text()


def test_a_button_takes_the_nearest_layout_that_fits(open_page) -> None:
    page = open_page(figure("llama3-70b", layout=Layout(data=8), batch=64, tokens=8_192))
    verdict, why = page.locator(f"{NAME} .verdict"), page.locator(f"{NAME} .detail").first
    assert verdict.inner_text().startswith("Does not fit") and "It would fit with " in why.inner_text()
    assert why.inner_text().count(", ") >= 3, "more than one change"
    page.get_by_role("button", name="Take that layout").press("Enter")
    assert verdict.inner_text().startswith("Fits: ")
    assert page.get_by_role("button", name="Take that layout").is_hidden()
