from __future__ import annotations

import json
import random
import re
from dataclasses import asdict

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.hardware import DEVICES, device
from mlsys_lab.kernels.trace.occupancy import occupancy
from mlsys_lab.widgets import element, esm
from mlsys_lab.widgets.occupancy import OccupancyCalculator, multiprocessor_data, occupancy_data, occupancy_table
from tests.pages import read_letter_sizes

NAME = "mlsys-occupancy"
CASES = 1_000


def figure(name: str = "H100", **sizes: int) -> str:
    data = occupancy_data(name, **sizes)
    return element("occupancy", fallback=occupancy_table(data), **data)._repr_html_()


def random_case(rng: random.Random) -> tuple[str, dict[str, int]]:
    """A device of the table, at times one without multiprocessors, and sizes that are at times out of range."""
    gpus = [one.name for one in DEVICES if one.kind == "gpu"]
    name = rng.choice(gpus) if rng.random() < 0.95 else rng.choice([one.name for one in DEVICES if one.kind == "tpu"])
    sizes = {
        "threads": rng.choice([rng.randint(1, 1024), 32 * rng.randint(1, 32)]),
        "registers": rng.choice([rng.randint(1, 255), 8 * rng.randint(1, 31)]),
        "shared_bytes": rng.choice([0, rng.randint(0, 240_000), 1024 * rng.randint(0, 228)]),
    }
    if rng.random() < 0.15:
        slip = rng.choice(list(sizes))
        sizes[slip] = rng.choice([-1, -2000] if slip == "shared_bytes" else [0, -3, 256 * 5, 4096])
    return name, sizes


def test_the_figure_and_python_find_the_same_occupancy_and_refuse_alike(open_module) -> None:
    rng = random.Random(41)
    cases = [random_case(rng) for _ in range(CASES)]
    page = open_module("occupancy", "occupancy")
    data = {one["name"]: one for one in multiprocessor_data()}
    got = page.evaluate(
        """(cases) => cases.map(([device, sizes]) => {
          try { return occupancy(device, sizes); } catch (refusal) { return refusal.message; }
        })""",
        [[data[name], sizes] for name, sizes in cases],
    )
    refusals, limits, none = [], set(), 0
    for (name, sizes), result in zip(cases, got, strict=True):
        try:
            held = occupancy(device(name), **sizes)
        except InputError as error:
            assert result == str(error)
            refusals.append(result)
            continue
        assert result == asdict(held) | {"limits": list(held.limits)}
        limits |= {*held.limits}
        none += held.blocks == 0
    assert 100 < len(refusals) < 400 and none > 20
    assert limits == {"blocks", "warps", "registers", "shared memory"}
    for said in ("no streaming multiprocessors", "threads out of range", "registers out of", "must not be negative"):
        assert any(said in refusal for refusal in refusals)


def test_every_gpu_can_be_chosen_and_nothing_else() -> None:
    names = [one["name"] for one in occupancy_data()["devices"]]
    assert names == [one.name for one in DEVICES if one.kind == "gpu"]


