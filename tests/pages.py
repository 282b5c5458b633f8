"""Waiting for a page of a browser: for what can be seen in the page, never for a time that may be too short."""

from __future__ import annotations

from playwright.sync_api import Page

PATIENCE_MS = 120_000
"""How long a page may keep a test waiting before the test fails: a machine that is busy is slow, not wrong."""

# A figure hears of its new width in one frame, and draws itself in the next, after that frame's own callbacks: after
# three frames it has drawn. Transitions end; what flows for ever (a figure in play) is not waited for, nor what stands
# still since nobody sees it (folded code).
SETTLED = """async () => {
  const frame = () => new Promise(requestAnimationFrame);
  const shadows = (root) => [...root.querySelectorAll("*")].map((node) => node.shadowRoot).filter(Boolean);
  const within = (root) => [root, ...shadows(root).flatMap(within)];
  for (let i = 0; i < 3; i++) await frame();
  const seen = (one) => one.effect.target.checkVisibility();
  const moving = within(document).flatMap((root) => root.getAnimations()).filter(seen);
  const ending = moving.filter((one) => Number.isFinite(one.effect.getComputedTiming().endTime));
  await Promise.allSettled(ending.map((one) => one.finished));
  await frame();
}"""


def settle(page: Page) -> None:
    """Wait until the page's figures have drawn themselves at their present width and colours have stopped to change."""
    page.evaluate(SETTLED)


def read_letter_sizes(page: Page, element: str) -> list[float]:
    """Sizes of all letters in an element's pictures, in px as they stand on the screen."""
    sizes: list[float] = page.eval_on_selector(
        element,
        """(el) => [...el.shadowRoot.querySelectorAll("svg[role=img]")].flatMap((svg) => {
          const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
          return [...svg.querySelectorAll("text")].map((t) => parseFloat(getComputedStyle(t).fontSize) * scale); })""",
    )
    return sizes


def assert_readable(page: Page, element: str, width: int, *, texts: int) -> None:
    """Assert that an element has at least `texts` texts in its pictures, none below 11 px, and does not overflow."""
    settle(page)
    sizes = read_letter_sizes(page, element)
    assert len(sizes) >= texts and min(sizes) >= 11, sizes
    assert page.evaluate("document.documentElement.scrollWidth") <= width
