"""What stands in for lab 12 in later labs is called as its tasks are."""

from __future__ import annotations

import inspect

import pytest

from mlsys_lab import diffusion
from tests.labs.harness import labs, module_of

DIFFUSION = next(lab for lab in labs() if lab.info.topic == "diffusion")
REFERENCE = module_of(DIFFUSION.reference, "reference.ipynb")


@pytest.mark.parametrize("name", diffusion.__all__)
def test_what_stands_in_for_the_lab_takes_what_its_tasks_take(name: str) -> None:
    ours, asked = (list(inspect.signature(getattr(module, name)).parameters) for module in (diffusion, REFERENCE))
    assert ours == asked