def test_the_table_holds_the_kernel_in_blocks_of_several_sizes() -> None:
    text = occupancy_table(occupancy_data(threads=96, registers=64, shared_bytes=48 * 1024))
    assert "<td>96</td><td>4</td><td>12</td><td>18.8 %</td><td>shared memory</td>" in text
    assert "<td>256</td><td>4</td><td>32</td><td>50 %</td><td>registers, shared memory</td>" in text
    assert text.count("<tr>") == 1 + 8


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("H1000", {}, "H1000"),
        ("TPU v5e", {}, "TPU v5e has no streaming multiprocessors: expected an NVIDIA GPU"),
        ("H100", {"threads": 1025}, "threads out of range: got 1025, expected 1 to 1024"),
        ("H100", {"shared_bytes": -1}, "shared_bytes must not be negative: got -1"),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_line(name: str, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        occupancy_data(name, **sizes)


def test_the_notebook_s_widget_carries_the_site_s_module_and_data() -> None:
    widget = OccupancyCalculator.of("A100 80GB", threads=128, registers=40)
    assert widget._esm == esm("occupancy")
    assert (widget.device, widget.threads, widget.registers, widget.shared_bytes) == ("A100 80GB", 128, 40, 0)
    site = re.search(r'application/json">(.*?)</script>', figure())
    assert site and json.loads(site.group(1))["devices"] == json.loads(json.dumps(widget.devices))


def verdict_of(name: str, **sizes: int) -> str:
    held = occupancy(device(name), **sizes)
    of = device(name).warps_per_unit
    words = f"{held.blocks} block{'' if held.blocks == 1 else 's'}, {held.warps} of {of} warps"
    return f"{words}: occupancy {100 * held.occupancy:.3g}\N{NO-BREAK SPACE}%"


def test_the_verdict_follows_the_keyboard(open_page) -> None:
    page = open_page(figure(threads=256, registers=64))
    verdict = page.locator(f"{NAME} .verdict")
    assert verdict.inner_text() == verdict_of("H100", threads=256, registers=64)
    page.get_by_label("registers a thread", exact=True).focus()
    page.keyboard.press("ArrowLeft")
    assert verdict.inner_text() == verdict_of("H100", threads=256, registers=56)
    page.get_by_label("threads of a block", exact=True).focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    assert verdict.inner_text() == verdict_of("H100", threads=320, registers=56)
    page.get_by_label("shared bytes a block", exact=True).focus()
    page.keyboard.press("End")
    assert verdict.inner_text() == "Not even one block fits: the launch fails"
    page.keyboard.press("ArrowLeft")
    assert verdict.inner_text() == verdict_of("H100", threads=320, registers=56, shared_bytes=227 * 1024)


def test_any_number_can_be_typed_and_what_cannot_be_is_refused(open_page) -> None:
    page = open_page(figure(threads=256, registers=64))
    threads, error = page.get_by_label("threads of a block, exactly"), page.locator(f"{NAME} .error")
    threads.fill("100")
    threads.press("Tab")
    assert page.locator(f"{NAME} .verdict").inner_text() == verdict_of("H100", threads=100, registers=64)
    assert "Its last warp has 28 idle lanes." in page.locator(f"{NAME} .detail").inner_text()
    for typed, said in (("2000", "2000"), ("", "nothing"), ("1.5", "1.5")):
        threads.fill(typed)
        threads.press("Tab")
        assert error.inner_text() == f"threads out of range: got {said}, expected 1 to 1024"
        assert not page.locator(f"{NAME} svg[role=img]").is_visible()
    threads.fill("64")
    threads.press("Tab")
    assert error.inner_text() == "" and page.locator(f"{NAME} svg[role=img]").is_visible()


def test_another_gpu_has_other_limits(open_page) -> None:
    page = open_page(figure(threads=1024, registers=37, shared_bytes=8192))
    page.get_by_label("Device").select_option("RTX 3090")
    sizes = {"threads": 1024, "registers": 37, "shared_bytes": 8192}
    assert page.locator(f"{NAME} .verdict").inner_text() == verdict_of("RTX 3090", **sizes)
    held = occupancy(device("RTX 3090"), **sizes)
    assert page.locator(f"{NAME} dt.binds").all_inner_texts() == ["most warps", "registers"]
    detail = "a block 9,216 bytes of shared memory, 1,024 of them beyond its arrays."
    assert detail in page.locator(f"{NAME} .detail").inner_text()
    taken = [page.locator(f"{NAME} .slots i.{kind}").count() for kind in ("even", "odd", "free")]
    assert taken == [32, 0, 48 - 32] and held.warps == 32


def test_the_curve_passes_through_every_block_size_and_the_chosen_one_is_marked(open_page) -> None:
    page = open_page(figure(threads=96, registers=72, shared_bytes=20_000))
    dot, path = page.eval_on_selector(
        NAME,
        """(el) => { const svg = el.shadowRoot.querySelector("svg[role=img]");
          const [dot, steps] = ["circle.dot", "path.steps"].map((one) => svg.querySelector(one));
          return [["cx", "cy"].map((name) => Number(dot.getAttribute(name))), steps.getAttribute("d")]; }""",
    )
    steps = [[float(n) for n in step] for step in re.findall(r"[ML]([\d.]+) ([\d.]+)H([\d.]+)", path)]
    sizes = {"registers": 72, "shared_bytes": 20_000}
    expected = [occupancy(device("H100"), 32 * warps, **sizes).occupancy for warps in range(1, 33)]
    assert len(steps) == len(expected) == 32
    # The dot and one step more fix the scale.
    scale = (dot[1] - steps[0][1]) / (expected[2] - expected[0])
    heights = [expected[0] + (y - steps[0][1]) / scale for _, y, _ in steps]
    assert heights == pytest.approx(expected, abs=1e-3)
    assert dot[0] == pytest.approx(steps[2][2], abs=0.01) and len(set(expected)) > 4


def test_dragging_across_the_picture_sets_the_block(open_page) -> None:
    page = open_page(figure())
    box = page.locator(f"{NAME} svg[role=img]").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 100, steps=3)
    page.mouse.up()
    threads = int(page.get_by_label("threads of a block, exactly").input_value())
    assert threads % 32 == 0
    assert float(page.locator(f"{NAME} circle.dot").get_attribute("cx")) == pytest.approx(box["width"] * 0.7, abs=20)


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen_with_letters_of_a_readable_size(open_page, width: int) -> None:
    page = open_page(figure(), width=width)
    sizes = read_letter_sizes(page, NAME)
    assert len(sizes) > 8 and min(sizes) >= 11
    assert page.evaluate("document.documentElement.scrollWidth") <= width
