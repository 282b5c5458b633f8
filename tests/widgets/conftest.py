"""A page in real Chromium whose every request is answered from memory; anything else is recorded and refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route

from mlsys_lab.widgets import esm
from tests.pages import PATIENCE_MS, settle

ORIGIN = "http://book.test"
UPGRADED = "![...document.querySelectorAll(':not(:defined)')].some((node) => node.localName.startsWith('mlsys-'))"


@pytest.fixture(scope="session")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """Where every page is opened, beside a blank one: as long as that is there, the next need no new process."""
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    blank = context.new_page()
    blank.route("**/*", lambda route: route.fulfill(body="", content_type="text/html"))
    blank.goto(ORIGIN)
    yield context
    context.close()


@pytest.fixture
def open_page(context: BrowserContext) -> Iterator[Callable[..., Page]]:
    """open_page(body) opens a page of the site that holds `body`; no page may err or send a request elsewhere."""
    problems: list[str] = []
    pages = []

    def open_page(
        body: str,
        *,
        theme: str = "light",
        width: int = 1280,
        folder: str = "chapters/",
        script: str = "",
        **media: str,
    ) -> Page:
        load = '<script type="module" src="/_static/widgets/load.js"></script>'
        html = (
            f'<!doctype html><html lang="en"{f" data-theme={theme}" if theme else ""}><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
            f"<body>{body}{load}{script}"
        )

        def answer(route: Route) -> None:
            path = route.request.url.removeprefix(ORIGIN)
            if path == f"/{folder}page.html":
                route.fulfill(body=html, content_type="text/html")
            elif path.startswith("/_static/widgets/"):
                route.fulfill(body=esm(Path(path).stem), content_type="text/javascript")
            else:
                problems.append(f"request for {route.request.url}")
                route.abort()

        page = context.new_page()
        pages.append(page)
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(**media)  # type: ignore[arg-type]
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.route("**/*", answer)
        page.goto(f"{ORIGIN}/{folder}page.html")
        # `load.js` fetches the figures' modules, which the page's load event does not wait for.
        page.wait_for_function(UPGRADED)
        settle(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert problems == []


# The promise of an import is kept when the module has run; a script that is added runs some time after.
IMPORT = """async (source) => {
  const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  Object.assign(globalThis, await import(address));
}"""


@pytest.fixture
def open_module(open_page: Callable[..., Page]) -> Callable[..., Page]:
    """open_module(name, *functions) opens a blank page where scripts can call these functions of a figure's module.

    A module keeps its functions to itself: its text is run with one more line, which exports them.
    """

    def open_module(name: str, *functions: str) -> Page:
        page = open_page("")
        page.evaluate(IMPORT, f"{esm(name)}\nexport {{ {', '.join(functions)} }};")
        return page

    return open_module
