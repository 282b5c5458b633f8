"""Write the whole book in one file: `python -m book.offline pdf|epub` (after `make book`)."""

from __future__ import annotations

import argparse
import datetime
import sys
from importlib.metadata import version
from pathlib import Path

import yaml

from book.offline.epub import write_epub
from book.offline.parts import TitlePage, read_parts
from book.offline.pdf import write_pdf
from book.project import BOOK, read_address
from mlsys_lab.errors import CourseError


def main(arguments: list[str] | None = None) -> int:
    """Write the book as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m book.offline", description="Write the whole book in one file.")
    parser.add_argument("kind", choices=["pdf", "epub"])
    parser.add_argument("--site", type=Path, default=BOOK / "_build" / "html", help="default: book/_build/html")
    parser.add_argument("--out", type=Path, default=BOOK / "_build", help="folder; default: book/_build")
    options = parser.parse_args(arguments)
    settings = yaml.safe_load((BOOK / "_config.yml").read_text("utf-8"))
    address, path = read_address(), options.out / f"mlsys-lab.{options.kind}"
    today = datetime.datetime.now(datetime.UTC).date()
    title = TitlePage(settings["title"], settings["author"], version("mlsys-lab"), address.site, today)
    write = write_pdf if options.kind == "pdf" else write_epub
    try:
        write(options.site, read_parts(options.site, address.site), title, path)
    except CourseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
