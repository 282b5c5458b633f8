"""The button "Open in JupyterLab" of every chapter and lab opens its notebook, when it is clicked."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from book import serve
from book.project import BOOK, LABS
from mlsys_lab.stack.labinfo import released_labs
from tests.ports import held_port

pytestmark = pytest.mark.timeout(1800)  # the first test may build the site

PAGES = [
    *(f"chapters/{path.stem}" for path in sorted((BOOK / "chapters").glob("*.md"))),
    *(f"labs/{lab.name}" for lab in released_labs(LABS)),
]


@pytest.fixture(scope="module")
def local_site(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the site as `make start` serves it, next to a JupyterLab with labs and chapters."""
    home, token = tmp_path_factory.mktemp("start"), secrets.token_urlsafe()
    serve.prepare_workspace(home / "workspace", site)
    with held_port() as port:
        with pytest.MonkeyPatch.context() as patch:  # else it opens what another JupyterLab of this user has open
            patch.setenv("JUPYTERLAB_WORKSPACES_DIR", str(home / "workspaces"))
            jupyter = serve.start_jupyterlab(home / "workspace", port, token, home / "jupyterlab.log")
        link = f"http://{serve.HOST}:{port}/lab/tree/{{notebook}}?token={token}"
        with serve.running(serve.site_server(site, 0, link)) as url:
            yield url
        serve.stop(jupyter)


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Iterator[Page]:
    """A reader's tab, which keeps what JupyterLab has loaded from one click to the next."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(120_000)
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_click_opens_the_notebook(tab: Page, local_site: str, name: str) -> None:
    tab.goto(f"{local_site}{name}.html")
    title = tab.locator("h1").first.evaluate("(one) => one.firstChild.textContent")
    with tab.context.expect_page() as opened:
        tab.get_by_role("link", name="Open in JupyterLab").first.click()
    notebook = opened.value
    expect(notebook).to_have_url(re.compile(r"/lab/tree/.*\.ipynb"))
    heading = notebook.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-RenderedMarkdown h1").first
    expect(heading).to_contain_text(title, timeout=120_000)
    notebook.close()
