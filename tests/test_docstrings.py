"""Every example in a docstring runs and gives what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [path.relative_to(ROOT) for package in ("mlsys_lab", "grader") for path in (ROOT / package).rglob("*.py")]
MODULES = sorted(
    ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCES
    if ">>> " in (ROOT / path).read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried > 0 and failed == 0
