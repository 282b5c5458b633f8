from __future__ import annotations

import pytest

from mlsys_lab.widgets import element

FIGURE = element(
    "roofline", devices=[{"name": "Big", "bandwidth": 2e12, "peaks": {"bf16": 8e14}}], work="intensity", intensity=1
)
THEME = "(el) => el.shadowRoot.querySelector('.figure').dataset.theme"


def theme(page) -> str:
    return page.eval_on_selector("mlsys-roofline", THEME)


def test_the_page_s_own_theme_comes_before_the_system_s(open_page) -> None:
    assert theme(open_page(FIGURE._repr_html_(), theme="light", color_scheme="dark")) == "light"
    assert theme(open_page(FIGURE._repr_html_(), theme="dark", color_scheme="light")) == "dark"


def test_without_a_theme_of_the_page_the_system_s_counts(open_page) -> None:
    assert theme(open_page(FIGURE._repr_html_(), theme="", color_scheme="dark")) == "dark"
    assert theme(open_page(FIGURE._repr_html_(), theme="", color_scheme="light")) == "light"


def test_jupyterlab_s_mark_is_read_and_followed(open_page) -> None:
    page = open_page(FIGURE._repr_html_(), theme="", color_scheme="light")
    page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    page.wait_for_function(f"({THEME})(document.querySelector('mlsys-roofline')) === 'dark'")
    page.evaluate("document.body.dataset.jpThemeLight = 'true'")
    page.wait_for_function(f"({THEME})(document.querySelector('mlsys-roofline')) === 'light'")


def test_paper_is_light_whatever_the_theme(open_page) -> None:
    ink = "(el) => getComputedStyle(el.shadowRoot.querySelector('.figure')).color"
    light = open_page(FIGURE._repr_html_(), theme="light").eval_on_selector("mlsys-roofline", ink)
    page = open_page(FIGURE._repr_html_(), theme="dark")
    assert page.eval_on_selector("mlsys-roofline", ink) != light
    page.emulate_media(media="print")
    assert page.eval_on_selector("mlsys-roofline", ink) == light


@pytest.mark.parametrize("name", ["light", "dark"])
def test_text_stands_out_from_its_ground(open_page, name: str) -> None:
    page = open_page(FIGURE._repr_html_(), theme=name)
    ratios = page.eval_on_selector(
        "mlsys-roofline",
        """(el) => {
          const box = el.shadowRoot.querySelector(".figure");
          const light = (name) => {
            box.style.outlineColor = `var(--${name})`;
            const parts = getComputedStyle(box).outlineColor.match(/[\\d.]+/g).map((c) => c / 255);
            const [r, g, b] = parts.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          return ["ink", "muted", "value", "gradient", "bad"].flatMap((text) => ["surface", "raised"].map((ground) => {
            const [a, b] = [light(text), light(ground)].sort((x, y) => y - x);
            return [text, ground, (a + 0.05) / (b + 0.05)];
          }));
        }""",
    )
    assert len(ratios) == 10
    assert [r for r in ratios if r[2] < 4.5] == []
