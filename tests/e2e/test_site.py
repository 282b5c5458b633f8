"""Every page of the built site, as a visitor's browser has it: narrow and wide, light and dark, with no network."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import Browser, BrowserContext, Page, expect

from book.linkcheck import internal_problems, pages, read_page
from book.project import LABS, read_address
from book.serve import HOST, running, site_server
from mlsys_lab.stack.labinfo import released_labs
from tests.e2e.conftest import STAYS
from tests.pages import PATIENCE_MS, settle
from tests.sampling import keep

pytestmark = pytest.mark.timeout(1800)  # the first test may build the site

PROBE = Path(__file__).with_name("probe.js").read_text(encoding="utf-8")
WIDTHS, THEMES = (390, 1280), ("light", "dark")
SOME = {
    "index", "syllabus", "milestones", "readings", "glossary", "search", "cheat-sheet", "planner", "estimator",
    "chapters/01-introduction", "chapters/02-automatic-differentiation", "chapters/04-gpu-model",
    "chapters/11-model-parallel", "labs/01-autograd",
}  # fmt: skip
"""Pages that every run opens: one of each kind, and the chapters with most figures."""
TOGETHER = 4
"""Pages that are open at a time, so that their waits for the network overlap."""
NO_NETWORK = {"server": f"http://{HOST}:9", "bypass": HOST}
"""No proxy listens there: what is asked of another host fails. Other than a route, it leaves the browser its cache."""
# Custom elements that the page still has to draw; formulas and charts are drawn when it is built.
PENDING = """() => [...document.querySelectorAll("*")]
  .every((node) => !node.localName.startsWith("mlsys-") || node.shadowRoot)"""


State = tuple[int, str]
"""Width in px and theme."""


@dataclass
class Visit:
    """What one page did and looked like; `states` by width and theme."""

    name: str
    elsewhere: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    states: dict[State, dict[str, Any]] = field(default_factory=dict)


def opened(context: BrowserContext, url: str, visit: Visit) -> Page:
    """A page that has begun to load, and whose requests and errors the visit notes."""
    page = context.new_page()
    ours = (url, "data:", "blob:")
    page.on("request", lambda asked: None if asked.url.startswith(ours) else visit.elsewhere.append(asked.url))
    page.on("console", lambda message: visit.errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: visit.errors.append(str(error)))
    page.on("response", lambda got: visit.errors.append(f"{got.status} {got.url}") if got.status >= 400 else None)
    page.goto(url + visit.name, wait_until="commit")
    return page


def look(context: BrowserContext, url: str, visits: list[Visit], states: list[State]) -> None:
    """Open the pages in the context's state, and change it: a reader may turn a phone, or switch the theme."""
    shown = [(visit, opened(context, url, visit)) for visit in visits]
    for _, page in shown:
        page.wait_for_load_state("networkidle")
        page.wait_for_function(PENDING)
    for visit, page in shown:
        page.bring_to_front()
        for width, theme in states:
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            settle(page)
            visit.states[width, theme] = page.evaluate(PROBE)
    for _, page in shown:
        page.close()


@pytest.fixture(scope="module", params=keep(["some pages", "all pages"], ["some pages"]))
def visits(request: pytest.FixtureRequest, site: Path, site_url: str, browser: Browser) -> list[Visit]:
    """Pages opened once, dark, one narrow and the next wide; then turned and light. Once a week all pages so."""
    found = [Visit(str(path.relative_to(site))) for path in pages(site)]
    if request.param == "some pages":
        found = [visit for visit in found if visit.name.removesuffix(".html") in SOME]
        assert len(found) == len(SOME)
    for first, (width, turned) in enumerate(permutations(WIDTHS)):
        states = [(width, "dark"), (turned, "light")]
        here = found[first :: len(WIDTHS)]
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme="dark", proxy=NO_NETWORK)
        context.set_default_timeout(TOGETHER * PATIENCE_MS)
        context.new_page().goto(site_url + STAYS)
        for at in range(0, len(here), TOGETHER):
            look(context, site_url, here[at : at + TOGETHER], states)
        context.close()
    return found


