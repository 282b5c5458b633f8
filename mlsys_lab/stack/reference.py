"""Where the released labs lie, and which package of the course stands in for what a lab has its learner build."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path
from types import ModuleType

import mlsys_lab
from mlsys_lab.errors import InputError


def labs_root() -> Path:
    """The folder of the released labs: inside an installed package, or beside the package in a checkout."""
    package = Path(str(mlsys_lab.__file__)).parent
    inside = package / "_labs"
    return inside if inside.is_dir() else package.parent / "labs"


def default_reference(topic: str) -> str:
    """The module that stands in for a topic whose lab.toml names none: the package of that name."""
    return f"mlsys_lab.{topic.replace('-', '_')}"


def load_reference(topic: str) -> ModuleType:
    """Import the course's own answer to a topic's lab; `InputError` for a topic that the course does not have."""
    name = default_reference(topic)
    for path in labs_root().glob(f"[0-9][0-9]-{topic}/lab.toml"):
        name = tomllib.loads(path.read_text(encoding="utf-8")).get("reference", name)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise InputError("the course has no such topic", got=repr(topic), expected="a lab's topic") from None
