"""Names of a package that are imported when they are first asked for, so that nobody waits for torch who needs none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """A `__getattr__` for a package: finds each name of `homes` in the module of the package that it is mapped to."""

    def __getattr__(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return __getattr__