def seen(visits: list[Visit], key: str) -> list[str]:
    """What the pages' states say under this key, each line with its page and state."""
    return [
        f"{visit.name} at {width} px, {theme}: {said}"
        for visit in visits
        for (width, theme), state in visit.states.items()
        for said in ([state[key]] if isinstance(state[key], str) else state[key])
        if said
    ]


def count(visits: list[Visit], key: str) -> int:
    """How many formulas or figures the pages have together, each counted once."""
    return sum(next(iter(visit.states.values()))[key] for visit in visits)


def test_every_page_was_seen_in_both_widths_and_both_themes(visits: list[Visit]) -> None:
    names = {visit.name for visit in visits}
    assert {"index.html", "syllabus.html", "readings.html", "glossary.html", "search.html"} <= names
    assert any(name.startswith("chapters/") for name in names) and any(name.startswith("labs/") for name in names)
    assert all({width for width, _ in visit.states} == set(WIDTHS) for visit in visits)
    assert all({theme for _, theme in visit.states} == set(THEMES) for visit in visits)


def test_no_page_asks_another_host(visits: list[Visit]) -> None:
    assert [(visit.name, url) for visit in visits for url in visit.elsewhere] == []


def test_no_page_has_an_error_on_its_console(visits: list[Visit]) -> None:
    assert [(visit.name, error) for visit in visits for error in visit.errors] == []


def test_no_page_is_wider_than_the_screen(visits: list[Visit]) -> None:
    assert seen(visits, "overflow") == []


def test_mathematics_is_set(visits: list[Visit]) -> None:
    assert count(visits, "formulas") > 0
    assert seen(visits, "unset") + seen(visits, "wrong") == []


def test_charts_are_drawn_at_the_width_that_the_page_has(visits: list[Visit]) -> None:
    assert count(visits, "charts") > 0
    assert seen(visits, "blank") == []


def test_a_page_reads_without_a_script(browser: Browser, site_url: str) -> None:
    page = browser.new_page(java_script_enabled=False, viewport={"width": 390, "height": 900})
    page.goto(f"{site_url}chapters/01-introduction.html")
    for shown in (".math mjx-math", "svg.chart-narrow", "figure.drawn svg"):
        box = page.locator(f"article {shown}").first.bounding_box()
        assert box and box["width"] > 0 and box["height"] > 0, shown
    page.close()


def test_our_figures_are_alive(visits: list[Visit]) -> None:
    present = {name for visit in visits for state in visit.states.values() for name in state["figures"]}
    assert {"mlsys-roofline", "mlsys-backward", "mlsys-estimator", "mlsys-planner"} <= present
    assert seen(visits, "dead") == []


def test_text_stands_out_from_its_background(visits: list[Visit]) -> None:
    assert seen(visits, "faint") == []


def test_the_references_are_a_list_of_items(page: Page, site_url: str) -> None:
    page.goto(f"{site_url}references.html")
    roles = page.eval_on_selector_all("[role=list] > *", "nodes => nodes.map((node) => node.getAttribute('role'))")
    assert len(roles) > 50 and set(roles) == {"listitem"}


def test_search_finds_a_word_of_a_chapter(page: Page, site: Path, site_url: str) -> None:
    chapter = sorted((site / "chapters").glob("*.html"))[0]
    page.goto(f"{site_url}chapters/{chapter.name}")
    words = set(re.findall(r"\b[a-z]{9,}\b", " ".join(page.locator("article section > p").all_inner_texts())))
    word = max(words, key=lambda one: (len(one), one))
    page.locator(".search-button-field:visible, .search-button:visible").first.click()
    page.locator("input[type=search]:visible").fill(word)
    page.keyboard.press("Enter")
    # Results arrive one by one.
    page.locator(f"#search-results li a[href*='chapters/{chapter.name}']").first.wait_for(timeout=PATIENCE_MS)


def test_links_within_the_site_lead_somewhere(site: Path) -> None:
    assert internal_problems(site) == []


