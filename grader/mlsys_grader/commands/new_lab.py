"""Write a new lab: one example task that releases, proves and shows on the site, to be replaced by its author's.

examples:
  mlsys-grader new-lab paged-cache
  mlsys-grader new-lab paged-cache --title "A paged KV cache" --chapter 13-serving

In a checkout of the course it writes the lab's notebook and lab.toml (solutions/), both sides of its checks
(grader/mlsys_checks/), what they are proved on (tests/labs/), and a line of the changelog. Syllabus, table of contents,
front page and the README's table follow from lab.toml. The tests of tests/labs name what is still due.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `mlsys-grader new-lab` to its parser."""
    parser.add_argument("topic", help="lower-case words joined by hyphens, as in paged-cache")
    parser.add_argument("--title", help="as on the lab's page (default: the topic's words)")
    parser.add_argument(
        "--chapter", metavar="NN-TOPIC", help="the chapter that it belongs to (default: that of the topic, or the last)"
    )
    parser.add_argument(
        "--project", type=Path, default=Path(), metavar="DIR", help="the checkout (default: the current folder)"
    )


def run(args: argparse.Namespace) -> int:
    """Write the lab, and say where its files are and what to do next."""
    from mlsys_grader.release.scaffold import plan_lab, write

    checkout = args.project.absolute()
    lab = plan_lab(checkout, args.topic, args.title, args.chapter)
    for path in write(lab, checkout):
        print(path)
    print(f"lab {lab.number} of chapter {lab.chapter}; --chapter names another")
    print(f"next: make labs && .venv/bin/mlsys-grader prove {lab.topic}")
    print(f"what is still due: .venv/bin/python -m pytest tests/labs tests/book -k '{lab.topic} or chapter'")
    return 0
