"""Lighthouse's marks of the built site: `make lighthouse`, the median of five runs for each page.

Lighthouse (npm, pinned in .ci/lighthouse) loads a page with an empty cache on a simulated telephone: 1.6 Mbit/s, 150 ms
a round trip, and a processor a quarter as fast as this machine's. The site is served as public hosts do, with gzip.
Marks of performance depend on how busy the machine is; those of the other categories do not.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

from book.browser import ARGUMENTS, find_chromium
from book.project import BOOK, ROOT
from book.serve import HOST, SiteHandler, running
from mlsys_lab.errors import CourseError, InputError, MissingToolError

PACKAGES = ROOT / ".ci" / "lighthouse"
CATEGORIES = ("performance", "accessibility", "best-practices", "seo")
PAGES = (
    "index.html",
    "chapters/01-introduction.html",
    "chapters/07-transformer-arithmetic.html",
    "chapters/13-serving.html",
    "readings.html",
    "labs/01-autograd.html",
)
COMPRESSED = (".html", ".css", ".js", ".json", ".svg", ".xml")


class GzipHandler(SiteHandler):
    """The site's files, with gzip for what is text."""

    def do_GET(self) -> None:
        """Answer a GET request."""
        path = Path(self.translate_path(self.path))
        if path.suffix not in COMPRESSED or not path.is_file():
            super().do_GET()
            return
        body = gzip.compress(path.read_bytes())
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(path))
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def audit(url: str) -> dict[str, float]:
    """Lighthouse's marks of a page, 0 to 100, by category, in one run.

    Raises:
        MissingToolError: Lighthouse or Chromium is not on this machine, or fails.
    """
    program = PACKAGES / "node_modules" / ".bin" / "lighthouse"
    if not program.exists():
        raise MissingToolError("Lighthouse is not installed", help="make lighthouse")
    command = [str(program), url, "--quiet", "--output=json", f"--only-categories={','.join(CATEGORIES)}"]
    command += [f"--chrome-flags={' '.join(ARGUMENTS)}"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # pip installs node there
    environment = os.environ | {"CHROME_PATH": find_chromium(), "PATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingToolError("Lighthouse failed", got=(done.stderr.strip().splitlines() or ["no output"])[-1])
    return {name: 100 * one["score"] for name, one in json.loads(done.stdout)["categories"].items()}


def main(arguments: list[str] | None = None) -> int:
    """Print the medians of the pages' marks; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m book.lighthouse", description="Print Lighthouse's marks.")
    parser.add_argument("pages", nargs="*", default=PAGES, help="default: the front page, three chapters, …")
    parser.add_argument("--site", type=Path, default=BOOK / "_build" / "html", help="default: book/_build/html")
    parser.add_argument("--runs", type=int, default=5, help="runs of each page (default: 5)")
    options = parser.parse_args(arguments)
    handler = partial(GzipHandler, directory=str(options.site), jupyterlab=None)
    try:
        if missing := [page for page in options.pages if not (options.site / page).is_file()]:
            raise InputError("the site has no such page", got=", ".join(missing), help="make book")
        print(f"{'median of ' + str(options.runs):44}" + "".join(f"{name:>16}" for name in CATEGORIES))
        with running(ThreadingHTTPServer((HOST, 0), handler)) as url:
            for page in options.pages:
                marks = [audit(url + page) for _ in range(options.runs)]
                medians = (statistics.median(one[name] for one in marks) for name in CATEGORIES)
                print(f"{page:44}" + "".join(f"{median:16.0f}" for median in medians), flush=True)
    except CourseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
