"""Every docstring is understood by itself, and every example in one runs and gives what it says."""

import ast
import doctest
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "mlsys_lab", ROOT / "grader" / "mlsys_checks", ROOT / "grader" / "mlsys_grader")
FOLDERS = sorted(
    {str(path.parent.relative_to(ROOT)) for package in PACKAGES for path in package.rglob("*.py")}
    | {"book", "book/_ext"}
)
MODULES = sorted(
    ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
    for package in PACKAGES
    for path in package.rglob("*.py")
    if ">>> " in path.read_text()
)
LEANING = re.compile(
    r"(The same|Same|Those|These|Of|Its?|Their|They|Them|All of|Each of them|Both|As above|Likewise)\b"
)
"""Beginnings that point at something which a reader who hovers over a name does not see."""
WITHOUT_REASON = re.compile(r"(?:\b[Rr]aises|;) `?\w+Error`?\.(?:\s|$)")
"""An error that is announced without a word on when it comes."""


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried > 0 and failed == 0


def docstrings(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring within a syntax tree, those of constants and fields among them."""
    for part in ast.walk(node):
        if isinstance(part, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for before, after in zip([None, *part.body], part.body, strict=False):
                match after:
                    case ast.Expr(value=ast.Constant(value=str(text))) if before is None or isinstance(
                        before, ast.Assign | ast.AnnAssign
                    ):
                        yield after.lineno, text


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_stand_by_themselves(folder: str) -> None:
    leaning = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted((ROOT / folder).glob("*.py"))
        for line, text in docstrings(ast.parse(path.read_text()))
        if LEANING.match(text) or len(text.split()) < 3 or WITHOUT_REASON.search(text)
    ]
    assert not leaning, "\n".join(leaning)
