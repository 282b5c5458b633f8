"""The figure of a kernel's accesses: its steps are the trace's requests, its words what the microscope counts."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from numba import cuda, float32

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.trace.banks import conflicts
from mlsys_lab.kernels.trace.events import Trace
from mlsys_lab.kernels.trace.numba_simulator import record
from mlsys_lab.kernels.trace.sectors import coalescing
from mlsys_lab.kernels.trace.triton_interpreter import record as interpreted
from mlsys_lab.kernels.vector_add.triton_steps import add_kernel
from mlsys_lab.widgets import element, esm
from mlsys_lab.widgets.accesses import Accesses, access_data, access_table

SIDE = 16


@cuda.jit
def transpose(x, y):
    tile = cuda.shared.array((SIDE, SIDE), float32)
    row, column = cuda.threadIdx.y, cuda.threadIdx.x
    tile[row, column] = x[row, column]
    cuda.syncthreads()
    y[row, column] = tile[column, row]


@cuda.jit
def strided(x, y):
    i = cuda.grid(1)
    y[i] = x[8 * i]


@cuda.jit
def spread(x, y):
    i = cuda.grid(1)
    y[i] = x[i // 32 + 1]


def transposed() -> Trace:
    x = np.arange(SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE)
    return record(transpose, 1, (SIDE, SIDE), x, np.empty_like(x), outputs=("y",))


def unguarded() -> Trace:
    return record(strided, 2, 32, np.ones(256, np.float32), np.zeros(40, np.float32))


def figure(trace: Trace, **first: int) -> str:
    data = access_data(trace)
    return element("accesses", **data, **first, fallback=access_table(data))._repr_html_()


@pytest.mark.parametrize("make", [transposed, unguarded])
def test_the_steps_add_up_to_what_the_microscope_counts(make) -> None:
    trace = make()
    data = access_data(trace)
    spaces = [data["buffers"][step["buffer"]]["space"] for step in data["steps"]]
    for space, counted in (("global", coalescing(trace)), ("shared", conflicts(trace))):
        steps = [step for step, where in zip(data["steps"], spaces, strict=True) if where == space]
        for key, field in (("taken", "taken"), ("least", "ideal")):
            assert sum(step[key] for step in steps) == sum(getattr(one, field) for one in counted)
        assert len(steps) == sum(one.requests for one in counted)
    assert sum(len(step["threads"]) for step in data["steps"]) == len(trace.accesses)


def test_elements_are_where_the_kernel_s_own_indices_lead() -> None:
    data = access_data(transposed())
    first_read = next(step for step in data["steps"] if step["line"] == data["steps"][-1]["line"])
    assert data["buffers"][first_read["buffer"]]["name"] == "tile"
    assert first_read["elements"] == [SIDE * (t % SIDE) + t // SIDE for t in first_read["threads"]]
    last = access_data(unguarded())["steps"][-1]
    assert last["elements"] == [32 + t if 32 + t < 40 else -1 for t in range(32)]


def test_the_source_runs_from_the_definition_to_the_last_access() -> None:
    source = access_data(transposed())["source"]
    assert source[0][1] == "def transpose(x, y):"
    assert source[-1][1] == "    y[row, column] = tile[column, row]"
    assert [n for n, _ in source] == list(range(source[0][0], source[-1][0] + 1))


def test_the_table_says_by_line_what_was_taken() -> None:
    text = access_table(access_data(unguarded()))
    assert "<td>y[i] = x[8 * i]</td><td>reads x</td><td>2</td><td>64 sectors</td><td>8</td>" in text


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: access_data(transposed(), block=3), "transpose has no access that could be drawn: got block 3"),
        (
            lambda: access_data(record(strided, 4, 64, np.ones(4096), np.ones(512))),
            "x is too large to draw: got 4096.*; help: launch it on smaller",
        ),
        (lambda: access_data(record(strided, 300, 1, np.ones(8), np.ones(8))), "too many requests to draw: got 600"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_line(data, message: str) -> None:
    with pytest.raises(InputError, match=message):
        data()


def test_the_notebook_s_widget_carries_the_site_s_module_and_data() -> None:
    trace = transposed()
    widget = Accesses.from_trace(trace)
    assert widget._esm == esm("accesses")
    site = re.search(r'application/json">(.*?)</script>', figure(trace))
    assert site and json.loads(site.group(1))["steps"] == widget.steps
    assert len(Accesses.from_trace(unguarded(), block=1).steps) == 2


def test_keys_walk_the_requests_and_words_follow(open_page) -> None:
    page = open_page(figure(unguarded()))
    said, on = page.locator("mlsys-accesses .said"), page.get_by_label("Next request")
    assert said.inner_text() == "Block 0, threads 0–31 read x: 32 sectors, where 4 would do"
    on.focus()
    page.keyboard.press("ArrowRight")
    assert said.inner_text() == "Block 0, threads 0–31 write y: 4 sectors, the least that would do"
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    assert said.inner_text().endswith("; 24 outside of the array")
    assert page.locator("mlsys-accesses output").inner_text() == "4 of 4"
    page.keyboard.press("ArrowLeft")
    assert page.locator("mlsys-accesses output").inner_text() == "3 of 4"
    assert page.locator("mlsys-accesses .now").inner_text().endswith("y[i] = x[8 * i]")


def test_a_triton_kernel_has_programs_and_lanes(open_page) -> None:
    trace = interpreted(add_kernel, 2, torch.ones(40), torch.ones(40), torch.empty(40), 40, BLOCK=32)
    page = open_page(figure(trace))
    said = page.locator("mlsys-accesses .said").inner_text()
    assert said == "Program 0, lanes 0–31 read x_ptr: 4 sectors, the least that would do"


def test_lanes_that_share_an_element_are_counted(open_page) -> None:
    trace = record(spread, 1, 32, np.ones(8, np.float32), np.empty(32, np.float32), outputs=("y",))
    page = open_page(figure(trace), width=1280)
    assert page.locator("mlsys-accesses svg text").all_text_contents() == ["×32"]
    page.get_by_label("Next request").click()
    assert page.locator("mlsys-accesses svg text").all_text_contents() == [str(lane) for lane in range(32)]


@pytest.mark.parametrize("width", [390, 1280])
def test_lanes_and_the_sectors_that_move_for_them_are_drawn(open_page, width: int) -> None:
    page = open_page(figure(transposed(), step=31), width=width)
    assert page.locator("mlsys-accesses rect.lane").count() == 32
    assert page.locator("mlsys-accesses rect.moved").count() == 0, "whole sectors are written"
    page = open_page(figure(unguarded()), width=width)
    assert page.locator("mlsys-accesses rect.moved").count() == 32 * 7
    fills = {
        name: page.locator(f"mlsys-accesses rect.{name}").first.evaluate("e => getComputedStyle(e).fill")
        for name in ("lane", "moved")
    }
    assert fills["lane"] != fills["moved"]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_two_arrays_lie_side_by_side_where_their_lanes_keep_their_numbers(open_page) -> None:
    tops = "all => all.map(e => e.getBoundingClientRect().top)"
    for width, beside in ((390, False), (600, True)):
        page = open_page(figure(transposed()), width=width)
        first, second = page.locator("mlsys-accesses .array svg").evaluate_all(tops)[:2]
        assert (first == second) is beside
        assert page.locator("mlsys-accesses svg text").count() == 32
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@cuda.jit
def column(x, y):
    tile = cuda.shared.array((32, 32), float32)
    t = cuda.threadIdx.x
    for k in range(32):
        tile[k, t] = x[k, t]
    cuda.syncthreads()
    y[t] = tile[t, 0]


def test_columns_that_are_banks_have_a_head(open_page) -> None:
    x = np.ones((32, 32), np.float32)
    page = open_page(figure(record(column, 1, 32, x, np.empty(32, np.float32), outputs=("y",))))
    assert page.locator("mlsys-accesses .banks").all_inner_texts() == ["bank 0\nbank 31"]
    heads, tile = (page.locator(f"mlsys-accesses {one}").last.bounding_box() for one in (".banks", ".array svg"))
    assert heads is not None and tile is not None and heads["width"] == pytest.approx(tile["width"], abs=1)
    page = open_page(figure(transposed()))
    assert page.locator("mlsys-accesses .banks").count() == 0, "a tile of 16 columns"


def test_what_a_request_costs_stays_in_sight_beside_the_last_array(open_page) -> None:
    x = np.ones((32, 32), np.float32)
    page = open_page(figure(record(column, 1, 32, x, np.empty(32, np.float32), outputs=("y",))), width=1280)
    page.locator("mlsys-accesses .array svg").last.evaluate("e => e.scrollIntoView({ block: 'end' })")
    said = page.locator("mlsys-accesses .said").bounding_box()
    assert said is not None and said["y"] >= 0
