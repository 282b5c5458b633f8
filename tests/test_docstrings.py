"""Every example in a docstring runs and gives what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "mlsys_lab", ROOT / "grader" / "mlsys_checks", ROOT / "grader" / "mlsys_grader")
MODULES = sorted(
    ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
    for package in PACKAGES
    for path in package.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried > 0 and failed == 0
