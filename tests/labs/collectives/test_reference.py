"""What stands in for lab 07 in later labs has the names of its tasks."""

from __future__ import annotations

import inspect

import pytest

from mlsys_lab.comm.collectives import standard
from tests.labs.harness import labs, module_of

COLLECTIVES = next(lab for lab in labs() if lab.info.topic == "collectives")
REFERENCE = module_of(COLLECTIVES.reference, "reference.ipynb")


@pytest.mark.parametrize("name", standard.__all__)
def test_what_stands_in_for_the_lab_is_called_as_its_tasks_are(name: str) -> None:
    asked = list(inspect.signature(getattr(REFERENCE, name)).parameters)
    stands_in = list(inspect.signature(getattr(standard, name)).parameters)
    assert stands_in[: len(asked)] == asked
