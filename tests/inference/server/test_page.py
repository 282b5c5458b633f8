"""The page in a browser: it chats, shows the engine at work, and asks nobody but its own server."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from tests.pages import PATIENCE_MS, settle

SECRET = "quicksilver marzipan"
# A prefill may be seen for a tenth of a second only: whatever is drawn or said is noted down.
NOTE = """() => {
  window.seen = new Set();
  const note = () => {
    document.querySelectorAll("#steps rect, #blocks i").forEach((node) => seen.add(node.getAttribute("class")));
    document.querySelectorAll("#running, #waiting").forEach((node) => seen.add(`${node.id}: ${node.textContent}`));
  };
  const all = { subtree: true, childList: true, attributes: true };
  new MutationObserver(note).observe(document.querySelector(".watch"), all);
}"""


@pytest.fixture(scope="module")
def context(browser):
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    yield context
    context.close()


def is_error(message):
    """Whether a message of the console tells of a fault; a refusal (400) the browser writes there by itself."""
    return message.type == "error" and "status of 400" not in message.text


@pytest.fixture
def page(served, context):
    """The page, which may not err, and may request nothing that is not the server's."""
    served.wait_until("ready")
    page, problems = context.new_page(), []
    page.on("console", lambda message: problems.append(message.text) if is_error(message) else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda sent: sent.url.startswith((f"{served.address}/", "data:")) or problems.append(sent.url))
    page.goto(served.address)
    page.get_by_text("Connected", exact=True).wait_for()
    yield page
    page.close()
    assert problems == []


def test_one_chats_by_keyboard_and_the_model_hears_all_that_was_said(page, served):
    said, log = page.get_by_label("Your message"), page.get_by_role("log")
    sent = []
    page.on("request", lambda request: sent.append(request.post_data_json) if "chat" in request.url else None)
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Max tokens").fill("30")
    for number, text in enumerate(("What is a cache?", "And a block?"), start=1):
        said.fill(text)
        said.press("Enter")
        expect(log.locator(".assistant:not(.streaming)")).to_have_count(number)
    first = log.locator(".assistant").first.inner_text()
    roles = [(turn["role"], turn["content"]) for turn in sent[1]["messages"]]
    assert roles == [("user", "What is a cache?"), ("assistant", first), ("user", "And a block?")]
    said.fill("x" * 3000)
    said.press("Enter")
    expect(log.locator(".error")).to_contain_text("the context")
    assert said.input_value() == "x" * 3000 and log.locator(".user").count() == 2
    page.get_by_role("button", name="New conversation").click()
    expect(log.locator("li")).to_have_count(0)
    page.get_by_label("Max tokens").fill("400")
    said.fill("Go on")
    with served.engine_stopped():
        said.press("Enter")
        page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_enabled()
    assert log.locator(".error").count() == 0


def test_a_burst_is_visible_in_scheduler_queue_and_blocks(page, served):
    page.evaluate(NOTE)
    before = page.locator("#blocks").get_attribute("aria-label")
    assert before.startswith("0 of 256 blocks in use")
    page.get_by_role("combobox").select_option("24")
    with served.engine_stopped():
        page.get_by_role("button", name="Send a burst").click()
        served.wait(lambda found: found["mlsys_num_requests_open"] == 24)
    with served.engine_in_slow_motion():
        expect(page.locator("#load-status")).to_have_text("24 sequences finished")
    expect(page.locator("#used")).to_have_text("0 of 256")
    seen = page.evaluate("[...seen]")
    assert "running: 16 of 16" in seen and any(one.startswith("waiting: ") and one != "waiting: 0" for one in seen)
    drawn = set(" ".join(seen).split())
    assert {
        "prefill",
        "decode",
        "waiting",
        "shared",
        "cached",
        "free",
        *(f"colour-{colour}" for colour in range(8)),
    } <= drawn
    assert page.locator("#blocks .cached").count() > 5 and page.locator("#rate").inner_text() == "0"


def test_pause_costs_the_server_nothing(page, served):
    page.get_by_role("button", name="Pause").press("Space")
    expect(page.locator("#status")).to_have_text("Paused")
    held = page.locator("#blocks").inner_html()
    assert served.complete()[0] == 200
    assert page.locator("#blocks").inner_html() == held
    page.get_by_role("button", name="Pause").press("Space")
    expect(page.locator("#status")).to_have_text("Connected")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_every_screen_with_letters_that_can_be_read(page, scheme):
    page.emulate_media(color_scheme=scheme)
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        settle(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        sizes = page.evaluate(
            """() => [...document.querySelectorAll("body *")]
              .filter((node) => node.checkVisibility() && node.textContent.trim())
              .map((node) => parseFloat(getComputedStyle(node).fontSize))"""
        )
        assert len(sizes) > 50 and min(sizes) >= 11
    ratios = page.evaluate(
        """() => {
          const light = (name) => {
            document.body.style.outlineColor = `var(--${name})`;
            const parts = getComputedStyle(document.body).outlineColor.match(/[\\d.]+/g).map((c) => c / 255);
            const [r, g, b] = parts.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const against = (text, ground) => {
            const [a, b] = [light(text), light(ground)].sort((x, y) => y - x);
            return [text, ground, (a + 0.05) / (b + 0.05)];
          };
          const grounds = ["ground", "surface", "raised"];
          const words = ["ink", "muted", "bad"].flatMap((text) => grounds.map((ground) => against(text, ground)));
          const filled = ["value", "prompt", ...Array.from({ length: 8 }, (_, i) => `colour-${i}`)];
          return [...words, against("ink", "soft"), ...filled.map((one) => against("surface", one))];
        }"""
    )
    assert len(ratios) == 20 and [one for one in ratios if one[2] < 4.5] == []


def test_the_page_and_its_files_let_a_browser_ask_nobody_else(served):
    for path, kind in (("/", "html"), ("/page/page.css", "css"), ("/page/main.js", "javascript")):
        status, text, headers = served.ask("GET", path)
        assert status == 200 and text and headers["content-type"] == f"text/{kind}; charset=utf-8"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    status, answer, _ = served.ask("GET", "/page/page.py")
    assert status == 404 and answer["error"]["message"] == "no such file of the page"


def test_watchers_see_numbers_only(served):
    with served.connect() as watcher:
        watcher.sendall(b"GET /watch HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert watcher.recv(15) == b"HTTP/1.1 200 OK"
        assert served.complete(prompt=SECRET, max_tokens=20, stop=["never"])[0] == 200
        views, rest = [], b""
        while not any(view["steps"] for view in views) or views[-1]["running"]:
            *lines, rest = (rest + watcher.recv(65536)).split(b"\n")
            views += [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]
    steps = [step["step"] for view in views for step in view["steps"]]
    assert steps == list(range(steps[0], steps[0] + len(steps)))
    assert not list(find_texts(views))


def find_texts(value):
    """All texts in an object of JSON, names of fields aside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from find_texts(one)
