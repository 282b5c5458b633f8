"""Slips of a learner: one function of a solved notebook left unwritten or made wrong, and the checks that it costs."""

from __future__ import annotations

from functools import wraps
from types import ModuleType
from typing import Any

import numpy as np

from mlsys_checks.runner import run_check
from mlsys_lab.stack.artifact import Artifact
from mlsys_lab.stack.loading import load
from tests.labs.harness import LabUnderTest, labs


def lab_of(topic: str) -> LabUnderTest:
    """The lab of a topic."""
    return next(lab for lab in labs() if lab.info.topic == topic)


def load_reference(lab: LabUnderTest) -> ModuleType:
    """The course's solutions as a module that slips may be made in."""
    return load(Artifact.parse("reference.ipynb", lab.reference), module_name="independence")


def leave_unwritten(module: ModuleType, name: str) -> None:
    """Have a function raise what the stub of a task raises."""

    @wraps(getattr(module, name))
    def stub(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    setattr(module, name, stub)


def double(module: ModuleType, name: str) -> None:
    """Have a function give twice every number of its answer."""
    right = getattr(module, name)

    @wraps(right)
    def slip(*args: Any, **kwargs: Any) -> Any:
        return _doubled(right(*args, **kwargs))

    setattr(module, name, slip)


def failed(lab: LabUnderTest, module: ModuleType) -> set[str]:
    """The checks that a module fails, by the cases that are shown."""
    return {check.name for check in lab.checks.checks if not run_check(check, module).passed}


def _doubled(answer: Any) -> Any:
    match answer:
        case str():
            return answer
        case dict():
            return {name: _doubled(value) for name, value in answer.items()}
        case tuple():
            return tuple(map(_doubled, answer))
        case int() | float() | list() | np.ndarray():
            return 2 * answer
        case _:
            return type(answer)(**{name: _doubled(value) for name, value in vars(answer).items()})
