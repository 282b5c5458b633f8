"""Searching the built site: the index leads to places that exist, and what readers ask for comes first."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from book.linkcheck import read_page

pytestmark = pytest.mark.timeout(1800)  # the first test may build the site

FIRST = {
    "flashattention": "06-triton#flashattention",
    "flash attention": "06-triton#flashattention",
    "LoRA": "13-serving#many-lora-adapters-on-one-base-model",
    "ring all-reduce": "09-collectives#ring-all-reduce",
    "gradient checkpointing": "02-automatic-differentiation#activation-checkpointing",
    "activation recomputation": "02-automatic-differentiation#activation-checkpointing",
    "kv cache": "12-inference#the-kv-cache",
    "paged attention": "12-inference#paged-kv-cache",
    "PagedAttention": "12-inference#paged-kv-cache",
    "continuous batching": "13-serving#static-and-continuous-batching",
    "prefix caching": "13-serving#prefix-caching",
    "speculative decoding": "12-inference#speculative-decoding",
    "chunked prefill": "12-inference#chunked-prefill",
    "tensor parallelism": "11-model-parallel#tensor-parallelism-columns-then-rows",
    "pipeline parallelism": "11-model-parallel#pipeline-parallelism-shard-the-layers",
    "zero bubble": "11-model-parallel#zero-bubble",
    "ZeRO": "10-data-parallel#zero-shard-what-is-duplicated",
    "FSDP": "10-data-parallel#zero-shard-what-is-duplicated",
    "gradient accumulation": "10-data-parallel#gradient-accumulation",
    "mixture of experts": "08-scaling-laws#mixture-of-experts",
    "expert parallelism": "11-model-parallel#expert-parallelism-shard-the-experts",
    "chinchilla": "08-scaling-laws#chinchilla-two-terms-and-a-floor",
    "scaling laws": "08-scaling-laws#",
    "roofline": "04-gpu-model#the-roofline",
    "occupancy": "04-gpu-model#occupancy-how-many-warps-are-resident",
    "bank conflicts": "05-cuda#transpose-bank-conflicts-padding-and-swizzling",
    "coalescing": "04-gpu-model#coalescing-and-sectors",
    "tensor cores": "05-cuda#tensor-cores",
    "online softmax": "06-triton#online-softmax",
    "autotuning": "06-triton#autotuning",
    "cuda graphs": "03-inside-pytorch#cuda-graphs",
    "torch.compile": "03-inside-pytorch#torch-compile",
    "caching allocator": "03-inside-pytorch#the-caching-allocator",
    "MFU": "07-transformer-arithmetic#mfu-and-hfu-how-good-is-a-measured-step",
    "activation memory": "07-transformer-arithmetic#memory-for-activations",
    "fp8": "07-transformer-arithmetic#fewer-bits-fp8-mxfp8-nvfp4",
    "quantization": "12-inference#quantization-fewer-bytes",
    "GQA": "12-inference#fewer-kv-heads-mqa-gqa-mla",
    "classifier-free guidance": "14-diffusion#classifier-free-guidance",
    "bus bandwidth": "09-collectives#reading-nccl-tests-algorithm-and-bus-bandwidth",
    "goodput": "13-serving#latency-metrics-slos-and-goodput",
    "cost per token": "13-serving#cost-per-token",
    "vjp": "02-automatic-differentiation#vector-jacobian-products-no-jacobian-is-built",
    "backpropagation": "02-automatic-differentiation#forward-mode-and-reverse-mode",
}
"""What readers ask for, and the section of a chapter that teaches it and must come first."""


@pytest.fixture(scope="module")
def index(site: Path) -> dict[str, Any]:
    """What the search page reads."""
    loaded: dict[str, Any] = json.loads((site / "search-index.json").read_text("utf-8"))
    return loaded


def test_every_hit_leads_to_a_place_that_exists(site: Path, index: dict[str, Any]) -> None:
    kinds = {kind for *_, kind in index["hits"]}
    assert kinds == {"section", "term", "reading"} and len(index["hits"]) > 500
    for page, anchor, title, _, _ in index["hits"]:
        assert title and page in index["pages"]
        assert not anchor or anchor in read_page(site / f"{page}.html").fragments, (page, anchor)


def test_terms_come_with_definitions_and_nothing_holds_tex(index: dict[str, Any]) -> None:
    assert all(text for *_, text, kind in index["hits"] if kind == "term")
    tex = re.compile(r"\\(?:[a-zA-Z]{2,}|[({\[])|\$[^$ ]+\$|[_^]\{")
    assert [hit[:3] for hit in index["hits"] if tex.search(f"{hit[2]} {hit[3]}")] == []


def test_what_readers_ask_for_comes_first(page: Page, site_url: str) -> None:
    page.goto(f"{site_url}search.html?q=warp")
    expect(page.locator(".bd-search-container input")).to_have_value("warp")
    expect(page.locator(".search-hits li").first).to_be_visible()
    find = "async (query) => (await (await import('./_static/search.js')).find(query)).groups[0].hits[0]"
    first = {query: page.evaluate(find, query) for query in FIRST}
    places = {query: f"{hit['page'].removeprefix('chapters/')}#{hit['anchor']}" for query, hit in first.items()}
    assert {query: place for query, place in places.items() if place != FIRST[query].replace(".md", "")} == {}


def test_the_dialog_answers_while_a_reader_types(page: Page, site_url: str) -> None:
    page.goto(f"{site_url}chapters/09-collectives.html")
    page.keyboard.press("ControlOrMeta+k")
    field = page.locator("#pst-search-dialog input")
    expect(field).to_be_focused()
    field.press_sequentially("flash att")
    first = page.locator("#pst-search-dialog .search-hits a").first
    expect(first).to_have_text("FlashAttention")
    expect(page.locator("#pst-search-dialog .search-group").first).to_contain_text("Chapters")
    magnifier, text = page.locator("#pst-search-dialog form > i").bounding_box(), field.bounding_box()
    assert magnifier and text
    padding = field.evaluate("(field) => parseFloat(getComputedStyle(field).paddingLeft)")
    assert magnifier["x"] + magnifier["width"] <= text["x"] + padding
    first.click()
    expect(page).to_have_url(f"{site_url}chapters/06-triton.html#flashattention")


def test_arrow_keys_lead_from_the_field_through_the_results(page: Page, site_url: str) -> None:
    page.goto(f"{site_url}chapters/09-collectives.html")
    page.keyboard.press("ControlOrMeta+k")
    page.keyboard.type("bank conflict")
    first = page.locator("#pst-search-dialog .search-hits a").first
    expect(first).to_be_visible()
    page.keyboard.press("ArrowDown")
    expect(first).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(page.locator("#pst-search-dialog input")).to_be_focused()
