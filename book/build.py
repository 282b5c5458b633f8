"""Build the book: `python book/build.py [--out FOLDER] [--timing]`.

Jupyter Book's own reader takes _config.yml; this file adds what they cannot know: the public address, fonts and
widgets, and a cache of executed pages that is renewed when the package's source changes.
Warnings are errors, and so is a cell that fails. Pages are executed side by side, each on one core.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jupyter_book.config import get_final_config
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.console import nocolor
from sphinx.util.docutils import docutils_namespace, patch_docutils

from book import assets, lab_pages
from book.files import tree_hash
from book.project import BOOK, BRANCH, BUILD, LABS, ROOT, STATIC, Address, read_address
from mlsys_lab.errors import CourseError, InputError

# Jupyter Book always loads these: Thebe declares a global twice on every page, and the others are not used here.
UNUSED_EXTENSIONS = {
    "sphinx_thebe",
    "sphinx_comments",
    "sphinx.ext.intersphinx",
    "sphinx_jupyterbook_latex",
    "sphinx_togglebutton",
}

NOT_FOUND = """<h1>There is no such page</h1>
<p>It may have been renamed. Where to go on:</p>
<ul>
<li><a href="{site}index.html">The front page</a></li>
<li><a href="{site}syllabus.html">The syllabus: every chapter and lab</a></li>
<li><a href="{site}readings.html">The reading list</a></li>
<li><a href="{site}search.html">Search the book</a></li>
</ul>
"""

FOOTER = (
    '<p>An open course: <a href="{repository}">source</a>, <a href="{repository}/issues">mistakes and ideas</a>. '
    "Every number on these pages is computed, measured or cited.</p>"
    '<p>The whole book: <a href="{site}mlsys-lab.pdf">PDF</a>, <a href="{site}mlsys-lab.epub">EPUB</a>. '
    'What is new: <a href="{site}changelog.xml">RSS</a>.</p>'
    '<p>Text and pictures: <a href="{repository}/blob/{branch}/book/LICENSE" rel="license">CC BY 4.0</a>. '
    'Code: <a href="{repository}/blob/{branch}/LICENSE" rel="license">MIT</a>.</p>'
)


def cache_key() -> str:
    """Hash of everything that a page's cells can read besides the page: package, measurements, pinned versions.

    Not the figures' JavaScript, which a page loads and no cell reads.
    """
    package = ROOT / "mlsys_lab"
    records = (BOOK / "data" / "measurements").glob("*.json")
    return tree_hash([*package.rglob("*.py"), *records, ROOT / "constraints.txt"], ROOT)


def execution_cache(key: str) -> Path:
    """Folder for the outputs of executed pages under this key; folders of other keys are deleted."""
    home = BUILD / "book-cache"
    for other in home.glob("*"):
        if other.name != key:
            shutil.rmtree(other)
    return home / key


def settings(address: Address, static: Path, cache: Path) -> dict[str, Any]:
    """Make Sphinx's configuration: Jupyter Book's translation of _config.yml, and what this build adds."""
    extra = {
        "latex_individualpages": False,  # get_final_config takes this out again and insists on finding it
        "html_baseurl": address.site,
        "nb_execution_cache_path": str(cache),
        "html_theme_options": {
            "repository_url": address.repository,
            "repository_branch": BRANCH,
            "path_to_docs": "book",
            "extra_footer": FOOTER.format(repository=address.repository, branch=BRANCH, site=address.site),
            "use_repository_button": True,
            "use_edit_page_button": True,
            "use_issues_button": True,
        },
    }
    config, _ = get_final_config(user_yaml=BOOK / "_config.yml", cli_config=extra, raise_on_invalid=True)
    del config["comments_config"]
    config["extensions"] = [name for name in config["extensions"] if name not in UNUSED_EXTENSIONS]
    config["extensions"] += ["sphinx.ext.extlinks", "notfound.extension"]
    config["notfound_urls_prefix"] = urlsplit(address.site).path.rstrip("/") + "/"
    config["notfound_context"] = {"title": "No such page", "body": NOT_FOUND.format(site=address.site)}
    config["extlinks"] = {"source": (f"{address.repository}/blob/{BRANCH}/%s", "%s")}  # {source}`words <path>`
    config["html_static_path"] = ["_static", str(static)]
    config["templates_path"] = ["_templates"]
    config["html_css_files"] = ["theme.css", "drawings.css", "charts.css", "live.css", "search.css", "print.css"]
    config["html_js_files"] = [("site.js", {"type": "module"})]
    return config


def remove_old_pages(html: Path, docnames: set[str]) -> None:
    """Delete the HTML of pages that are no longer in the book, which Sphinx would leave."""
    for page in html.rglob("*.html"):
        name = page.relative_to(html).with_suffix("").as_posix()
        if name not in docnames and not name.startswith("_static/"):
            page.unlink()


def build(out: Path, address: Address, *, quiet: bool = False) -> Path:
    """Build the book into `out`/html and return that folder.

    Raises:
        InputError: a page has a warning or a failing cell; all of them have been printed.
    """
    static = STATIC
    assets.stage(static)
    lab_pages.stage(LABS, BOOK / "labs")
    config = settings(address, static, execution_cache(cache_key()))
    doctrees = out / "doctrees"
    if not sys.stdout.isatty():
        nocolor()
    status = 1
    try:
        with patch_docutils(), docutils_namespace():
            app = Sphinx(
                srcdir=BOOK,
                confdir=None,
                outdir=out / "html",
                doctreedir=doctrees,
                buildername="html",
                confoverrides=config,
                status=None if quiet else sys.stdout,
                warningiserror=True,
                keep_going=True,
            )
            app.build()
            status = app.statuscode
        remove_old_pages(out / "html", {*app.env.found_docs, "genindex", "search", "404"})
    except SphinxError as error:
        raise InputError("the book cannot be built", got=" ".join(str(error).split())) from error
    finally:
        if status:
            # Half a site is left to nobody; and Sphinx would not repeat the warnings of pages that it has read.
            shutil.rmtree(out / "html", ignore_errors=True)
            shutil.rmtree(doctrees, ignore_errors=True)
    if status:
        raise InputError("the book has warnings (above)", expected="none", help="mend them and run make book again")
    return out / "html"


def main(arguments: list[str] | None = None) -> int:
    """Build the book as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(prog="book/build.py", description="Build the site from book/ and labs/.")
    parser.add_argument("--out", type=Path, default=BOOK / "_build", help="default: book/_build")
    parser.add_argument("--quiet", action="store_true", help="print warnings and errors only")
    parser.add_argument("--timing", action="store_true", help="print how long the build took")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads that wait for each other cost more than they save here
    try:
        html = build(options.out.resolve(), read_address(), quiet=options.quiet)
    except CourseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"site: {html / 'index.html'}")
    if options.timing:
        print(f"built in {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
