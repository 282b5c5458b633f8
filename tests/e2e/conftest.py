"""The built site, served. It is built as by `make book`, so mostly once."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from book.project import BOOK, BUILD, ROOT
from book.serve import running, site_server
from tests.pages import PATIENCE_MS

STAYS = "_static/file.png"
"""A file of the site that runs nothing: a page of it keeps the process of the site's other pages."""


@pytest.fixture(scope="session")
def site(jupyter_path: Path) -> Path:
    """The folder of the built site. Of processes that want it at the same time, one builds and the others wait."""
    command = [sys.executable, str(BOOK / "build.py"), "--quiet"]
    environment = os.environ | {"JUPYTER_PATH": str(jupyter_path)}
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"the book does not build:\n{result.stdout}\n{result.stderr}"
    return BOOK / "_build" / "html"


@pytest.fixture(scope="session")
def site_url(site: Path) -> Iterator[str]:
    """The address of the served site, ending in a slash."""
    with running(site_server(site, 0)) as url:
        yield url


@pytest.fixture(scope="session")
def context(browser: Browser, site_url: str) -> Iterator[BrowserContext]:
    """Where a visitor's pages are opened, beside one that stays: as long as that is there, the next need no process."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    context.new_page().goto(site_url + STAYS)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A fresh page, 1280 px wide, for a visitor of whom the browser keeps nothing."""
    yield context.new_page()
    stays, *others = context.pages
    for other in others:
        other.close()
    stays.evaluate("localStorage.clear()")