def test_no_solution_is_published(site: Path) -> None:
    text = {".html", ".ipynb", ".js", ".md", ".py", ".txt", ".json"}
    files = [path for path in site.rglob("*") if path.suffix in text]
    assert any(path.suffix == ".ipynb" for path in files)
    marks = ("BEGIN SOLUTION", "END SOLUTION", "BEGIN HIDDEN TESTS")
    assert [path for path in files if any(mark in path.read_text(encoding="utf-8") for mark in marks)] == []


def test_every_lab_page_offers_the_released_notebook(site: Path) -> None:
    for lab in released_labs(LABS):
        links = read_page(site / "labs" / f"{lab.name}.html").links
        (download,) = {link for link in links if link.endswith(f"{lab.name}.ipynb") and ":" not in link}
        assert (site / "labs" / download).resolve().read_bytes() == lab.notebook.read_bytes()
        path = f"/{read_address().slug}/blob/main/labs/{lab.name}/{lab.name}.ipynb"
        assert sum(link.startswith("https://colab.") and link.endswith(path) for link in links) == 1
        assert sum(f"/edit/main/solutions/{lab.name}/" in link for link in links) == 2  # menu and foot
        assert any("/issues/new" in link for link in links)


def test_every_page_says_once_how_wide_it_is(site: Path) -> None:
    counts = {path.name: path.read_text("utf-8").count('name="viewport"') for path in pages(site)}
    assert {name for name, count in counts.items() if count != 1} == set()


def test_links_to_terms_carry_definitions_that_show_for_the_keyboard_too(page: Page, site_url: str) -> None:
    page.goto(f"{site_url}chapters/12-inference.html")
    links = page.locator(".bd-article a[href*='glossary.html#term-']")
    titles = links.evaluate_all("links => links.map(link => link.title.length)")
    assert len(titles) > 10 and min(titles) > 20 and max(titles) <= 302
    page.keyboard.press("Tab")
    links.first.focus()
    shown = links.first.evaluate("link => getComputedStyle(link, '::after').content")
    assert links.first.get_attribute("title") in shown.replace('\\"', '"')


def test_no_line_breaks_between_a_number_and_its_unit(site: Path) -> None:
    prose = BeautifulSoup((site / "chapters" / "12-inference.html").read_text("utf-8"), "html.parser")
    texts = [
        one for part in prose.select(".bd-article p") if not part.select("pre") for one in part.find_all(string=True)
    ]
    assert any("\N{NO-BREAK SPACE}%" in one for one in texts)
    assert [one for one in texts if re.search(r"\d %", one) and one.parent.name != "code"] == []


def test_readings_of_a_lab_are_links_with_titles(site: Path) -> None:
    page = read_page(site / "labs" / "12-diffusion.html")
    leads = [link for link in page.links if "readings.html#reading-" in link]
    assert len(leads) >= 2


def test_a_lab_page_shows_the_buttons_that_lead_to_its_notebook(page: Page, site_url: str) -> None:
    page.goto(f"{site_url}labs/{released_labs(LABS)[0].name}.html")
    expect(page.locator(".lab-download")).to_be_visible()
    expect(page.locator(".lab-colab")).to_be_visible()
    expect(page.locator(".lab-local")).to_have_count(0)


def test_the_local_site_leads_into_jupyterlab(page: Page, site: Path) -> None:
    lab = released_labs(LABS)[0]
    with running(site_server(site, 0, "http://127.0.0.1:1/lab/tree/{notebook}?token=secret")) as url:
        page.goto(f"{url}labs/{lab.name}.html")
        address = f"http://127.0.0.1:1/lab/tree/{lab.name}/{lab.name}.ipynb?token=secret"
        expect(page.locator(".lab-local")).to_have_attribute("href", address)
        expect(page.locator(".lab-colab")).to_be_hidden()
        page.goto(f"{url}chapters/12-inference.html")
        address = "http://127.0.0.1:1/lab/tree/chapters/12-inference.ipynb?token=secret"
        expect(page.locator(".lab-local")).to_have_attribute("href", address)
        page.close()


