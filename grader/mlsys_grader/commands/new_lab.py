"""Write a new lab: one example task that releases, proves and shows on the site, to be replaced by its author's.

examples:
  mlsys-grader new-lab paged-cache
  mlsys-grader new-lab paged-cache --title "A paged KV cache" --chapter 13-serving

In a checkout of the course it writes the lab's notebook and lab.toml (solutions/), both sides of its checks
(grader/mlsys_checks/), what they are proved on (tests/labs/), and a line of the changelog. Syllabus, table of contents,
front page and the README's table follow from lab.toml. The tests of tests/labs name what is still due.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mlsys_grader.commands import CourseOptions
from mlsys_lab.cli.app import argument, option


@dataclass(kw_only=True)
class Arguments(CourseOptions):
    """The lab, its chapter and the checkout."""

    topic: Annotated[str, argument("lower-case words joined by hyphens, as in paged-cache")]
    title: Annotated[str | None, option("as on the lab's page (by default the topic's words)")] = None
    chapter: Annotated[str | None, option("its chapter (by default that of the topic, or the last)", "NN-TOPIC")] = None
    project: Annotated[Path, option("the checkout", "DIR")] = Path()


def run(args: Arguments) -> int:
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
