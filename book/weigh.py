"""Weigh the built site: `python book/weigh.py [PAGE …]` prints what a first visit to each page loads, by kind.

Bytes are counted raw and as gzip sends them; fonts and pictures are compressed already. Before a browser paints
anything it has read the page and what blocks rendering: style sheets, and scripts that are not deferred. How far the
layout shifts while a page loads on a telephone is its cumulative layout shift (web.dev/cls).
"""

from __future__ import annotations

import argparse
import gzip
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, Response

from book.browser import chromium
from book.linkcheck import pages
from book.project import BOOK
from book.serve import running, site_server
from mlsys_lab.errors import CourseError, InputError

KINDS = ("document", "stylesheet", "script", "font", "image", "other")
COMPRESSED = ("font", "image")
TELEPHONE = {"width": 390, "height": 844}
SHIFT = """() => new Promise((resolve) => {
  let sum = 0;
  new PerformanceObserver((list) => { for (const one of list.getEntries()) sum += one.value; })
    .observe({ type: "layout-shift", buffered: true });
  requestAnimationFrame(() => requestAnimationFrame(() => resolve(sum)));
})"""
BLOCKING = """() => performance.getEntriesByType("resource")
  .filter((one) => one.renderBlockingStatus === "blocking").map((one) => one.name)"""


@dataclass(frozen=True)
class Visit:
    """What a first visit to a page loads: requests, and bytes by kind, raw and as sent; and its layout shift.

    blocking: addresses that the first paint waits for besides the page; first_paint_bytes: of both, as sent.
    largest_script_bytes: of one script, as sent.
    """

    page: str
    requests: int
    raw: dict[str, int]
    sent: dict[str, int]
    shift: float
    blocking: list[str]
    first_paint_bytes: int
    largest_script_bytes: int

    @property
    def sent_bytes(self) -> int:
        """Bytes of all kinds, as sent."""
        return sum(self.sent.values())


def weigh(browser: Browser, url: str, page: str) -> Visit:
    """Visit a page of the site at `url`, which ends in a slash, with a telephone that has nothing of the site yet."""
    context = browser.new_context(viewport=TELEPHONE)
    loaded: list[Response] = []
    try:
        opened = context.new_page()
        opened.on("response", lambda response: loaded.append(response))
        opened.goto(url + page, wait_until="networkidle")
        raw, sent = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
        blocking: list[str] = opened.evaluate(BLOCKING)
        first_paint_bytes = largest_script_bytes = 0
        for response in loaded:
            kind = response.request.resource_type
            kind = kind if kind in KINDS else "other"
            body = response.body()
            size = len(body if kind in COMPRESSED else gzip.compress(body))
            raw[kind] += len(body)
            sent[kind] += size
            if kind == "document" or response.url in blocking:
                first_paint_bytes += size
            if kind == "script":
                largest_script_bytes = max(largest_script_bytes, size)
        shift = float(opened.evaluate(SHIFT))
        return Visit(page, len(loaded), raw, sent, shift, blocking, first_paint_bytes, largest_script_bytes)
    finally:
        context.close()


def weigh_site(site: Path, names: Sequence[str]) -> list[Visit]:
    """Visit these pages of the site in the folder `site`.

    Raises:
        InputError: the site has not been built.
        MissingToolError: this machine has no Chromium.
    """
    with running(site_server(site, 0)) as url, chromium() as browser:
        return [weigh(browser, url, name) for name in names]


def table(visits: Sequence[Visit]) -> str:
    """Lines of kB by kind, raw and as sent, a page each."""
    head = f"{'kB, raw/sent':44}" + "".join(f"{kind:>13}" for kind in (*KINDS, "all")) + f"{'requests':>10}{'shift':>7}"
    head += f"{'blocking':>10}{'before paint':>14}"
    lines = [head]
    for one in visits:
        pairs = [(one.raw[kind], one.sent[kind]) for kind in KINDS] + [(sum(one.raw.values()), one.sent_bytes)]
        cells = "".join(f"{f'{raw / 1e3:.0f}/{sent / 1e3:.0f}':>13}" for raw, sent in pairs)
        lines.append(
            f"{one.page:44}{cells}{one.requests:>10}{one.shift:>7.3f}"
            f"{len(one.blocking):>10}{one.first_paint_bytes / 1e3:>14.0f}"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Weigh pages as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(prog="book/weigh.py", description="Print what a first visit to each page loads.")
    parser.add_argument("pages", nargs="*", help="default: the front page, the chapters, the readings")
    parser.add_argument("--site", type=Path, default=BOOK / "_build" / "html", help="default: book/_build/html")
    options = parser.parse_args(arguments)
    try:
        there = [path.relative_to(options.site).as_posix() for path in pages(options.site)]
        if unknown := set(options.pages) - set(there):
            raise InputError("the site has no such page", got=", ".join(sorted(unknown)))
        chapters = sorted(name for name in there if name.startswith("chapters/"))
        print(table(weigh_site(options.site, options.pages or ["index.html", *chapters, "readings.html"])))
    except CourseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
