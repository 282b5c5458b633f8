"""Take the pictures that the README and chapter 13 show: `python book/screenshots.py` (after `make book`)."""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser

from book.browser import chromium
from book.project import BOOK
from book.serve import running, site_server
from mlsys_lab.errors import CourseError

PICTURES = BOOK / "_static" / "screenshots"


@dataclass(frozen=True)
class Shot:
    """One picture: a page in a theme, `width` by `height` CSS pixels from the element `at` down."""

    name: str
    page: str
    theme: str
    width: int = 1280
    height: int = 800
    at: str = "body"


SHOTS = (
    Shot("front-light", "index.html", "light"),
    Shot("front-dark", "index.html", "dark"),
    Shot("chapter-figure", "chapters/02-automatic-differentiation.html", "light", at="mlsys-backward"),
)


def take(site: Path, pictures: Path) -> list[Path]:
    """Take every picture, most of the site in `site`, and write it into the folder `pictures`; returns the paths.

    Raises:
        InputError: the site has not been built.
        MissingToolError: this machine has no Chromium.
    """
    taken = []
    with running(site_server(site, 0)) as url, chromium() as browser:
        pictures.mkdir(parents=True, exist_ok=True)
        for shot in SHOTS:
            size = {"width": shot.width, "height": shot.height}
            page = browser.new_page(viewport=size, color_scheme=shot.theme)
            page.goto(url + shot.page)
            page.wait_for_load_state("networkidle")
            page.locator(shot.at).first.evaluate("node => scrollTo(0, node.getBoundingClientRect().top - 120)")
            page.wait_for_timeout(500)  # the theme's colours fade in
            taken.append(pictures / f"{shot.name}.png")
            page.screenshot(path=taken[-1])
            page.close()
        taken.append(take_server(browser, pictures / "serve.png"))
    return taken


def take_server(browser: Browser, picture: Path) -> Path:
    """Take the page of `mlsys-lab serve` under load, and write it to `picture`; returns that path."""
    command = [Path(sys.executable).with_name("mlsys-lab"), "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = server.stdout.readline().split()[2]  # type: ignore[union-attr]
            page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
            page.goto(address)
            page.get_by_label("Your message").fill("What is a cache?")
            page.keyboard.press("Enter")
            page.locator(".assistant:not(.streaming)").wait_for()
            page.get_by_role("combobox").select_option("24")
            page.get_by_role("button", name="Send a burst").click()
            page.locator("#steps [data-seq-id]").nth(150).wait_for()
            page.get_by_role("button", name="Pause").click()
            page.screenshot(path=picture, full_page=True)
            page.close()
        finally:
            server.terminate()
    return picture


def main(arguments: list[str] | None = None) -> int:
    """Take the pictures of the built site and of the server as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="book/screenshots.py", description="Take the pictures of the site and the server."
    )
    parser.add_argument("--site", type=Path, default=BOOK / "_build" / "html", help="default: book/_build/html")
    parser.add_argument("--out", type=Path, default=PICTURES, help="default: book/_static/screenshots")
    options = parser.parse_args(arguments)
    try:
        for path in take(options.site, options.out):
            print(f"{path} ({path.stat().st_size // 1000} kB)")
    except CourseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