def test_a_wrong_address_leads_to_a_page_of_the_site(page: Page, site_url: str) -> None:
    """Hosts answer with 404.html at whatever address, so its links hold from everywhere."""
    folder = urlsplit(read_address().site).path.strip("/")
    page.route(
        f"{site_url}{folder}/**", lambda route: route.continue_(url=route.request.url.replace(f"/{folder}/", "/"))
    )
    page.route(f"{site_url}{folder}/no/such/page", lambda route: route.continue_(url=f"{site_url}404.html"))
    problems: list[str] = []
    page.on("response", lambda got: problems.append(got.url) if got.status >= 400 else None)
    page.goto(f"{site_url}{folder}/no/such/page", wait_until="networkidle")
    expect(page.locator(".bd-article h1")).to_have_text("There is no such page")
    expect(page.locator(".bd-sidebar-primary a", has_text="13 · Serving")).to_be_attached()
    assert problems == [] and page.evaluate("getComputedStyle(document.body).fontFamily").startswith("Inter")
    page.locator(".bd-sidebar-primary a", has_text="Glossary").click()
    expect(page).to_have_url(f"{site_url}{folder}/glossary.html")


def test_a_guess_on_the_front_page_is_answered(page: Page, site_url: str) -> None:
    page.goto(site_url)
    answer = page.locator(".front-answer")
    expect(answer).to_be_hidden()
    page.locator(".front-guess input").nth(1).focus()
    page.keyboard.press("Space")
    expect(answer).to_be_visible()
    expect(answer).to_contain_text("tokens per second")


def test_what_a_prediction_is_about_is_blurred_until_it_is_made_or_skipped(page: Page, site_url: str) -> None:
    page.goto(f"{site_url}chapters/01-introduction.html")
    boxes = page.locator(".admonition.predict")
    figure = page.locator("figure.drawn", has_text="An 8-billion-parameter model on an H100")
    expect(figure).to_have_css("filter", re.compile("blur"))
    boxes.nth(1).locator("button", has_text=re.compile("^C")).click()
    expect(figure).to_have_css("filter", "none")
    first = page.locator(".admonition.predict + .cell, .admonition.predict + p + .cell").first
    expect(first).to_have_css("filter", re.compile("blur"))
    boxes.nth(0).get_by_role("button", name="Show it without a prediction").click()
    expect(first).to_have_css("filter", "none")
    expect(page.locator(".predictions-made")).to_have_text("Predictions: 1 of 2 made, 1 right")
    page.reload()
    expect(first).to_have_css("filter", "none")


def test_a_prediction_is_judged_by_a_click_and_remembered(page: Page, site_url: str) -> None:
    chapter = f"{site_url}chapters/12-inference.html"
    page.goto(chapter)
    box = page.locator(".admonition.predict").first
    answer, verdict = box.locator("details"), box.locator(".predict-verdict")
    expect(answer).not_to_have_attribute("open", re.compile(".*"))
    box.locator("button", has_text=re.compile("^C")).click()
    expect(answer).to_have_attribute("open", re.compile(".*"))
    expect(verdict).to_have_text("You chose C; B is right.")
    page.goto(chapter)
    expect(verdict).to_have_text("You chose C; B is right.")
    box.locator("button", has_text=re.compile("^B")).focus()
    page.keyboard.press("Enter")
    expect(verdict).to_have_text("B is right.")
    expect(page.locator(".predictions-made")).to_have_text("Predictions: 1 of 2 made, 0 right")
    page.locator(".admonition.predict").nth(1).locator("button", has_text=re.compile("^C")).click()
    expect(page.locator(".predictions-made")).to_have_text(re.compile("^Predictions: 2 of 2 made, [01] right$"))
    page.goto(f"{site_url}syllabus.html")
    expect(page.locator(".syllabus h3", has_text="Inference").locator(".chapter-done")).to_have_text(
        re.compile("^ ?[01]/2$")
    )
