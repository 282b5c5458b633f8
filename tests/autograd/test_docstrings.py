from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import mlsys_lab.autograd

MODULES = [m.name for m in pkgutil.walk_packages(mlsys_lab.autograd.__path__, "mlsys_lab.autograd.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    assert sum(doctest.testmod(importlib.import_module(name)).attempted for name in MODULES) > 5
