"""The reading list in a real browser: filters, address, keyboard, check-offs, export, import, and no script at all."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.pages import PATIENCE_MS

pytestmark = pytest.mark.timeout(1800)  # the first test may build the site

KEY = "mlsys-lab:readings"
FORMAT = "mlsys-lab readings 1"
TOTAL = 191


@pytest.fixture
def readings(page: Page, site_url: str) -> Page:
    page.goto(site_url + "readings.html")
    return page


def shown(page: Page) -> Locator:
    return page.locator("tr[data-id]:visible")


def count(page: Page) -> Locator:
    return page.locator(".readings-count")


def check(page: Page, id: str) -> Locator:
    return page.locator(f"[data-id='{id}'] input[type=checkbox]")


def test_without_a_script_the_list_is_a_plain_table(browser: Browser, site_url: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(site_url + "readings.html")
    expect(shown(page)).to_have_count(TOTAL)
    expect(page.locator(".readings-filters")).to_be_hidden()
    expect(page.get_by_role("link", name="karpathy/micrograd")).to_have_attribute(
        "href", "https://github.com/karpathy/micrograd/"
    )
    page.goto(site_url + "syllabus.html")
    expect(page.locator(".syllabus-card")).to_have_count(19)
    expect(page.locator(".syllabus progress:visible")).to_have_count(0)
    page.goto(site_url + "readings.html#chapter=cuda")
    expect(page.get_by_role("link", name="An Even Easier Introduction to CUDA")).to_be_in_viewport()
    context.close()


def test_filters_narrow_the_list_and_say_so(readings: Page) -> None:
    expect(shown(readings)).to_have_count(TOTAL)
    expect(count(readings)).to_have_text(f"All {TOTAL} readings")
    expect(count(readings)).to_have_attribute("aria-live", "polite")
    readings.get_by_label("Search the list").fill("autograd engine")
    visible = shown(readings).evaluate_all("rows => rows.map(row => row.dataset.id)")
    assert "pytorch-autograd-overview" in visible and len(visible) < 10
    expect(count(readings)).to_have_text(f"{len(visible)} of {TOTAL} readings")
    readings.get_by_label("Search the list").fill("GÖKÇE")
    expect(shown(readings)).to_have_count(1)
    readings.get_by_label("Search the list").fill("no such thing anywhere")
    expect(shown(readings)).to_have_count(0)
    expect(readings.get_by_text("Nothing on the list fits")).to_be_visible()
    expect(readings.locator(".readings-group:visible")).to_have_count(0)
    readings.get_by_role("button", name="Clear filters").click()
    expect(shown(readings)).to_have_count(TOTAL)


FITS = {
    "topic=triton": "data.topics.split(' ').includes('triton')",
    "chapter=serving": "data.chapters.split(' ').includes('serving')",
    "kind=video": "data.kind === 'video'",
    "level=advanced": "data.level === 'advanced'",
    "language=zh": "data.language === 'zh'",
    "time=30": "Number(data.minutes) <= 30",
    "show=star": "data.star === '1'",
    "show=seeds": "data.ours === ''",
    "show=ours": "data.ours === '1'",
}


def test_each_filter_shows_exactly_what_fits(readings: Page) -> None:
    for setting, fits in FITS.items():
        name, value = setting.split("=")
        readings.locator(f"select[name={name}]").select_option(value)
        rows = readings.locator("tr[data-id]")
        expected = rows.evaluate_all(f"rows => rows.filter(({{dataset: data}}) => {fits}).map(row => row.id)")
        assert 0 < len(expected) < TOTAL
        assert shown(readings).evaluate_all("rows => rows.map(row => row.id)") == expected, setting
        expect(readings).to_have_url(re.compile(f"#{setting}$"))
        readings.locator(f"select[name={name}]").select_option("")


def test_filters_combine_live_in_the_address_and_come_back(readings: Page) -> None:
    readings.locator("select[name=topic]").select_option("inference")
    readings.locator("select[name=time]").select_option("30")
    readings.get_by_label("Search the list").fill("cache")
    before = shown(readings).count()
    assert 0 < before < TOTAL
    expect(readings).to_have_url(re.compile("#find=cache&topic=inference&time=30$"))
    address = readings.url
    readings.goto("about:blank")
    readings.goto(address)
    expect(shown(readings)).to_have_count(before)
    expect(readings.get_by_label("Search the list")).to_have_value("cache")
    readings.get_by_role("button", name="Clear filters").click()
    expect(readings).to_have_url(re.compile("^[^#]*$"))


def test_an_odd_address_does_no_harm(page: Page, site_url: str) -> None:
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    for hash, slides in {"topic=nonsense": 2, "find=%": 0, "reading-micrograd": 2, "a=b&c": 2, "=": 2}.items():
        page.goto("about:blank")
        page.goto(f"{site_url}readings.html#{hash}")
        page.locator("select[name=kind]").select_option("slides")
        expect(shown(page)).to_have_count(slides)
    assert errors == []


def test_a_topic_is_a_link_to_its_readings(readings: Page) -> None:
    readings.locator("#reading-openai-triton").get_by_role("link", name="Triton", exact=True).click()
    expect(readings.locator("select[name=topic]")).to_have_value("triton")
    expect(count(readings)).to_be_in_viewport()


def test_everything_works_from_the_keyboard(readings: Page) -> None:
    readings.get_by_label("Search the list").focus()
    readings.keyboard.type("micrograd")
    expect(shown(readings).first).to_have_attribute("data-id", "micrograd")
    for name in ("chapter", "topic", "kind", "level", "language", "time", "show"):
        readings.keyboard.press("Tab")
        expect(readings.locator(f"select[name={name}]")).to_be_focused()
    readings.keyboard.press("Tab")
    expect(readings.get_by_role("button", name="Clear filters")).to_be_focused()
    for name in ("Export", "Import"):
        readings.keyboard.press("Tab")
        expect(readings.get_by_role("button", name=name)).to_be_focused()
    readings.keyboard.press("Tab")
    expect(check(readings, "micrograd")).to_be_focused()
    readings.keyboard.press("Space")
    expect(check(readings, "micrograd")).to_be_checked()
    expect(readings.get_by_label("I have read: karpathy/micrograd")).to_be_checked()


def test_a_check_off_stays_and_counts_everywhere(readings: Page, site_url: str) -> None:
    check(readings, "micrograd").check()
    readings.reload()
    expect(check(readings, "micrograd")).to_be_checked()
    expect(readings.get_by_text("You have read 1.")).to_be_visible()
    readings.locator("select[name=show]").select_option("read")
    expect(shown(readings)).to_have_count(1)
    check(readings, "micrograd").uncheck()
    expect(shown(readings)).to_have_count(0)
    readings.locator("select[name=show]").select_option("unread")
    expect(shown(readings)).to_have_count(TOTAL)
    check(readings, "micrograd").check()
    expect(shown(readings)).to_have_count(TOTAL - 1)

    readings.goto(site_url + "syllabus.html")
    card = readings.locator("[data-topic=automatic-differentiation]")
    expect(card.get_by_text("1 of 7 read")).to_be_visible()
    expect(readings.get_by_text(f"1 of {TOTAL} read")).to_be_visible()
    card.get_by_role("link", name="readings").click()
    expect(readings.locator("select[name=chapter]")).to_have_value("automatic-differentiation")

    readings.goto(site_url + "chapters/02-automatic-differentiation.html")
    expect(check(readings, "micrograd")).to_be_checked()
    check(readings, "clark-gradient-notes").check()
    expect(readings.locator(".read-next").get_by_text("2 of 6 read")).to_be_visible()


def test_two_open_pages_agree(readings: Page, site_url: str) -> None:
    other = readings.context.new_page()
    other.goto(site_url + "syllabus.html")
    check(readings, "micrograd").check()
    expect(other.get_by_text(f"1 of {TOTAL} read")).to_be_visible()
    check(readings, "grosse-autodiff").check()
    expect(other.locator("[data-topic=automatic-differentiation]").get_by_text("2 of 7 read")).to_be_visible()


def test_export_and_import_carry_progress_to_another_browser(
    readings: Page, browser: Browser, site_url: str, tmp_path: Path
) -> None:
    check(readings, "micrograd").check()
    check(readings, "he-brrrr").check()
    with readings.expect_download() as download:
        readings.get_by_role("button", name="Export").click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    record = json.loads(file.read_text("utf-8"))
    assert record["format"] == FORMAT and set(record["done"]) == {"micrograd", "he-brrrr"}

    elsewhere = browser.new_context()
    page = elsewhere.new_page()
    page.goto(site_url + "readings.html")
    check(page, "gpu-puzzles").check()
    page.locator("input[type=file]").set_input_files(file)
    expect(page.locator(".readings-message")).to_have_text("Added 2 check-offs from mlsys-readings.json.")
    expect(page.get_by_text("You have read 3.")).to_be_visible()
    page.locator("input[type=file]").set_input_files(file)
    expect(page.locator(".readings-message")).to_have_text("Added 0 check-offs from mlsys-readings.json.")
    page.reload()
    expect(check(page, "he-brrrr")).to_be_checked()
    elsewhere.close()


WRONG_FILES = {
    "not json": "This file is not JSON",
    "null": "This file is not a reading record",
    '{"format": "mlsys-lab readings 9", "done": {}}': "This file is not a reading record",
    f'{{"format": "{FORMAT}", "done": ["micrograd"]}}': "has no “done” list",
    f'{{"format": "{FORMAT}", "done": {{"micrograd": true}}}}': "The date of “micrograd” is not YYYY-MM-DD",
}


def test_a_wrong_file_is_refused_in_one_line(readings: Page, tmp_path: Path) -> None:
    check(readings, "he-brrrr").check()
    file = tmp_path / "wrong.json"
    for text, message in WRONG_FILES.items():
        file.write_text(text, encoding="utf-8")
        readings.locator("input[type=file]").set_input_files(file)
        expect(readings.locator(".readings-message")).to_contain_text(message)
        expect(readings.get_by_text("You have read 1.")).to_be_visible()


def test_a_damaged_record_begins_afresh(readings: Page) -> None:
    for stored in ("{", "[]", "null", '{"format": "other"}'):
        readings.evaluate("([key, text]) => localStorage.setItem(key, text)", [KEY, stored])
        readings.reload()
        expect(readings.get_by_text("You have read 0.")).to_be_visible()
        check(readings, "micrograd").check()
        readings.reload()
        expect(check(readings, "micrograd")).to_be_checked()


def test_a_browser_that_keeps_nothing_is_told(page: Page, site_url: str) -> None:
    page.add_init_script("Storage.prototype.getItem = () => { throw new DOMException('denied', 'SecurityError'); }")
    page.goto(site_url + "readings.html")
    expect(page.locator(".readings-message")).to_have_text(
        "This browser keeps nothing for this page: export before you leave."
    )
    check(page, "micrograd").check()
    expect(page.get_by_text("You have read 1.")).to_be_visible()
    check(page, "he-brrrr").check()
    expect(page.get_by_text("You have read 2.")).to_be_visible()
