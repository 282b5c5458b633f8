from __future__ import annotations

import json
import random
import re
from dataclasses import asdict, replace

import pytest

from mlsys_lab.configs.presets import preset
from mlsys_lab.errors import InputError
from mlsys_lab.flops import cache
from mlsys_lab.flops.bounds import machine
from mlsys_lab.flops.compute import forward
from mlsys_lab.flops.estimate import estimate_serving
from mlsys_lab.flops.layout import Layout
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.hardware import device
from mlsys_lab.widgets import element, esm
from mlsys_lab.widgets.decode_step import GPUS, MODELS, DecodeStep, decode_step, decode_step_data, decode_step_table
from tests.pages import assert_readable

NAME = "mlsys-decode_step"


def figure(model: str = "llama3-8b", **options) -> str:
    data = decode_step_data(model, **options)
    return element("decode_step", fallback=decode_step_table(data), **data)._repr_html_()


def random_case(rng: random.Random) -> tuple[str, str, dict[str, float]]:
    name = rng.choice(MODELS)
    heads = preset(name).n_heads
    sizes = {
        "kv_heads": rng.choice([one for one in range(1, heads + 1) if heads % one == 0]),
        "batch": round(2 ** rng.uniform(0, 10)),
        "context": round(2 ** rng.uniform(7, 17)),
        "weight_bytes": rng.choice([2, 1, 0.5]),
        "cache_bytes": rng.choice([2, 1]),
    }
    return name, rng.choice(GPUS), sizes


def test_the_figure_and_python_bound_a_step_alike(open_module) -> None:
    rng = random.Random(12)
    cases = [random_case(rng) for _ in range(300)]
    page = open_module("decode_step", "decodeStep")
    got = page.evaluate(
        """(cases) => cases.map(([config, layout, machine, { weight_bytes, cache_bytes, ...sizes }]) =>
          decodeStep(config, layout, machine, { ...sizes, weightBytes: weight_bytes, cacheBytes: cache_bytes }))""",
        [
            [
                asdict(preset(name)) | {"n_kv_heads": sizes["kv_heads"]},
                asdict(Layout()),
                asdict(machine(device(gpu), "bf16")),
                sizes,
            ]
            for name, gpu, sizes in cases
        ],
    )
    bound_by = set()
    for (name, gpu, sizes), shown in zip(cases, got, strict=True):
        config, on = replace(preset(name), n_kv_heads=sizes["kv_heads"]), machine(device(gpu), "bf16")
        batch, context = sizes["batch"], sizes["context"]
        widths = {key: sizes[key] for key in ("weight_bytes", "cache_bytes")}
        estimate = estimate_serving(config, on, Layout(), batch=batch, tokens=context, **widths)
        bound = estimate.bounds["decode"]
        assert [shown["time_s"], shown["binds"]] == [pytest.approx(bound.time_s, rel=1e-12), bound.binds]
        bound_by.add(bound.binds)
        held = [parameters(config).total * sizes["weight_bytes"], estimate.memory.cache]
        assert [shown["weights"], shown["cached"]] == pytest.approx(held, rel=1e-12)
        one = cache.kv_cache_bytes(config, context, element_bytes=sizes["cache_bytes"])
        assert shown["fitting"] == max(0, int((on.memory_bytes - held[0]) // one))
        attention = forward(config, 1, batch, past=context - 1).attention
        assert shown["attentionIntensity"] == pytest.approx(attention / held[1], rel=1e-12)
        assert shown["attentionIntensity"] == pytest.approx(
            2 * config.n_heads / sizes["kv_heads"] / sizes["cache_bytes"], rel=1e-12
        )
    assert bound_by == {"memory", "compute"}


def test_the_table_says_what_the_package_says() -> None:
    data = decode_step_data("llama2-7b", gpu="A100 80GB", context=1024)
    on = machine(device("A100 80GB"), "bf16")
    estimate = estimate_serving(preset("llama2-7b"), on, Layout(), batch=8, tokens=1024)
    time_s = estimate.bounds["decode"].time_s
    assert decode_step(data, 8) == estimate
    assert f"<td>8</td><td>{1e3 * time_s:.3g}</td><td>{8 / time_s:,.0f}</td><td>memory</td>" in decode_step_table(data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "llama3-9b"}, "not in the figure: got llama3-9b, expected llama2-7b"),
        ({"gpu": "H1000"}, "not in the figure: got H1000"),
        ({"batch": 2000}, "got 2000 sequences of 2048 tokens, expected 1 to 1024"),
        ({"context": 64}, "got 1 sequences of 64 tokens"),
        ({"kv_heads": 5}, "query heads must divide"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_line(options, message: str) -> None:
    with pytest.raises(InputError, match=message):
        decode_step_data(**options)


def test_the_notebook_s_widget_carries_the_site_s_module_and_data() -> None:
    widget = DecodeStep.of("qwen2.5-32b", batch=16, kv_heads=1)
    assert widget._esm == esm("decode_step")
    assert (widget.preset, widget.batch, widget.kv_heads, widget.degrees) == ("qwen2.5-32b", 16, 1, asdict(Layout()))
    site = re.search(r'application/json">(.*?)</script>', figure())
    assert site and json.loads(site.group(1))["presets"] == json.loads(json.dumps(widget.presets))


def rates(batch: int, **options) -> str:
    time_s = decode_step(decode_step_data(**options), batch).bounds["decode"].time_s
    return f"{1 / time_s:,.0f} tokens/s per sequence, {batch / time_s:,.0f} in total"


def test_the_verdict_follows_the_keyboard_and_the_menus(open_page) -> None:
    page = open_page(figure(batch=1, context=2048))
    verdict = page.locator(f"{NAME} .verdict")
    assert verdict.inner_text().endswith(rates(1)) and verdict.get_attribute("data-bound") == "memory"
    page.get_by_role("slider", name="Sequences").focus()
    for _ in range(7):
        page.keyboard.press("ArrowRight")
    assert verdict.inner_text().endswith(rates(16))
    page.get_by_role("combobox", name="KV heads").select_option("32")
    assert verdict.inner_text().endswith(rates(16, kv_heads=32))
    page.get_by_role("combobox", name="Weights").select_option("0.5")
    page.get_by_role("combobox", name="GPU").select_option("L4")
    assert verdict.inner_text().endswith(rates(16, kv_heads=32, weight_bytes=0.5, gpu="L4"))
    page.get_by_role("combobox", name="Model").select_option("llama2-13b")
    assert page.get_by_role("combobox", name="KV heads").input_value() == "40"
    room = device("L4").memory_bytes - parameters(preset("llama2-13b")).total / 2
    fitting = int(room // cache.kv_cache_bytes(preset("llama2-13b"), 2048))
    assert (
        fitting < 16
        and f"Does not fit: {fitting} such sequences would." in page.locator(f"{NAME} .detail").inner_text()
    )


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen_with_letters_of_a_readable_size(open_page, width: int) -> None:
    page = open_page(figure(batch=64), width=width)
    assert_readable(page, NAME, width, texts=9)
