"""The examples in docstrings of the core packages, run."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = ("mlsys_lab.errors", "mlsys_lab.hardware", "mlsys_lab.benchmark.memory", "mlsys_lab.checks.compare")


@pytest.mark.parametrize("name", [*MODULES, "mlsys_lab.checks.spec"])
def test_examples(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried > 0 and failed == 0
