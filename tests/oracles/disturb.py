"""Makes what the package computes wrong by a tenth and more, to see whether a test notices."""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from itertools import cycle
from numbers import Real
from types import ModuleType
from typing import Any

import numpy as np
import pytest

FACTORS = (1.1, 1.18, 1.27, 1.37, 1.48, 1.6, 1.73)


def disturbed(value: Any, factors: Iterator[float]) -> Any:
    """A copy with every number in it changed, each by the next factor, so that ratios change too."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Real | np.ndarray):
        return value * next(factors)
    if isinstance(value, list | tuple):
        return type(value)(disturbed(item, factors) for item in value)
    if isinstance(value, Mapping):
        return {key: disturbed(item, factors) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        changed = copy.copy(value)
        for field in fields(value):
            object.__setattr__(changed, field.name, disturbed(getattr(value, field.name), factors))
        return changed
    return value


def disturb(monkeypatch: pytest.MonkeyPatch, *targets: str) -> None:
    """Disturb what functions, methods or properties of the package return, or what a class is made from.

    A target is a name below `mlsys_lab`, such as "flops.einsum.Einsum.flops".
    """
    factors = cycle(FACTORS)
    for target in targets:
        owner, name = _find(target)
        found = inspect.getattr_static(owner, name)
        if isinstance(found, type):
            monkeypatch.setattr(found, "__init__", _taking_wrong(found.__init__, factors))  # type: ignore[misc]
        elif isinstance(found, property):
            assert found.fget
            monkeypatch.setattr(owner, name, property(_returning_wrong(found.fget, factors)))
        elif isinstance(owner, type):
            monkeypatch.setattr(owner, name, _returning_wrong(found, factors))
        else:
            wrong = _returning_wrong(found, factors)
            for module in _modules():
                for alias in [alias for alias, value in vars(module).items() if value is found]:
                    monkeypatch.setattr(module, alias, wrong)


def _find(target: str) -> tuple[Any, str]:
    """The module or class that has the target's last name."""
    *path, name = target.split(".")
    owner: Any = importlib.import_module("mlsys_lab")
    for part in path:
        owner = (
            importlib.import_module(f"{owner.__name__}.{part}")
            if isinstance(owner, ModuleType) and not isinstance(vars(owner).get(part), type)
            else getattr(owner, part)
        )
    return owner, name


def _modules() -> list[ModuleType]:
    """Modules in which a name of the package may stand."""
    return [module for name, module in list(sys.modules.items()) if name.startswith(("mlsys_lab", "tests.oracles"))]


def _returning_wrong(function: Callable[..., Any], factors: Iterator[float]) -> Callable[..., Any]:
    return wraps(function)(lambda *args, **kwargs: disturbed(function(*args, **kwargs), factors))


def _taking_wrong(function: Callable[..., Any], factors: Iterator[float]) -> Callable[..., Any]:
    return wraps(function)(lambda self, *args: function(self, *disturbed(args, factors)))
