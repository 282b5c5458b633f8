"""Formulas set at build by the installed MathJax: a page needs a style sheet and fonts for them, and no script."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection
from dataclasses import dataclass

from book.assets import FONTS, mathjax_folder, package_folder
from book.project import BOOK
from mlsys_lab.errors import InputError

Formula = tuple[str, bool]
"""TeX, and whether it is displayed on lines of its own."""


@dataclass(frozen=True)
class Typeset:
    """Formulas as HTML, each with MathML for screen readers, and the one style sheet of them all."""

    html: dict[Formula, str]
    css: str


def typeset(formulas: Collection[Formula]) -> Typeset:
    """Set formulas as HTML, in one run of the Node that Playwright brings along.

    Raises:
        InputError: a formula is no TeX that MathJax knows; the message has the formula.
        MissingToolError: MathJax or Playwright is not installed.
    """
    node = package_folder("playwright", "playwright/driver") / "node"
    wanted = sorted(formulas)
    result = subprocess.run(
        [node, BOOK / "typeset.js", mathjax_folder()],
        input=json.dumps({"formulas": wanted, "fonts": FONTS}),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if result.returncode:
        raise InputError("a formula cannot be set", got=" ".join(result.stderr.split()), expected="MathJax's TeX")
    answer = json.loads(result.stdout)
    return Typeset(dict(zip(wanted, answer["html"], strict=True)), answer["css"])
