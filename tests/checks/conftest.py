"""The fake lab, importable as a module of its own and as `lab("fake")`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

FAKES = Path(__file__).parent / "fakes"


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FAKES))
    monkeypatch.setenv("PYTHONPATH", str(FAKES))  # for child processes
    module = importlib.import_module("fake_checks")
    monkeypatch.setitem(sys.modules, "mlsys_checks.trusted.fake", module)
    return module
