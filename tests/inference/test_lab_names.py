"""What stands in for lab 10 in later labs is called as its tasks are."""

from __future__ import annotations

import inspect

import pytest

from mlsys_lab import inference
from tests.labs.harness import labs, module_of

KV_CACHE = next(lab for lab in labs() if lab.info.topic == "kv-cache")
REFERENCE = module_of(KV_CACHE.reference, "reference.ipynb")
METHODS = ("start", "length", "truncate", "drop")


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", inference.__all__)
def test_what_stands_in_for_the_lab_takes_what_its_tasks_take(name: str) -> None:
    asked = parameters(getattr(REFERENCE, name))
    assert parameters(getattr(inference, name))[: len(asked)] == asked


@pytest.mark.parametrize("name", ["Contiguous", "SlidingWindow"])
@pytest.mark.parametrize("method", METHODS)
def test_sequences_come_and_go_alike(name: str, method: str) -> None:
    ours, theirs = (getattr(getattr(module, name), method) for module in (inference, REFERENCE))
    assert parameters(ours) == parameters(theirs)
