"""What axe-core finds wrong with pages, and whether one sees where the keyboard is."""

from __future__ import annotations

from importlib.resources import files

import pytest
from playwright.sync_api import Page

from tests.pages import settle
from tests.sampling import sample

pytestmark = pytest.mark.timeout(1800)  # the first test may build the site

PAGES = (
    "index", "syllabus", "milestones", "readings", "references", "glossary", "estimator", "planner", "search",
    "chapters/05-cuda", "chapters/08-scaling-laws", "labs/01-autograd",
)  # fmt: skip
# Contrast is test_site.py's, which looks at every page in every state; axe knows nothing of text within figures.
FOUND = """async () => {
  const standard = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
  const rules = { "color-contrast": { enabled: false } };
  for (const one of ["heading-order", "region", "label-content-name-mismatch"]) rules[one] = { enabled: true };
  const options = { runOnly: standard, rules };
  const { violations } = await axe.run(document, options);
  return violations.flatMap(({ id, nodes }) => nodes.slice(0, 3).map((node) => `${id}: ${node.target.join(" ")}`));
}"""
# Every control of a page and of its figures is focused as by the keyboard; returns those whose ring cannot be seen.
UNSEEN = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const parent = (node) => node.parentElement ?? node.getRootNode().host ?? null;
  const ground = (node) => {
    for (let at = parent(node); at; at = parent(at)) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const inside = (one) => [one, ...(one.shadowRoot ? within(one.shadowRoot) : [])];
  const within = (root) => [...root.querySelectorAll("*")].flatMap(inside);
  const controls = "button, summary, select, input, .front-button, .lab-button";
  const visible = (one) => !one.disabled && one.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  const seen = within(document).filter((one) => one.matches(controls) && visible(one));
  const unseen = seen.filter((one) => {
    one.focus({ preventScroll: true });
    if (!one.matches(":focus")) return false;
    const { outlineStyle, outlineWidth, outlineColor } = getComputedStyle(one);
    const [a, b] = [light(rgba(outlineColor)), light(ground(one))];
    return outlineStyle === "none" || parseFloat(outlineWidth) < 2 || Math.max(a, b) / Math.min(a, b) < 3;
  });
  return [seen.length, unseen.map((one) => `${one.localName}.${one.className} ${getComputedStyle(one).outline}`)];
}"""


@pytest.mark.parametrize("name", sample(PAGES, 4))
def test_axe_finds_nothing(page: Page, site_url: str, name: str) -> None:
    page.goto(f"{site_url}{name}.html", wait_until="networkidle")
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    assert page.evaluate(FOUND) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", sample(PAGES, 4))
def test_every_button_shows_that_the_keyboard_is_there(page: Page, site_url: str, name: str, theme: str) -> None:
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    page.goto(f"{site_url}{name}.html", wait_until="networkidle")
    settle(page)
    page.keyboard.press("Tab")  # from now on, focus is shown
    count, unseen = page.evaluate(UNSEEN)
    assert count >= 3 and unseen == []
