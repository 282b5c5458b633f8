"""Chromium for looking at the site: this machine's own, quiet and without a network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from mlsys_lab.errors import MissingToolError

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--process-per-site",  # a page beside one of the same site and context starts no process of its own
]


def find_chromium() -> str:
    """Path of this machine's Chromium.

    Raises:
        MissingToolError: there is none on this machine.
    """
    for name in NAMES:
        if path := shutil.which(name):
            return path
    raise MissingToolError("no Chromium on this machine", expected=f"one of {', '.join(NAMES)}", help="make packages")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a headless Chromium for the body of a `with` and yield it."""
    path = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()
